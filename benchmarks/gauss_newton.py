"""dlg at DLG's LeNet with and without known features, and what batches its gradient determines.

    python benchmarks/gauss_newton.py lenet DATA [--sizes 1 2 3] [--batches 2] [--iterations 80]
    python benchmarks/gauss_newton.py ranks [--sizes 1 2]
    python benchmarks/gauss_newton.py resnet DATA [--sizes 8 16 32] [--iterations 60]

DATA is a folder with cifar100.npz. Networks are untrained, with 100 classes; updates are float32
gradients of one batch of CIFAR-100 images with distinct labels. Seconds are CPU seconds of one
thread.

lenet: mean squared errors of L-BFGS (labels by llg, so many iterations of 20 evaluations, one
start), L-BFGS with the features as a further term, and Gauss-Newton with known features, with and
without a prior. ranks: the rank of the derivatives of all equations at random images, float64, with
singular values above 1e-6 of the largest. resnet: inverting-gradients at a ResNet-20 in training
mode, without and with known features.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adversaries import DLG
from adversaries.inputs.known_features import KnownBatch
from adversaries.inputs.known_features.distance import FeatureDistance
from adversaries.inputs.known_features.equations import BatchEquations
from adversaries.inputs.known_features.smoothness import usual_directions
from fedsim import testing
from fedsim.adversary import Adversary, Job
from fedsim.engine.process import one_thread
from fedsim.gradients import LBFGS, Match, Problem, Rules, head_calls, minimise
from fedsim.metrics import METRICS
from fedsim.plugin import make
from fedsim.records import Observation, Truth
from fedsim.seeds import isolated, torch_generator
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

FEATURES = {"features_from": "feature-separation"}
SPEC = ImageSpec(100, (3, 32, 32))


class WithFeatures(DLG):
    """L-BFGS on the gradient's distance and that of the features, both as shares."""

    def known(self, seen: Observation, job: Job) -> KnownBatch:
        """What feature-separation finds."""
        return KnownBatch.found_by(make("adversaries", "feature-separation", {}), seen, job)

    def match(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        seen: Sequence[Observation],
        known: Sequence[KnownBatch | None],
    ) -> list[Match]:
        """Minimise the sum by L-BFGS."""
        features = FeatureDistance(problem.model, [one for one in known if one is not None])
        scale = torch.tensor(problem.scales, dtype=problem.dtype)

        def objective(points: Tensor, victims: Tensor) -> Tensor:
            with head_calls(problem.model) as calls:
                value = problem(points, victims) / scale[victims]
            return value + features(calls, victims)

        return minimise(
            objective,
            lambda victim: problem.start(victim, jobs[victim].rng),
            jobs,
            lambda starts: LBFGS(starts, history=self.history, backtracking=True),
            [Rules(iterations=self.iterations, matched=1e-12)] * len(jobs),
        )


def pictures(folder: Path) -> tuple[Tensor, Tensor]:
    """CIFAR-100 test images (N, 3, 32, 32) in [0, 1] and their labels."""
    stored = np.load(folder / "cifar100.npz")
    images = torch.from_numpy(stored["x_test"]).float() / 255
    images = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
    return images.contiguous(), torch.from_numpy(stored["y_test"]).long().flatten()


def network(name: str, seed: int) -> VictimModel:
    """A new network."""
    with isolated(seed, "benchmark"):
        module = as_architecture(name).build(SPEC.input_shape, SPEC.classes)
    return VictimModel(module, head="head", loss=cross_entropy, spec=SPEC)


def batch(
    name: str, images: Tensor, labels: Tensor, size: int, seed: int
) -> tuple[Observation, Truth]:
    """A batch with distinct labels, and its gradient at a new network."""
    order = torch.randperm(len(images), generator=torch_generator(seed, "batch")).tolist()
    firsts = {int(labels[index]): index for index in reversed(order)}
    chosen = sorted(firsts.values(), key=order.index)[:size]
    model = network(name, seed)
    kept = {key: value.clone() for key, value in model.module.state_dict().items()}
    sent = model.gradient(images[chosen], labels[chosen])
    model.module.load_state_dict(kept)  # running statistics
    seen = testing.observation(
        gradient={key: value.detach() for key, value in sent.items()},
        spec=SPEC,
        model=model,
        num_examples=size,
        steps=1,
    )
    return seen, Truth(inputs=list(images[chosen]), labels=labels[chosen])


