"""Whether the diagnosis is right: what it expects of each attack beside what the attack found.

    python benchmarks/diagnosis.py [--out runs/diagnosis] [--per-task 12] [--tasks NAME ...]

Runs small scenarios over tasks, rounds, defenses, optimizers, batch sizes and local steps, drawn
with a fixed seed. Attacks of dlg, which have 30 iterations there, are made again with its defaults
where they found nothing; an attack leaks if either does. Then each run is diagnosed, and a
confusion table is printed for each adversary, once for the tasks on which the bounds in the
adversaries' `requirements` were chosen, once for those held out. What is complete is not made
again, so that the command goes on where it was stopped.
"""

import argparse
import os
import random
import shutil
import sys
from collections import OrderedDict
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from fedsim import Scenario, attack, diagnose, simulate
from fedsim.diagnosis.leaks import LEAKS
from fedsim.errors import FedsimError

LABELS = ("llg", "rlg", "idlg", "bias-signs", "min-column")
DLG = {"name": "dlg", "iterations": 30, "restarts": 0, "timeout": 120}
INVERTING = {"name": "inverting-gradients", "iterations": 100, "restarts": 0, "timeout": 120}
DAGER = {"name": "dager", "timeout": 120}
BERT = {
    "name": "transformers",
    "config": "bert",
    "settings": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    },
}
GPT2 = {
    "name": "transformers",
    "config": "gpt2",
    "settings": {"n_embd": 96, "n_layer": 2, "n_head": 2},
}
MESSAGES = {"name": "text", "data": "messages", "parameters": "all", "vocabulary": 1000}
DIGITS = {"name": "images", "data": "digits"}
MNIST = {"name": "images", "data": "mnist", "size": 12}
CIFAR = {"name": "images", "data": "cifar10", "size": 12}

TASKS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "digits-cnn": ({**DIGITS, "model": "cnn"}, [DLG]),
    "digits-mlp": ({**DIGITS, "model": "mlp"}, ["first-linear", DLG]),
    "digits-convnet": ({**DIGITS, "model": {"name": "convnet", "widths": [8, 16]}}, [INVERTING]),
    "digits-lenet": ({**DIGITS, "size": 16, "model": "lenet"}, [DLG]),
    "digits-signed": ({**DIGITS, "model": "diagnosis:signed"}, ["first-linear", INVERTING]),
    "breast-cancer": ({"name": "tabular", "data": "breast-cancer"}, ["first-linear", DLG]),
    "messages": ({**MESSAGES, "model": GPT2}, ["token-leak", DAGER]),
    "messages-bert": ({**MESSAGES, "model": BERT}, ["token-leak", DAGER]),
    "mnist-sigmoid": ({**MNIST, "model": "lenet-sigmoid"}, [DLG]),
    "mnist-wide": (
        {**MNIST, "model": {"name": "mlp", "hidden": [512, 64]}},
        ["first-linear", INVERTING],
    ),
    "mnist-tanh": ({**MNIST, "model": {"name": "diagnosis:signed", "kind": "tanh"}}, [DLG]),
    "wine": (
        {"name": "tabular", "model": {"name": "mlp", "hidden": [48], "activation": "sigmoid"}}
        | {"data": "wine"},
        ["first-linear", DLG],
    ),
    "cola": (
        {**MESSAGES, "data": "cola_train", "model": GPT2},
        ["token-leak", DAGER],
    ),
    "cifar-convnet": (
        {**CIFAR, "model": {"name": "convnet", "widths": [8, 16]}},
        [INVERTING],
    ),
    "cifar-mlp": (
        {**CIFAR, "model": {"name": "mlp", "hidden": [256, 32]}},
        ["first-linear", DLG],
    ),
    "mnist-relu": (
        {**MNIST, "size": 16, "model": "lenet"},
        [INVERTING],
    ),
    "cancer-deep": (
        {
            "name": "tabular",
            "model": {"name": "mlp", "hidden": [64, 24]},
            "data": "breast-cancer",
        },
        ["first-linear", DLG],
    ),
    "sst2": ({**MESSAGES, "data": "sst2_train", "model": BERT}, ["token-leak", DAGER]),
    "tomatoes": (
        {**MESSAGES, "data": "rotten_tomatoes_train", "model": GPT2},
        ["token-leak", DAGER],
    ),
    "cifar-sigmoid": ({**CIFAR, "model": "lenet-sigmoid"}, [DLG]),
    "cifar100-cnn": ({**CIFAR, "data": "cifar100", "model": "cnn"}, [DLG]),
    "mnist-deep": (
        {**MNIST, "model": {"name": "mlp", "hidden": [128, 64, 32]}},
        ["first-linear", INVERTING],
    ),
    "wine-relu": ({"name": "tabular", "data": "wine"}, ["first-linear", DLG]),
    "cola-bert": ({**MESSAGES, "data": "cola_train", "model": BERT}, ["token-leak", DAGER]),
    "cifar100-mlp": (
        {**CIFAR, "data": "cifar100", "model": {"name": "mlp", "hidden": [192, 48]}},
        ["first-linear", INVERTING],
    ),
    "wine-deep": (
        {"name": "tabular", "data": "wine", "model": {"name": "mlp", "hidden": [96, 32]}},
        ["first-linear", DLG],
    ),
    "mnist-cnn": ({**MNIST, "size": 14, "model": "cnn"}, [DLG]),
    "sst2-gpt2": ({**MESSAGES, "data": "sst2_train", "model": GPT2}, ["token-leak", DAGER]),
}
"""Tasks with their attacks on inputs; those on labels attack each of them."""

