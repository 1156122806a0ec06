"""Whole batches from one gradient: how many are exact, and whether the residual knows.

    python benchmarks/exact_batch.py DATA [--batches 6] [--sizes 8 16 24 32] [--labels given llg]

DATA is a folder with cifar100.npz (without it, only digits are attacked). Batches are drawn with
their labels as they come; networks are untrained, one for each batch. Lines give the share of
batches of which all images (mean squared error below 1e-6) or features (relative error below 0.01)
are right, the largest error, the largest self-check of a claim, and the seconds of an attack on one
CPU thread. The last table counts claims and refusals beside right and wrong ones; an attack that
refuses names no examples.
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from data_sets import Set, cifar, digits
from torch import nn

from fedsim import testing
from fedsim.adversary import Adversary
from fedsim.engine.process import one_thread
from fedsim.gradients import head_calls
from fedsim.metrics.features import errors
from fedsim.metrics.images import match
from fedsim.plugin import make
from fedsim.records import Observation, Truth
from fedsim.seeds import isolated, torch_generator
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

EXACT = 1e-6
"""Mean squared error of the worst image of a batch that counts as exact, pixels in [0, 1]."""


def victim(data: Set, model: dict[str, Any], seed: int) -> VictimModel:
    """An untrained network in training mode."""
    with isolated(seed, "benchmark"):
        module: nn.Module = as_architecture(model).build(tuple(data.images.shape[1:]), data.classes)
    return VictimModel(module, head="head", loss=cross_entropy)


def observed(data: Set, model: dict[str, Any], size: int, seed: int) -> tuple[Observation, Truth]:
    """The gradient of one batch, and the batch with its features."""
    net = victim(data, model, seed)
    chosen = torch.randperm(len(data.labels), generator=torch_generator(seed, "batch"))[:size]
    images, labels = data.images[chosen], data.labels[chosen]
    with head_calls(net) as calls:
        gradient = net.gradient(images, labels)
    seen = testing.observation(
        gradient={name: value.detach() for name, value in gradient.items()},
        spec=data.spec,
        model=victim(data, model, seed),
        num_examples=size,
        labels=labels.sort().values,
        steps=1,
    )
    return seen, Truth(inputs=list(images), labels=labels, features=calls[0][0].detach())


def worst(claimed: Any, truth: Truth) -> float:
    """The error of the worst example: of images if they are claimed, else of features."""
    if claimed.inputs is None:
        return float(errors(claimed, truth).max())
    originals = torch.stack(list(truth.inputs or ()))
    found = match(claimed.inputs, originals)
    pairs = zip(originals, found, strict=True)
    return max(float((claimed.inputs[i] - one).square().mean()) for one, i in pairs)


def measure(
    title: str, attack: Adversary, data: Set, model: dict[str, Any], size: int, batches: int
) -> Counter[tuple[bool, bool]]:
    """Attack batches and print their line; count (claimed, right)."""
    counts: Counter[tuple[bool, bool]] = Counter()
    found, checks, seconds, repeats = [0.0], [0.0], [], []
    for seed in range(batches):
        seen, truth = observed(data, model, size, seed)
        bound = EXACT if "inputs" in attack.recovers else 1e-2
        repeats.append(size - len(set(truth.labels.tolist())))  # type: ignore[union-attr]
        start = time.perf_counter()
        try:
            claimed = attack.reconstruct(seen, testing.job(seed=seed))
        except ValueError:
            seconds.append(time.perf_counter() - start)
            # What it would have claimed without its self-check.
            limits = {"tolerance": 0.999, "most_expected_error": float("inf")}
            known = {key: limits[key] for key in limits.keys() & type(attack).model_fields.keys()}
            bold = attack.model_copy(update=known)
            try:
                claimed = bold.reconstruct(seen, testing.job(seed=seed))
                counts[False, worst(claimed, truth) < bound] += 1
            except ValueError:
                counts[False, False] += 1
            continue
        seconds.append(time.perf_counter() - start)
        error = worst(claimed, truth)
        counts[True, error < bound] += 1
        found.append(error)
        notes = claimed.diagnostics
        checks.append(max(notes["residual"], notes.get("mismatch", 0.0)))
    middle = sorted(seconds)[len(seconds) // 2]
    print(
        f"{title}, B = {size}: {counts[True, True]} of {batches} right, {counts[True, False]} "
        f"claimed and wrong, repeats {min(repeats)} to {max(repeats)}, largest error "
        f"{max(found):.1e}, largest check {max(checks):.1e}, {middle:.2f} s "
        f"(at most {max(seconds):.2f} s)",
        flush=True,
    )
    return counts


def main() -> None:
    """Print a line for each network and batch size, and the confusion of the self-check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with cifar100.npz")
    parser.add_argument("--batches", type=int, default=6, help="batches of each kind")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 24, 32])
    parser.add_argument("--labels", nargs="+", default=["given", "llg"], help="for digits")
    chosen = parser.parse_args()
    one_thread()
    total: Counter[tuple[bool, bool]] = Counter()
    small = digits()
    for size in (4, 6, 8, 9):
        for source in chosen.labels:
            attack = make("adversaries", "exact-batch", {"labels_from": source})
            title = f"digits, 64-256-10, labels by {source}"
            total += measure(title, attack, small, {"name": "mlp"}, size, chosen.batches)
    if (chosen.data / "cifar100.npz").is_file():
        large = cifar(chosen.data)
        for hidden in ([256], [512, 256]):
            for size in chosen.sizes:
                attack = make("adversaries", "exact-batch", {"labels_from": "given"})
                title = f"CIFAR-100, 3072-{'-'.join(map(str, hidden))}-100"
                net = {"name": "mlp", "hidden": hidden}
                total += measure(title, attack, large, net, size, chosen.batches)
        for size in chosen.sizes:
            attack = make("adversaries", "feature-separation", {"labels_from": "given"})
            title = "CIFAR-100, features of a ResNet-20"
            total += measure(title, attack, large, {"name": "resnet20"}, size, chosen.batches)
    for claimed in (True, False):
        verb = "claimed" if claimed else "refused"
        print(f"{verb}: {total[claimed, True]} right, {total[claimed, False]} wrong")


if __name__ == "__main__":
    main()
