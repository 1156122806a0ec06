"""What exact-batch tells about federations: sizes, networks, training, local steps and defenses.

    python benchmarks/exact_batch_study.py DATA [--seeds 5] [--only GROUP ...] [--show]

DATA is a folder with cifar100.npz and tiny_imagenet_val.npz; points without their data are left
out. Each point is attacked once a seed, which draws network and batch. Rows are appended to
docs/results/rows/exact-batch.csv, those that are there are not computed again, and the table of all
rows is printed. `--show` prints it alone.

Labels are granted. Where the attack refuses, it is repeated without its self-check, so that a row
shows what could be seen, and `claimed` whether the attack vouches for it. Seconds are those of one
CPU thread, both attempts together.
"""

import argparse
import csv
import functools
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from data_sets import READERS, Set
from torch import Tensor, nn

from fedsim import testing
from fedsim.defense import MeanGradient, Training
from fedsim.engine.process import one_thread
from fedsim.gradients import head_calls
from fedsim.metric import Measure
from fedsim.metrics.features import errors
from fedsim.metrics.images import match
from fedsim.plugin import make
from fedsim.records import Batch, Reconstruction, Truth
from fedsim.report.intervals import estimate
from fedsim.seeds import isolated, torch_generator
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.threat import to_gradient
from fedsim.training.local import batch_loss, protect, train_locally
from fedsim.victim import VictimModel

ROWS = Path(__file__).parent.parent / "docs" / "results" / "rows" / "exact-batch.csv"
COLUMNS = (
    "group", "point", "seed", "examples", "classes", "repeats", "accuracy", "exact", "visible",
    "median_error", "worst_error", "claimed", "check", "seconds", "refusal",
)  # fmt: skip
EXACT, VISIBLE, FEATURE = 1e-6, 1e-2, 1e-2
"""Mean squared errors of an image, and the relative error of a feature vector, that count."""
TOLERANCES = (1e-3, 0.999)
STEPS = 50
CLIENT = 800
"""Images that the network is trained on, and batches come from."""


@dataclass(frozen=True)
class Point:
    """One setting.

    Attributes:
        group: The part of the table.
        name: What distinguishes it there.
        data: Its data set, see `READERS`.
        size: Examples of a batch.
        hidden: Units of the hidden layers of a perceptron.
        activation: Makes its activation functions.
        model: Another network, of which features are recovered alone.
        trained: Steps of training before the attacked round.
        local: Local steps, each with a batch of its own.
        lr: Learning rate of local steps; 0: the gradient is sent.
        smoothing: Label smoothing of the client's loss.
        defense: Settings of the client's defense.
    """

    group: str
    name: str
    data: str = "cifar100"
    size: int = 8
    hidden: tuple[int, ...] = (256,)
    activation: Callable[[], nn.Module] = nn.ReLU
    model: str = ""
    trained: int = 0
    local: int = 1
    lr: float = 0.0
    smoothing: float = 0.0
    defense: dict[str, Any] = field(default_factory=dict)


def points() -> Iterator[Point]:
    """All settings, group by group."""
    for size in (4, 6, 8, 9):
        yield Point("batch", f"10 classes, {size}", "digits", size)
    for size in (8, 16, 32, 64, 80):
        yield Point("batch", f"100 classes, {size}", size=size)
    for size in (32, 64):
        yield Point("batch", f"200 classes, {size}", "tiny", size)
    for size in (32, 64, 128):
        yield Point("batch", f"1000 classes, {size}", "thousand", size)
    for data, classes, values, size in (("tumours", 2, 30, 1), ("wine", 3, 13, 2)):
        yield Point("table", f"{classes} classes, {values} values, {size}", data, size)
    for width in (24, 32, 64, 1024):
        yield Point("width", f"{width} units", size=16, hidden=(width,))
    for depth in (2, 3, 4):
        yield Point("depth", f"{depth} hidden layers", size=16, hidden=(256,) * depth)
    for activation in (nn.Sigmoid, nn.Tanh, nn.ELU, nn.LeakyReLU):
        yield Point("activation", activation.__name__, size=16, activation=activation)
    for steps in (50, 200, 500, 1000, 2000, 4000):
        yield Point("training", f"{steps} steps", size=16, trained=steps)
    for name, settings in DEFENSES.items():
        yield Point("defense", name, defense=settings)
    for share in (0.01, 0.1):
        yield Point("loss", f"label smoothing {share:g}", smoothing=share)
    for size in (8, 16, 32):
        yield Point("features", f"ResNet-20 with BatchNorm, {size}", size=size, model="resnet20")
    for local, lr in ((1, 0.1), (1, 0.001), (2, 0.1), (2, 0.01), (2, 0.001), (4, 0.1), (4, 0.01)):
        yield Point("local steps", f"{local} of 4, lr {lr:g}", size=4, local=local, lr=lr)