HELD_OUT = ("cifar100-mlp", "wine-deep", "mnist-cnn", "sst2-gpt2")
"""Tasks that were run after the bounds were chosen."""

DEFENSES: list[dict[str, Any]] = [
    *({"name": "gaussian-noise", "sigma": sigma} for sigma in (1e-4, 1e-3, 1e-2, 0.1)),
    {"name": "client-dp", "clip": 1.0, "noise_multiplier": 0.01},
    *({"name": "top-k", "k": k} for k in (0.3, 0.03)),
    {"name": "grad-drop", "rate": 0.7},
    {"name": "gradient-mask", "rate": 0.3},
    {"name": "int8"},
    {"name": "half-precision"},
    {"name": "sign"},
]
MOST = 16
"""Examples of an update beyond which matching takes too long, and is left out."""
ROUNDS = {"text": 3, "images": 10, "tabular": 10}
"""Rounds by task; the first and the last are attacked."""


def signed(*, classes: int, shape: tuple[int, ...], kind: str = "elu") -> nn.Module:
    """Make a network whose features before the head are positive and negative."""
    act = nn.Tanh if kind == "tanh" else nn.ELU
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden=nn.Linear(prod(shape), 128),
            act=act(),
            head=nn.Linear(128, classes),
        )
    )


def conditions(task: str, number: int) -> list[dict[str, Any]]:
    """Draw a task's conditions; half of them change one thing of the easiest one, half two."""
    rng = random.Random(task)  # noqa: S311 - no secret
    found = list[dict[str, Any]]()
    for at in range(number):
        choices: dict[str, Any] = {
            "batch": rng.choice([1, 2, 3, 4, 6, 8, 16, 24]),
            "steps": rng.choice([1, 2, 4, 10]),
            "optimizer": rng.choice(["sgd", "sgd", "adam"]),
            "lr": rng.choice([0.001, 0.01, 0.1, 0.5]),
            "defense": rng.choice(DEFENSES),
            "sum": rng.choice([False, False, True]),
        }
        kept = [*choices] if at % 2 else [rng.choice([*choices])]
        if at % 2:
            kept = rng.sample(kept, 2)
        easy = {"batch": rng.choice([1, 2, 4]), "steps": 1, "lr": 0.1}
        found.append(easy | {key: choices[key] for key in kept})
    return found


def scenario(task: str, at: int, one: dict[str, Any]) -> Scenario:
    """A scenario of a task under a condition; its last round attacks a trained model."""
    table, inputs = TASKS[task]
    rounds = ROUNDS[table["name"]]
    training: dict[str, Any] = {
        "rounds": rounds,
        "clients": 3,
        "batch_size": one["batch"],
        "lr": one["lr"],
    }
    if one["steps"] == 1 and one.get("optimizer", "sgd") == "sgd" and at % 3:
        training |= {"algorithm": "fedsgd"}
    else:
        training |= {
            "algorithm": "fedavg",
            "local_steps": one["steps"],
            "optimizer": one.get("optimizer", "sgd"),
        }
        if one.get("optimizer") == "adam":
            training["lr"] = min(one["lr"], 0.01)
    if one.get("sum"):
        training["secure_aggregation"] = "masked-sum"
    examples = (
        training["batch_size"] * training.get("local_steps", 1) * (3 if one.get("sum") else 1)
    )
    if examples > MOST:
        inputs = [one for one in inputs if one not in (DLG, INVERTING)]
    plans = [{"name": plan} if isinstance(plan, str) else plan for plan in (*LABELS, *inputs)]
    return Scenario.parse(
        {
            "name": f"{task}-{at:02d}",
            "seed": at,
            "task": {"test_examples": 40, **table},
            "training": training,
            "threat": {"grants": "white-box", "rounds": [1, rounds], "victims": "all"},
            "defenses": [one["defense"]] if "defense" in one else [],
            "adversaries": plans,
            "engine": {"workers": 1},
            "data_dir": os.environ.get("FEDSIM_DATA", ""),
        }
    )


