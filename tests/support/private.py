"""What the tests of differential privacy share: norms, facts of a run, what was spent in it."""

import csv

import torch

from fedsim.defense import Exposure

DP = "DifferentialPrivacy"


def norm(tensors):
    """The Euclidean norm of all tensors together."""
    return float(torch.cat([value.double().flatten() for value in tensors.values()]).norm())


def exposure(**changes):
    """What a run exposes of a client; facts are replaced by these."""
    facts = {
        "rounds": 10,
        "participations": 4,
        "clients": 20,
        "clients_per_round": 5,
        "examples": 80,
        "batch_size": 8,
        "local_steps": 3,
        "trained": frozenset({"head.weight"}),
    }
    return Exposure(**{**facts, **changes})


def spent(folder, metric="epsilon"):
    """A metric of utility.csv, round by round."""
    with (folder / "utility.csv").open() as file:
        return [float(r["value"]) for r in csv.DictReader(file) if r["metric"] == metric]
