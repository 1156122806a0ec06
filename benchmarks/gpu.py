"""Attacks and clients on a GPU beside one CPU thread of the same machine: one table of ratios.

    python benchmarks/gpu.py [--device cuda] [--dry] [--only TEXT ...] [--data DIR]

Each line is a scenario that runs twice, with `engine.device` = "cpu" and on the GPU: LAMP on a
model of BERT base's shape, HFGM on DeepSpeech of 2,048 units, DLG on images of 64 x 64,
inverting-gradients on a ResNet-18 with images of 224 x 224, and FedSGD of LLG's CNN and of a
ResNet-18. Models have random weights. Attacks have a budget of iterations, the same on both sides.
Wall-clock time of an attack by its iterations (on the GPU of a second attack, for which it is
warm; fedsim computes with one thread), and of a client in the rounds after the first.

With --dry, the default where there is no GPU, models are tiny, budgets two iterations, and both
sides may be CPUs: every step runs, and the figures mean nothing. Without --data the embedded
digits stand for photographs.
"""

import argparse
import csv
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedsim.engine.process import device_name
from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

IMAGE_ATTACK = {"rounds": 1, "clients": 8, "batch_size": 1, "algorithm": "fedsgd", "lr": 0.1}


def resnet18(*, dry: bool) -> dict[str, Any]:
    """A ResNet-18, or one of its form with a channel or two."""
    sizes = [8, 8, 8, 8] if dry else [64, 128, 256, 512]
    settings = {
        "depths": [1, 1, 1, 1] if dry else [2, 2, 2, 2],
        "hidden_sizes": sizes,
        "embedding_size": sizes[0],
        "layer_type": "basic",
    }
    return {"name": "transformers", "config": "resnet", "settings": settings}


