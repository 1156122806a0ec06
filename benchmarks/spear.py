"""SPEAR on batches with more examples than classes: what is exact, what is refused, and how long.

    python benchmarks/spear.py DATA [--seeds 3] [--only GROUP ...] [--show] [--confusion 0]

DATA is a folder with cifar10.npz, cifar100.npz and tiny_imagenet_val.npz; points without their data
are left out. Each point is attacked once a seed, which draws network and batch; labels are as they
come, and not granted to spear. Rows are appended to docs/results/rows/spear.csv, those that are
there are not computed again, and the table of all rows is printed. `--show` prints it alone.
Seconds are CPU seconds of one thread, refusals included. `--confusion` attacks so many batches of
12, 16 and 24 digits each, without noise and with little, and counts claims beside right ones alone.
"""

import argparse
import csv
import functools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from data_sets import READERS, Set
from torch import Tensor

from fedsim import testing
from fedsim.engine.process import one_thread
from fedsim.metrics.images import match
from fedsim.plugin import make
from fedsim.records import Observation
from fedsim.seeds import isolated, torch_generator
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

ROWS = Path(__file__).parent.parent / "docs" / "results" / "rows" / "spear.csv"
COLUMNS = (
    "group", "point", "attack", "size", "seed", "exact", "worst_error", "claimed", "mismatch",
    "searches", "seconds", "refusal",
)  # fmt: skip
EXACT = 1e-6
"""Mean squared error of an input that counts as exact; values are in [0, 1], or have variance 1."""

FOUND = 1e-3
"""Mean squared error of the worst input of a claim that counts as right, of noisy gradients."""

WIDE = (200,) * 5
"""The hidden layers of SPEAR's experiments."""


@dataclass(frozen=True)
class Point:
    """One setting: its group of the table, and what distinguishes it there.

    Attributes:
        data: Its data set, see `READERS`.
        classes: Classes of the network; labels are taken modulo these.
        size: Examples of a batch.
        hidden: Units of the hidden layers.
        attack: The adversary.
        settings: Its settings.
        trained: Epochs that the network was trained on 800 examples, from which batches come.
        change: "float16", "bfloat16", or the size of Gaussian noise relative to each parameter's
            root mean square.
    """

    group: str
    name: str
    data: str
    classes: int
    size: int
    hidden: tuple[int, ...]
    attack: str = "spear"
    settings: dict[str, Any] = field(default_factory=dict)
    trained: int = 0
    change: str = ""

    @property
    def title(self) -> str:
        """The adversary and its settings."""
        return " ".join([self.attack, *self.settings.values()])


SETTINGS: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "digits, 64-256-10": ("digits", 10, (256,)),
    "CIFAR-10, 3072-200x5-10": ("cifar10", 10, WIDE),
    "CIFAR-100, 3072-200x5-100": ("cifar100", 100, WIDE),
    "Tiny ImageNet, 12288-200x5-200": ("tiny", 200, WIDE),
    "Tiny ImageNet, 12288-1000x5-200": ("tiny", 200, (1000,) * 5),
    "breast cancer, 30-64-2": ("tumours", 2, (64,)),
    "breast cancer, 30-256-2": ("tumours", 2, (256,)),
}
SIZES = {
    "digits, 64-256-10": (8, 16, 24, 32, 40, 48),
    "CIFAR-10, 3072-200x5-10": (8, 16, 24, 32, 40),
    "CIFAR-100, 3072-200x5-100": (16, 24, 32, 40, 50),
    "Tiny ImageNet, 12288-200x5-200": (20, 32, 40, 50, 60),
    "breast cancer, 30-64-2": (4, 8, 12),
    "breast cancer, 30-256-2": (4, 8, 12, 16, 24),
    "Tiny ImageNet, 12288-1000x5-200": (100, 200),
}


def points() -> Iterator[Point]:
    """All settings, group by group."""
    for name, sizes in SIZES.items():
        for size in sizes:
            yield Point("batch", name, *_setting(name, size))
    for name in ("digits, 64-256-10", "CIFAR-10, 3072-200x5-10"):
        for size in (4, 8):
            yield Point("beside", name, *_setting(name, size), "exact-batch")
        for size in (4, 8, 16, 32):
            yield Point("beside", name, *_setting(name, size), "first-linear")
    for name in ("digits, 64-256-10", "Tiny ImageNet, 12288-200x5-200"):
        for search in ("sampling", "dictionary"):
            for size in (4, 8, 12):
                yield Point("search", name, *_setting(name, size), "spear", {"search": search})
    for epochs in (5, 50, 200):
        for size in (4, 8, 16):
            name = "digits, 64-256-10"
            yield Point(
                "training", f"{name}, {epochs} epochs", *_setting(name, size), trained=epochs
            )
    for change in ("float16", "bfloat16", "1e-5", "1e-4", "1e-3", "1e-2"):
        name = "digits, 64-256-10"
        yield Point("noise", f"{name}, {change}", *_setting(name, 12), change=change)


def _setting(name: str, size: int) -> tuple[str, int, int, tuple[int, ...]]:
    data, classes, hidden = SETTINGS[name]
    return data, classes, size, hidden