def run_missing(out: Path, tasks: list[str], number: int) -> list[Path]:
    """Run what is not complete yet, all tasks in turn; the folders that are complete."""
    done = list[Path]()
    drawn = {task: conditions(task, number) for task in tasks}
    for at in range(number):
        for task in tasks:
            folder = out / f"{task}-{at:02d}"
            if not (folder / "complete").exists():
                shutil.rmtree(folder, ignore_errors=True)
                print(f"{folder.name}: {drawn[task][at]}", flush=True)
                try:
                    simulate(scenario(task, at, drawn[task][at]), folder)
                except FedsimError as error:  # such as data that is not there
                    print(f"  left out: {error}", flush=True)
                    continue
                (folder / "complete").touch()
            done.append(folder)
    return done


def again(folder: Path) -> None:
    """Repeat attacks of dlg that found nothing with its defaults, whatever was expected."""
    if (folder / "again").exists():
        return
    table = diagnose(folder, trust=True)
    missed = table[(table["label"] == "dlg") & (table["gain"] < LEAKS)]
    for number, rows in missed.groupby("round"):
        print(f"{folder.name}: {len(rows)} attacks of dlg in round {number} again", flush=True)
        attack(
            folder,
            changes={"adversaries": [{"name": "dlg", "label": "dlg-default"}]},
            rounds=[int(number)],
            clients={int(one) for row in rows["client"] for one in str(row).split("+")},
            trust=True,
        )
    (folder / "again").touch()


def print_table(title: str, folders: list[Path]) -> None:
    """Diagnose runs and print how often that was right, a row for each adversary."""
    if not folders:
        return
    each = [diagnose(folder, trust=True).assign(run=folder.name) for folder in folders]
    table = pd.concat(each, ignore_index=True)
    table = table[(table["expected"] != "") & table["gain"].notna()].sort_values("gain")
    table = table.drop_duplicates(["run", "victim", "adversary"], keep="last").sort_index()
    print(f"\n{title}: {len(table.groupby(['run', 'victim']))} updates, {len(table)} attacks\n")
    head = ["Attack", "leaks: right", "wrong", "finds nothing: right", "wrong"]
    print(f"| {' | '.join([*head, 'right', 'of those that leak', 'of the others'])} |")
    print(f"|{' --- |' * (len(head) + 3)}")
    for name, rows in [*table.groupby("adversary", sort=False), ("all", table)]:
        found = ["leaks" if gain >= LEAKS else "nothing" for gain in rows["gain"]]
        pairs = list(zip(rows["expected"], found, strict=True))
        counts = [
            pairs.count(("leaks", "leaks")),
            pairs.count(("leaks", "nothing")),
            pairs.count(("nothing", "nothing")),
            pairs.count(("nothing", "leaks")),
        ]
        both, over, neither, under = counts
        shares = [
            share(both + neither, len(pairs)),
            share(both, both + under),
            share(neither, neither + over),
        ]
        print(f"| {' | '.join([str(name), *map(str, counts), *shares])} |")


def share(part: int, whole: int) -> str:
    """A share in per cent."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def main() -> None:
    """Run and attack what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/diagnosis"))
    parser.add_argument("--per-task", type=int, default=12)
    parser.add_argument("--tasks", nargs="*", default=[*TASKS])
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))  # for diagnosis:signed
    torch.set_num_threads(1)
    done = run_missing(given.out, given.tasks, given.per_task)
    for folder in done:
        again(folder)
    held = [one for one in done if one.name.rpartition("-")[0] in HELD_OUT]
    print_table("Bounds were chosen on these tasks", [one for one in done if one not in held])
    print_table("Held out", held)


if __name__ == "__main__":
    main()