def workloads(photographs: str, *, dry: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What is measured: a name, what one unit of it is, and a scenario's tables."""

    def images(model: Any, size: int) -> dict[str, Any]:
        # All images of a set are resized, and those of CIFAR-100 would need 6 GB at 224 x 224.
        data = photographs if size <= 64 else "digits"
        return {"name": "images", "data": data, "size": size, "model": model}

    def attack(name: str, budget: int, **settings: Any) -> dict[str, Any]:
        plan = {"name": name, "budget": 2 if dry else budget, **settings}
        return {"adversaries": [plan], "threat": {"grants": "full", "timeout": 600.0}}

    yield (
        "dlg, LeNet, 64 x 64, 8 images together",
        "iteration of an image",
        {
            "task": images("lenet", 12 if dry else 64),
            "training": IMAGE_ATTACK,
            **attack("dlg", 4, victims=8),
        },
    )
    for batch in (1, 4):
        yield (
            f"inverting-gradients, ResNet-18, 224 x 224, B = {batch}",
            "iteration",
            {
                "task": images(resnet18(dry=dry), 64 if dry else 224),
                "training": {**IMAGE_ATTACK, "clients": 1, "batch_size": batch},
                **attack("inverting-gradients", 4 // batch + 1, restarts=0),
            },
        )
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = {"name": "transformers", "config": "bert", "settings": shape if dry else {}}
    text = {"name": "text", "data": "messages", "partition": "sender", "vocabulary": 1000}
    yield (
        "lamp, BERT base's shape, a message",
        "iteration",
        {
            "task": {**text, "model": bert},
            "training": {**IMAGE_ATTACK, "clients": 1},
            **attack("lamp", 20, restarts=0, starts=16, candidates=8, permutations=8),
        },
    )
    hidden = 32 if dry else 2048
    speech = {"name": "deepspeech", "hidden": hidden, "recurrent": hidden}
    yield (
        "hfgm, DeepSpeech of 2,048 units",
        "iteration",
        {
            "task": {"name": "speech", "data": "voices", "partition": "speaker", "model": speech},
            "training": {**IMAGE_ATTACK, "clients": 1},
            **attack("hfgm", 3, samples=4 if dry else 128),
        },
    )
    clients = {"rounds": 3, "batch_size": 16, "algorithm": "fedsgd", "lr": 0.1}
    many = {**clients, "rounds": 3 if dry else 20, "clients": 4 if dry else 100}
    for at_once in (0, 25, 100):
        way = f", {at_once} at once" if at_once else ""
        several = {"engine": {"vectorize": at_once}}
        yield (
            f"FedSGD, LLG's CNN, 32 x 32, batch 16{way}",
            "client",
            {
                "task": images("cnn", 32),
                "training": many,
                **several,
            },
        )
        if at_once <= 25:
            yield (
                f"FedSGD, ResNet-18, 64 x 64, batch 16{way}",
                "client",
                {
                    "task": images(resnet18(dry=dry), 16 if dry else 64),
                    "training": {**clients, "clients": 2 if dry else 25},
                    **several,
                },
            )


def seconds(tables: dict[str, Any], device: str, unit: str) -> float:
    """Wall-clock seconds of a unit of work.

    Raises:
        SystemExit: An attack failed.
    """
    tables = {"name": "gpu", "seed": 7, "record": {"keep": "nothing"}, **tables}
    tables["engine"] = {"workers": 1, **tables.get("engine", {}), "device": device}
    if unit != "client" and device != "cpu":
        tables["training"] = {**tables["training"], "rounds": 2}
    with tempfile.TemporaryDirectory() as folder:
        simulate(Scenario.parse(tables), Path(folder) / "run")
        if unit == "client":
            log = [json.loads(line) for line in (Path(folder) / "run/log.jsonl").open()]
            times = [entry["seconds"] for entry in log if entry["event"] == "round"]
            training = tables["training"]
            return (times[-1] - times[1]) / (training["rounds"] - 1) / training["clients"]
        with (Path(folder) / "run/findings.csv").open() as file:
            rows = list(csv.DictReader(file))
    if broken := [row["error"] for row in rows if row["status"] != "ok"]:
        raise SystemExit(f"on {device}: {broken[0]}")
    last = [row for row in rows if row["round"] == rows[-1]["round"]]
    return median(float(row["seconds"]) / max(1, int(row["iterations"])) for row in last)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--dry", action="store_true", help="tiny models, which any CPU has run soon"
    )
    parser.add_argument(
        "--only", nargs="+", default=[""], help="workloads whose name has one of these texts"
    )
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    options = parser.parse_args()
    options.dry |= options.device == "cpu"
    found = bool(options.data) and (Path(options.data) / "images/cifar100.npz").is_file()
    photographs = "cifar100" if found and not options.dry else "digits"
    on = Scenario.parse({"name": "gpu", "engine": {"device": options.device}})
    off = Scenario.parse({"name": "cpu", "engine": {"device": "cpu"}})
    print(f"torch {torch.__version__}; {device_name(off)}, one thread; {device_name(on)}")
    print(f"images: {photographs}, digits at 224 x 224. Milliseconds of a unit of work")
    print(f"{'':56}{'unit':24}{'CPU':>10}{options.device:>10}{'ratio':>8}")
    baseline: dict[str, float] = {}
    for name, unit, tables in workloads(photographs, dry=options.dry):
        if not any(part in name for part in options.only):
            continue
        if options.data and photographs != "digits":
            tables["data_dir"] = options.data
        alone = {**tables, "engine": {}}  # no gain on a CPU
        cpu = baseline.setdefault(str(alone), 0.0) or seconds(alone, "cpu", unit)
        baseline[str(alone)] = cpu
        gpu = seconds(tables, options.device, unit)
        print(
            f"{name:56}{unit:24}{1e3 * cpu:>10.2f}{1e3 * gpu:>10.2f}{cpu / gpu:>8.2f}", flush=True
        )


if __name__ == "__main__":
    main()
