"""DLG as its paper describes it, in plain autograd: what the plugin's speed is measured against.

    python benchmarks/dlg_plain.py [--images 20] [--data DIR]

One image after the other, torch's own L-BFGS (lr 1, 20 inner steps, history 100, no line search),
300 outer steps, float32, one thread, no stopping rule: Zhu et al., NeurIPS 2019, Algorithm 1, with
the settings of their code. LeNet with sigmoids, 32 x 32, weights and biases from U(-0.5, 0.5).
`benchmarks/dlg.py` runs it and the plugin side by side.
"""

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from fedsim.seeds import torch_generator
from fedsim.tasks.images.data import ImageData, load
from fedsim.tasks.models.cnn import LeNetSigmoid

OUTER = 300
SUCCESS = 1e-3


@dataclass
class Attempt:
    """What one start came to.

    mse: of the worst image; hits: images with less than `SUCCESS`; distance: the last one;
    closures: evaluations with a gradient.
    """

    mse: float
    hits: int
    distance: float
    closures: int
    seconds: float


def pictures(data: str | None) -> tuple[str, ImageData]:
    """CIFAR-100 where there is a folder with it, else scikit-learn's digits, at 32 x 32."""
    name = "cifar100" if data else "digits"
    return name, load(name, Path(data) if data else None, size=32, test_fraction=0.2, seed=0)


def victim(images: ImageData, index: int, size: int = 1) -> tuple[Tensor, Tensor]:
    """Images (size, C, 32, 32) and their labels (size,)."""
    place = images.train[index : index + size]
    return images.inputs(place), images.labels[place]


def network(images: ImageData, seed: int) -> nn.Module:
    """The attacked network; the same for every image of a run."""
    torch.manual_seed(seed)
    return LeNetSigmoid().build(images.shape, images.classes)


def gradient(module: nn.Module, inputs: Tensor, label: Tensor) -> list[Tensor]:
    """What the client sends."""
    loss = functional.cross_entropy(module(inputs), label)
    return [g.detach() for g in torch.autograd.grad(loss, list(module.parameters()))]


def errors(claimed: Tensor, original: Tensor) -> Tensor:
    """The mean squared error of each image (B,), in the order that makes the sum smallest."""
    apart = (claimed.clamp(0, 1)[:, None] - original[None]).square().flatten(2).mean(dim=2)
    apart = apart.nan_to_num(1.0)
    return apart[linear_sum_assignment(apart.numpy())]


def attack(
    module: nn.Module,
    observed: list[Tensor],
    original: Tensor,
    classes: int,
    rng: torch.Generator,
    *,
    outer: int = OUTER,
) -> Attempt:
    """One start of the authors' loop, which moves all images of a batch at once."""
    dummy = torch.randn(original.shape, generator=rng).requires_grad_(True)
    logits = torch.randn((len(original), classes), generator=rng).requires_grad_(True)
    optimizer = torch.optim.LBFGS([dummy, logits], lr=1.0)
    parameters = list(module.parameters())
    closures = 0

    def closure() -> Tensor:
        nonlocal closures
        closures += 1
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(dummy), logits.softmax(dim=-1))
        ours = torch.autograd.grad(loss, parameters, create_graph=True)
        distance = sum(((a - b) ** 2).sum() for a, b in zip(ours, observed, strict=True))
        distance.backward()
        return distance

    started = time.process_time()
    distance = float("nan")
    for _ in range(outer):
        distance = float(optimizer.step(closure).detach())
    seconds = time.process_time() - started
    apart = errors(dummy.detach(), original)
    return Attempt(float(apart.max()), int((apart < SUCCESS).sum()), distance, closures, seconds)


def main() -> None:
    """Attack the first images and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    name, images = pictures(options.data)
    module = network(images, options.seed)
    attempts = []
    for index in range(options.images):
        inputs, label = victim(images, index)
        observed = gradient(module, inputs, label)
        rng = torch_generator(options.seed, "plain", index)
        attempts.append(attack(module, observed, inputs, images.classes, rng))
        one = attempts[-1]
        print(
            f"{index:3d}  MSE {one.mse:8.1e}  distance {one.distance:8.1e}  "
            f"{one.closures:5d} closures  {one.seconds:5.1f} s",
            flush=True,
        )
    closures = sum(one.closures for one in attempts)
    seconds = sum(one.seconds for one in attempts)
    successes = sum(one.mse < SUCCESS for one in attempts)
    print(
        f"{name}: {successes} of {len(attempts)} with MSE < {SUCCESS:g}; "
        f"{1000 * seconds / closures:.2f} ms a closure, {seconds / len(attempts):.1f} s an image, "
        f"{seconds / max(1, successes):.1f} s a success (CPU seconds, one core)"
    )


if __name__ == "__main__":
    main()