DEFENSES: dict[str, dict[str, Any]] = {
    "float16": {"name": "half-precision", "format": "fp16"},
    "bfloat16": {"name": "half-precision", "format": "bf16"},
    "int8": {"name": "int8"},
    "QSGD, 16 levels": {"name": "qsgd"},
    **{f"top-k, {k:.0%} kept": {"name": "top-k", "k": k} for k in (0.9, 0.5, 0.1)},
    "gradient dropping, 10 %": {"name": "grad-drop", "rate": 0.1},
    "sign": {"name": "sign"},
    "dropout, 10 %": {"name": "dropout", "rate": 0.1},
    **{
        f"Gaussian noise, {sigma:g}": {"name": "gaussian-noise", "sigma": sigma}
        for sigma in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    },
    "DP-SGD, clip 10, no noise": {"name": "dp-sgd", "clip": 10.0, "noise_multiplier": 0.0},
    "DP-SGD, clip 1, no noise": {"name": "dp-sgd", "clip": 1.0, "noise_multiplier": 0.0},
}  # fmt: skip


def network(point: Point, data: Set, seed: int) -> nn.Module:
    """The network in training mode, untrained."""
    shape = tuple(data.images.shape[1:])
    with isolated(seed, "benchmark"):
        if point.model:
            return as_architecture(point.model).build(shape, data.classes).train()
        layers: list[nn.Module] = []
        inputs = data.images[0].numel()
        for units in point.hidden:
            layers += [nn.Linear(inputs, units), point.activation()]
            inputs = units
        head = nn.Linear(inputs, data.classes)
        hidden = nn.Sequential(*layers)
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), hidden=hidden, head=head)).train()


def train(module: nn.Module, data: Set, steps: int, rng: torch.Generator) -> float:
    """Train on `CLIENT` images with Adam, 32 a step; returns the accuracy on them."""
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    images, labels = data.images[:CLIENT], data.labels[:CLIENT]
    for _ in range(steps):
        chosen = torch.randint(len(labels), (32,), generator=rng)
        optimizer.zero_grad()
        cross_entropy(module, images[chosen], labels[chosen]).backward()
        optimizer.step()
    with torch.no_grad():
        return float((module(images).argmax(dim=1) == labels).float().mean())


