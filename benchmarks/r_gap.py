"""R-GAP side by side with DLG: images found, their error, the self-check, and seconds.

    python benchmarks/r_gap.py DATA [--images 8] [--dlg 8] [--noise 1e-7 1e-6 1e-5]

DATA is a folder with cifar100.npz. Networks are untrained, with 32 x 32 images and 100 classes; an
update holds one image. Each line gives the images found (mean squared error below 1e-3), the
claims, the errors and self-checks of the claims, and CPU seconds an image on one thread, all images
solved at once and one at a time. `--dlg` attacks so many of the same images by dlg (0: none), whose
network is the first. `--noise` adds Gaussian noise to the first network's gradients, as a share of
each parameter's root mean square. `--epochs` trains the leaky ReLU network so many epochs before
each further attack.
"""

import argparse
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedsim import testing
from fedsim.adversary import Adversary
from fedsim.engine.process import one_thread
from fedsim.plugin import make
from fedsim.records import Observation, Reconstruction
from fedsim.seeds import isolated, torch_generator
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

FOUND = 1e-3
"""Mean squared error, pixels in [0, 1], below which an image is found."""

SPEC = ImageSpec(100, (3, 32, 32))
Build = Callable[[], nn.Module]


def chain(
    layers: Sequence[tuple[int, int, int]],
    activation: Callable[[], nn.Module],
    *,
    bias: bool = True,
) -> Build:
    """Convolutions (channels, kernel, stride) with an activation behind each, and a head."""

    def build() -> nn.Module:
        parts, channels = list[nn.Module](), SPEC.input_shape[0]
        for units, kernel, stride in layers:
            parts += [
                nn.Conv2d(channels, units, kernel, stride, kernel // 2, bias=bias),
                activation(),
            ]
            channels = units
        features = nn.Sequential(*parts, nn.Flatten())
        width = features(torch.zeros(1, *SPEC.input_shape)).shape[1]
        return nn.Sequential(OrderedDict(features=features, head=nn.Linear(width, 100, bias=bias)))

    return build


def leaky() -> nn.Module:
    """The paper's activation."""
    return nn.LeakyReLU(0.2)


LENET = ((12, 5, 2), (12, 5, 2), (12, 5, 1))
SIX = ((12, 4, 2), (36, 3, 2), (36, 3, 1), (36, 3, 1), (64, 3, 2), (128, 3, 1))
NETWORKS: dict[str, Build] = {
    "DLG's LeNet, sigmoid, U(-0.5, 0.5)": lambda: as_architecture("lenet-sigmoid").build(
        SPEC.input_shape, SPEC.classes
    ),
    "the same, torch's weights": chain(LENET, nn.Sigmoid),
    "the same, leaky ReLU": chain(LENET, leaky),
    "six convolutions, leaky ReLU, no biases": chain(SIX, leaky, bias=False),
    "three wide convolutions, ReLU": chain(((64, 5, 2), (64, 3, 1), (64, 3, 1)), nn.ReLU),
}


def pictures(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """CIFAR-100 images (N, 3, 32, 32) in [0, 1] and their labels; part: "train" or "test"."""
    stored = np.load(folder / "cifar100.npz")
    images = torch.from_numpy(stored[f"x_{part}"]).float() / 255
    images = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
    return images.contiguous(), torch.from_numpy(stored[f"y_{part}"]).long().flatten()


def train(model: VictimModel, images: Tensor, labels: Tensor, epochs: int) -> float:
    """Train a model by Adam with batches of 64; returns its accuracy on these images."""
    optimizer = torch.optim.Adam(model.module.parameters(), lr=1e-3)
    for epoch in range(epochs):
        rng = torch_generator(epoch, "order")
        for chosen in torch.randperm(len(images), generator=rng).split(64):
            optimizer.zero_grad()
            model.loss(images[chosen], labels[chosen]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model.module(images).argmax(dim=1) == labels).float().mean())


def observed(model: VictimModel, images: Tensor, labels: Tensor, noise: float) -> list[Observation]:
    """The gradient of each image on its own, in float32."""
    seen = []
    for number in range(len(images)):
        at = slice(number, number + 1)
        rng = torch_generator(number, "noise")
        gradient = {}
        for name, value in model.gradient(images[at], labels[at]).items():
            scale = noise * value.detach().square().mean().sqrt()
            gradient[name] = value.detach() + scale * torch.randn(value.shape, generator=rng)
        seen.append(
            testing.observation(gradient=gradient, spec=SPEC, model=model, num_examples=1, steps=1)
        )
    return seen


def attacked(
    attack: Adversary, seen: Sequence[Observation], at_once: bool
) -> tuple[list[Reconstruction | None], float]:
    """Claims, None where the attack refuses, and CPU seconds an image."""
    start = time.process_time()
    claims: list[Reconstruction | None] = []
    if at_once:
        jobs = [testing.job(seed=number) for number in range(len(seen))]
        try:
            claims = list(attack.reconstruct_many(seen, jobs))
        except ValueError:  # of one of them: as in a run, each is then attacked on its own
            at_once = False
    if not at_once:
        for number, one in enumerate(seen):
            try:
                claims.append(attack.reconstruct(one, testing.job(seed=number)))
            except ValueError:
                claims.append(None)
    return claims, (time.process_time() - start) / len(seen)


def line(title: str, claims: Sequence[Reconstruction | None], images: Tensor) -> str:
    """What was found, without the time."""
    made = [(c, i) for c, i in zip(claims, images, strict=True) if c is not None and c.inputs]
    errors = [float((c.inputs[0].clamp(0, 1) - i).square().mean()) for c, i in made]  # type: ignore[index]
    checks = [c.diagnostics.get("mismatch", float("nan")) for c, _ in made]
    found = sum(error < FOUND for error in errors)
    text = f"{title}: {found} of {len(images)} found, {len(made)} claimed"
    if made:
        text += f", MSE {min(errors):.1e} to {max(errors):.1e}, mismatch at most {max(checks):.1e}"
    return text


def main() -> None:
    """Print a line for each network and noise."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with cifar100.npz")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--dlg", type=int, default=8, help="images that dlg attacks, too")
    parser.add_argument("--noise", type=float, nargs="*", default=[1e-6, 1e-5, 1e-4, 1e-3])
    parser.add_argument("--epochs", type=int, nargs="*", default=[5, 20, 40])
    chosen = parser.parse_args()
    one_thread()
    images, labels = (one[: chosen.images] for one in pictures(chosen.data, "test"))
    attack, loose = make("adversaries", "r-gap", {}), {"tolerance": 0.1}
    for title, build in NETWORKS.items():
        with isolated(7, "benchmark"):
            model = VictimModel(build(), head="head", loss=cross_entropy)
        seen = observed(model, images, labels, 0.0)
        claims, together = attacked(attack, seen, at_once=True)
        _, alone = attacked(attack, seen, at_once=False)
        print(f"{line(title, claims, images)}, {together:.2f} s at once, {alone:.2f} s alone")
        if title != next(iter(NETWORKS)):
            continue
        for noise in chosen.noise:
            noisy = observed(model, images, labels, noise)
            claims, _ = attacked(make("adversaries", "r-gap", loose), noisy, at_once=False)
            print(line(f"  noise {noise:g}, tolerance = 0.1", claims, images), flush=True)
        half = [replace(one, gradient=_half(one)) for one in seen]
        claims, _ = attacked(make("adversaries", "r-gap", loose), half, at_once=False)
        print(line("  float16, tolerance = 0.1", claims, images), flush=True)
        if chosen.dlg:
            dlg = make("adversaries", "dlg", {"precision": "float32"})
            claims, seconds = attacked(dlg, seen[: chosen.dlg], at_once=True)
            print(f"{line('  dlg', claims, images[: chosen.dlg])}, {seconds:.2f} s at once")
            print(f"  r-gap takes {together / seconds:.2f} of dlg's time")
    public = pictures(chosen.data, "train")
    with isolated(7, "benchmark"):
        model = VictimModel(chain(LENET, leaky)(), head="head", loss=cross_entropy)
        for epochs in chosen.epochs:
            accuracy = train(model, *public, epochs)
            claims, _ = attacked(attack, observed(model, images, labels, 0.0), at_once=False)
            title = f"leaky ReLU, {epochs} further epochs, training accuracy {accuracy:.2f}"
            print(line(title, claims, images), flush=True)


def _half(seen: Observation) -> dict[str, Tensor]:
    """The gradient rounded to float16."""
    return {name: value.half().float() for name, value in seen.gradient.items()}


if __name__ == "__main__":
    main()