def measure(title: str, attack: Adversary, cases: Sequence[tuple[Observation, Truth]]) -> None:
    """Attack batches, and print their errors and seconds."""
    errors, seconds = list[str](), list[str]()
    for seed, (seen, truth) in enumerate(cases):
        start = time.process_time()
        try:
            claimed = attack.reconstruct(seen, testing.job(seed=seed))
        except ValueError as refused:
            errors.append(f"refused ({refused})")
            continue
        seconds.append(f"{time.process_time() - start:.0f}")
        scores = [METRICS[name].score(claimed, truth, SPEC) for name in ("mse", "ssim")]
        errors.append("MSE {:.1e} SSIM {:.3f}".format(*scores))
        print(f"  {title}: {errors[-1]}, {seconds[-1]} s", flush=True)


def lenet(chosen: argparse.Namespace) -> None:
    """dlg with and without features."""
    data = pictures(chosen.data)
    attacks: dict[str, Callable[[], Adversary]] = {
        "Gauss-Newton, prior smooth": lambda: make("adversaries", "dlg", FEATURES),
        "Gauss-Newton, prior none": lambda: make(
            "adversaries", "dlg", {**FEATURES, "prior": "none"}
        ),
        "L-BFGS": lambda: DLG(labels_from="llg", iterations=chosen.iterations, restarts=0),
        "L-BFGS with features": lambda: WithFeatures(iterations=chosen.iterations),
    }
    for size in chosen.sizes:
        cases = [batch("lenet-sigmoid", *data, size, seed) for seed in range(chosen.batches)]
        print(f"B = {size}", flush=True)
        for title, attack in attacks.items():
            if not chosen.only or chosen.only in title:
                measure(title, attack(), cases)


def resnet(chosen: argparse.Namespace) -> None:
    """inverting-gradients with and without features."""
    data = pictures(chosen.data)
    for size in chosen.sizes:
        cases = [batch("resnet20", *data, size, seed) for seed in range(chosen.batches)]
        print(f"B = {size}, {chosen.iterations} iterations", flush=True)
        settings: dict[str, Any] = {"iterations": chosen.iterations, "restarts": 0}
        for title, more in (("without features", {}), ("with features", FEATURES)):
            measure(title, make("adversaries", "inverting-gradients", settings | more), cases)


def ranks(chosen: argparse.Namespace) -> None:
    """Unknowns of a batch, and the rank of its equations at random images."""
    for size in chosen.sizes:
        rng = torch_generator(size, "ranks")
        images = torch.rand(size, *SPEC.input_shape, generator=rng)
        labels = torch.randperm(SPEC.classes, generator=rng)[:size]
        seen, _ = batch("lenet-sigmoid", images, labels, size, 0)
        known = KnownBatch.found_by(make("adversaries", "feature-separation", {}), seen, Job(rng))
        order = [labels.tolist().index(label) for label in known.labels.tolist()]
        equations = BatchEquations(
            seen.model, seen.gradient, dict.fromkeys(seen.gradient, 1.0), known, SPEC.input_shape
        )
        directions, start = usual_directions(SPEC.input_shape, smooth=False), time.process_time()
        matrix = torch.zeros(equations.number, size * len(directions), dtype=torch.float64)
        width = equations.features
        for number, at in enumerate(images[order].double()):
            own = equations.slopes(number, at, directions, exact=True).T
            columns = slice(number * len(directions), (number + 1) * len(directions))
            matrix[number * width : (number + 1) * width, columns] = own[:width]
            matrix[size * width :, columns] = own[width:]
        values = torch.linalg.eigvalsh(matrix.T @ matrix).clamp(min=0).sqrt()
        levels = {level: int((values > level * values[-1]).sum()) for level in (1e-5, 1e-6, 1e-7)}
        print(
            f"B = {size}: {matrix.shape[1]:,} unknown values, {len(matrix):,} equations, rank "
            f"{levels[1e-6]:,} ({levels[1e-5]:,} above 1e-5, {levels[1e-7]:,} above 1e-7), "
            f"{time.process_time() - start:.0f} s",
            flush=True,
        )


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(required=True)
    for part, sizes in ((lenet, [1, 2, 3]), (resnet, [8, 16, 32]), (ranks, [1, 2])):
        own = parts.add_parser(part.__name__, help=part.__doc__)
        own.set_defaults(part=part)
        own.add_argument("--sizes", type=int, nargs="+", default=sizes, help="examples in a batch")
        if part is ranks:
            continue
        own.add_argument("data", type=Path, help="folder with cifar100.npz")
        own.add_argument("--batches", type=int, default=2 if part is lenet else 1)
        own.add_argument("--iterations", type=int, default=80 if part is lenet else 60)
        if part is lenet:
            own.add_argument("--only", default="", help="attacks whose title holds this")
    chosen = parser.parse_args()
    one_thread()
    chosen.part(chosen)


if __name__ == "__main__":
    main()