def attack(point: Point, data: Set, seed: int) -> dict[str, Any]:
    """Attack one update; returns a row."""
    module = network(point, data, seed)
    rng = torch_generator(seed, "batch")
    accuracy = train(module, data, point.trained, rng) if point.trained else None
    model = VictimModel(module, head="head", loss=cross_entropy).copy()
    before = {name: value.detach().clone() for name, value in module.state_dict().items()}
    count = point.size * point.local
    among = CLIENT if point.trained else len(data.labels)
    chosen = torch.randperm(among, generator=rng)[:count]
    images, labels = data.images[chosen], data.labels[chosen]
    features = None
    if point.model:
        copy = model.copy()
        with torch.no_grad(), head_calls(copy) as calls:
            copy.module(images)
        features = calls[0][0]
    truth = Truth(inputs=list(images), labels=labels, features=features)

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        if point.smoothing:
            smooth = nn.functional.cross_entropy
            return smooth(net(batch.inputs), batch.labels, label_smoothing=point.smoothing)
        return batch_loss(cross_entropy, net, batch)

    names = frozenset(name for name, _ in module.named_parameters())
    groups = zip(images.split(point.size), labels.split(point.size), strict=True)
    training = Training(
        module=module,
        batches=tuple(Batch(*group) for group in groups),
        loss=loss,
        gradient=MeanGradient(loss, names),
        algorithm="fedavg" if point.lr else "fedsgd",
        lr=point.lr or 1.0,
        momentum=0.0,
        weight_decay=0.0,
        rng=rng,
    )
    defenses = [make("defenses", **_named(point.defense))] if point.defense else []
    with isolated(seed, "client"):
        for defense in defenses:
            training = defense.prepare(training)
        update, _ = train_locally(training, before, trained=names)
        sent = protect(update, before, defenses, (seed, 1, 0), {})
    gradient, _ = to_gradient(sent, before, lr=point.lr or None, steps=point.local)
    seen = testing.observation(
        gradient=gradient,
        spec=data.spec,
        model=model,
        num_examples=count,
        labels=labels.sort().values,
        steps=point.local,
        lr=point.lr or None,
    )
    row = {
        "group": point.group,
        "point": point.name,
        "seed": seed,
        "examples": count,
        "classes": data.classes,
        "repeats": count - len(set(labels.tolist())),
        "accuracy": "" if accuracy is None else f"{accuracy:.3f}",
    }
    name = "feature-separation" if point.model else "exact-batch"
    row |= {"claimed": 0, "check": "", "refusal": ""}
    missed = torch.ones(count)
    start = time.process_time()
    for tolerance in TOLERANCES:
        settings = {"labels_from": "given", "tolerance": tolerance, "steps": STEPS}
        if tolerance != TOLERANCES[0]:
            settings["most_expected_error"] = float("inf")
        try:
            claim = make("adversaries", name, settings).reconstruct(seen, testing.job(seed=seed))
        except ValueError as error:
            row["refusal"] = row["refusal"] or str(error)[:90]
            continue
        row["claimed"] = int(tolerance == TOLERANCES[0])
        notes = claim.diagnostics
        row["check"] = f"{max(notes['residual'], notes.get('mismatch', 0.0)):.1e}"
        missed = errors(claim, truth) if point.model else _image_errors(claim, images)
        break
    row["seconds"] = f"{time.process_time() - start:.2f}"
    row["exact"] = f"{float((missed < (FEATURE if point.model else EXACT)).float().mean()):.4f}"
    row["visible"] = "" if point.model else f"{float((missed < VISIBLE).float().mean()):.4f}"
    row["median_error"], row["worst_error"] = f"{missed.median():.1e}", f"{missed.max():.1e}"
    return row


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `make` for a table with a name."""
    return {
        "name": settings["name"],
        "settings": {k: v for k, v in settings.items() if k != "name"},
    }


def _image_errors(claim: Reconstruction, images: Tensor) -> Tensor:
    """The mean squared error of each image (B,), 1 where none is claimed."""
    claimed = claim.inputs or []
    pairs = zip(images, match(claimed, images), strict=True)
    found = [float((claimed[i] - one).square().mean()) if i >= 0 else 1.0 for one, i in pairs]
    return torch.tensor(found).clamp(max=1.0)


def _share(rows: list[dict[str, str]], column: str) -> str:
    """The mean of a share, with its interval where seeds differ; "" where no row has it."""
    values = [float(row[column]) for row in rows if row[column]]
    if not values:
        return ""
    how = Measure(column, kind="share")
    found = estimate(values, range(len(values)), how)
    return (replace(found, low=None) if found.low == found.high else found).show(how)


def show(rows: list[dict[str, str]]) -> None:
    """Print the table of all points with rows."""
    print("| | Exact | Below 0.01 | Batches claimed: right, wrong | Largest check | Seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    group = ""
    for point in points():
        held = [row for row in rows if (row["group"], row["point"]) == (point.group, point.name)]
        if not held:
            continue
        if point.group != group:
            print(f"| **{(group := point.group)}** | | | | | |")
        shares = [_share(held, column) for column in ("exact", "visible")]
        claims = [row for row in held if row["claimed"] == "1"]
        right = sum(float(row["exact"]) == 1 for row in claims)
        checks = [float(row["check"]) for row in claims]
        name = point.name
        if point.trained:
            reached = [float(row["accuracy"]) for row in held]
            name += f", accuracy {sum(reached) / len(reached):.0%}"
        seconds = sorted(float(row["seconds"]) for row in held)[len(held) // 2]
        print(
            f"| {name} | {shares[0]} | {shares[1]} | {right}, {len(claims) - right} of "
            f"{len(held)} | {f'{max(checks):.0e}' if checks else ''} | {seconds:.2g} |"
        )


def main() -> None:
    """Compute the rows that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with cifar100.npz, tiny_imagenet_val.npz")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="groups, such as batch")
    parser.add_argument("--show", action="store_true", help="print the table alone")
    chosen = parser.parse_args()
    one_thread()
    rows = [*csv.DictReader(ROWS.open(encoding="utf-8"))] if ROWS.is_file() else []
    done = {(row["group"], row["point"], int(row["seed"])) for row in rows}
    read = functools.cache(lambda name: READERS[name](chosen.data))
    for seed, point in itertools.product(range(0 if chosen.show else chosen.seeds), points()):
        wanted = not chosen.only or point.group in chosen.only
        if not wanted or (point.group, point.name, seed) in done:
            continue
        try:
            data = read(point.data)
        except FileNotFoundError as missing:
            print(f"{point.group}, {point.name}: left out, {missing.filename} is missing")
            continue
        row = attack(point, data, seed)
        with ROWS.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
        rows.append({key: str(value) for key, value in row.items()})
        print(*row.values(), flush=True)
    show(rows)


if __name__ == "__main__":
    main()