def observed(point: Point, data: Set, seed: int) -> tuple[Observation, Tensor]:
    """The gradient of one batch, and its inputs."""
    inputs, labels = data.images, data.labels
    shape = tuple(inputs.shape[1:])
    architecture = as_architecture({"name": "mlp", "hidden": list(point.hidden)})
    with isolated(seed, "benchmark"):
        model = VictimModel(
            architecture.build(shape, point.classes), head="head", loss=cross_entropy
        )
    order = torch.randperm(len(labels), generator=torch_generator(seed, "batch"))
    optimizer = torch.optim.Adam(model.module.parameters(), lr=1e-3)
    for epoch in range(point.trained):
        rng = torch_generator(epoch, "order")
        for part in order[:800][torch.randperm(800, generator=rng)].split(32):
            optimizer.zero_grad()
            model.loss(inputs[part], labels[part]).backward()
            optimizer.step()
    chosen = order[: point.size]
    gradient = {
        name: _changed(value.detach(), point.change, seed)
        for name, value in model.gradient(inputs[chosen], labels[chosen]).items()
    }
    seen = testing.observation(
        gradient=gradient,
        spec=data.spec,
        model=model,
        num_examples=point.size,
        labels=labels[chosen].sort().values,
        steps=1,
    )
    return seen, inputs[chosen]


def _changed(value: Tensor, change: str, seed: int) -> Tensor:
    """A gradient as it is sent."""
    if change in ("float16", "bfloat16"):
        return value.to(getattr(torch, change)).float()
    noise = torch.randn(value.shape, generator=torch_generator(seed, "noise"))
    return value + float(change or 0) * value.square().mean().sqrt() * noise


def attacked(point: Point, data: Set, seed: int) -> dict[str, Any]:
    """The row of one batch."""
    seen, inputs = observed(point, data, seed)
    settings = dict(point.settings)
    if point.attack == "exact-batch":
        settings["labels_from"] = "given"
    attack, start = make("adversaries", point.attack, settings), time.process_time()
    row: dict[str, Any] = {"group": point.group, "point": point.name, "size": point.size}
    row |= {"attack": point.title, "seed": seed}
    try:
        claimed = attack.reconstruct(seen, testing.job(seed=seed))
    except ValueError as error:
        row |= {"claimed": False, "exact": 0.0, "refusal": str(error)[:100]}
    else:
        found = claimed.inputs or []
        pairs = [
            (found[i], one) for one, i in zip(inputs, match(found, inputs), strict=True) if i >= 0
        ]
        errors = [float((ours - one).square().mean()) for ours, one in pairs]
        right = sum(error < EXACT for error in errors) / point.size
        row |= {"claimed": True, "exact": right, "worst_error": max(errors)}
        row |= {key: claimed.diagnostics.get(key) for key in ("mismatch", "searches")}
    return row | {"seconds": round(time.process_time() - start, 2)}


def table(rows: list[dict[str, str]]) -> str:
    """The rows of each point together, as Markdown."""
    lines = [
        "| | Attack | Batch | Batches exact | Images exact | Refused | Claimed, not exact | "
        "Largest error | Largest mismatch | CPU seconds: median, most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for point in points():
        key = point.group, point.name, point.title, str(point.size)
        some = [r for r in rows if (r["group"], r["point"], r["attack"], r["size"]) == key]
        if not some:
            continue
        exact = [float(r["exact"]) for r in some]
        counts = Counter((r["claimed"] == "True", float(r["exact"]) == 1) for r in some)
        seconds = [float(r["seconds"]) for r in some]
        worst, missed = (
            max((float(r[name]) for r in some if r[name]), default=None)
            for name in ("worst_error", "mismatch")
        )
        cells = [
            key[1],
            key[2],
            key[3],
            f"{counts[True, True]} of {len(some)}",
            f"{100 * sum(exact) / len(some):.0f} %",
            f"{sum(r['claimed'] == 'False' for r in some)}",
            f"{counts[True, False]}",
            "" if worst is None else f"{worst:.0e}",
            "" if missed is None else f"{missed:.0e}",
            f"{median(seconds):.2f}, {max(seconds):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def confusion(batches: int, folder: Path) -> None:
    """Print how many claims there are, and how many of them are right."""
    name = "digits, 64-256-10"
    data = READERS["digits"](folder)
    for change in ("", "1e-6", "1e-5"):
        counts: Counter[tuple[bool, bool]] = Counter()
        worst = [0.0]
        for size in (12, 16, 24):
            point = Point("confusion", name, *_setting(name, size), change=change)
            for seed in range(batches):
                row = attacked(point, data, 1000 + seed)
                counts[row["claimed"], row.get("worst_error", 1.0) < FOUND] += 1
                worst.append(row.get("worst_error", 0.0))
        print(
            f"noise {change or 0}: {counts[True, True]} claimed and right, {counts[True, False]} "
            f"claimed and wrong, {counts[False, False]} refused, largest error {max(worst):.1e}"
        )


def main() -> None:
    """Compute the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with the .npz files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="groups to compute")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--confusion", type=int, default=0)
    chosen = parser.parse_args()
    one_thread()
    if chosen.confusion:
        confusion(chosen.confusion, chosen.data)
        return
    rows = list(csv.DictReader(ROWS.open())) if ROWS.exists() else []
    done = {(r["group"], r["point"], r["attack"], r["size"], r["seed"]) for r in rows}
    read = functools.cache(lambda name: READERS[name](chosen.data))
    for point in () if chosen.show else points():
        if chosen.only and point.group not in chosen.only:
            continue
        for seed in range(chosen.seeds):
            if (point.group, point.name, point.title, str(point.size), str(seed)) in done:
                continue
            try:
                data = read(point.data)
            except FileNotFoundError:  # a point without its data is left out
                break
            row = attacked(point, data, seed)
            ROWS.parent.mkdir(parents=True, exist_ok=True)
            with ROWS.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                if not file.tell():
                    writer.writeheader()
                writer.writerow(row)
            print(row, flush=True)
    if ROWS.exists():
        print(table(list(csv.DictReader(ROWS.open()))))


if __name__ == "__main__":
    main()
