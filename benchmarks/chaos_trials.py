"""What a trial of chaos.py draws: where it runs, the kind of fault, the scenario, the moment."""

from typing import Any

import chaos_faults as faults
import numpy as np

KINDS: dict[str, tuple[str, ...]] = {
    "driver killed": ("inline", "ray", "flower", "nodes"),
    "driver killed twice": ("inline", "ray"),
    "driver terminated": ("inline", "ray", "flower", "nodes"),
    "disk full": ("inline", "ray"),
    "torn file": ("inline", "ray"),
    "second process": ("inline",),
    "client raises": ("inline", "ray"),
    "client sends NaN": ("inline", "ray"),
    "client sends other names": ("inline", "ray"),
    "client hangs": ("inline", "ray"),
    "client raises once": ("inline", "ray"),
    "attack raises": ("inline", "ray"),
    "attack hangs": ("inline", "ray"),
    "attack eats memory": ("inline", "ray"),
    "attack dies": ("ray",),
    "client worker killed": ("ray", "nodes"),
    "attack worker killed": ("ray", "nodes"),
    "raylet killed": ("ray", "flower"),
    "Ray's head killed": ("ray",),
    "simulation killed": ("flower",),
    "node lost": ("nodes",),
    "isolation server killed": ("inline",),
}
"""Where each kind of fault is tried."""

SINCE = {"isolation server killed": 3000}
"""The first trial that may have a kind, so that earlier numbers draw what they always drew."""

WHERE = {"inline": 0.6, "ray": 0.28, "nodes": 0.08, "flower": 0.04}
LONG = ("driver killed", "driver killed twice", "driver terminated", "disk full", "torn file")
"""Kinds that all commands are tried with."""

ENGINES: dict[str, dict[str, Any]] = {
    "inline": {"workers": 1},
    "ray": {"workers": 2, "attack_workers": 1},
    "nodes": {"workers": 1, "attack_workers": 1},
    "flower": {"name": "flower", "workers": 2},
}


class Trial:
    """One trial, drawn from its number."""

    def __init__(self, number: int) -> None:
        self.number, rng = number, np.random.default_rng(number)
        self.rng = rng
        self.where = str(rng.choice([*WHERE], p=[*WHERE.values()]))
        kinds = [
            kind
            for kind, places in KINDS.items()
            if self.where in places and number >= SINCE.get(kind, 0)
        ]
        weights = np.array([2.0 if kind in LONG else 1.0 for kind in kinds])
        self.kind = str(rng.choice(kinds, p=weights / weights.sum()))
        usual = str(rng.choice(faults.USUAL))
        if self.where == "flower":
            usual = str(rng.choice(["adam", "plain"]))
        self.scenario = self.kind if self.kind in faults.SCENARIOS else usual
        self.seed = int(rng.integers(2))
        some = self.kind in LONG and self.where != "flower"
        commands = ["run", "run", "train", "attack", "report"]
        self.command = str(rng.choice(commands)) if some else "run"
        self.at, self.after = float(rng.random()), float(rng.random())
        self.elsewhere = self.where != "inline" and bool(rng.random() < 0.5)
        """Whether it is resumed in one process."""
        self.size = float(rng.random())
