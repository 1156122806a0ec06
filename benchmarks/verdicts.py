"""How often the verdict says "leaks" of an attack on labels that guesses, and of one that is right.

    python benchmarks/verdicts.py [TRIALS]

Clients draw their labels from Dirichlet(0.3), so each has few of the classes; all take part in 20
rounds, with one example each. `constant` names the same label in every round, `random` any; `60 %`
is right so often, and else names any label.
"""

import argparse

import numpy as np
import pandas as pd

from fedsim.report.verdict import judge
from fedsim.runs.reading import MEASURES

ROUNDS = 20
CLIENTS = (1, 2, 3, 5, 10)
ATTACKS = ("constant", "random", 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def findings(rng: np.random.Generator, clients: int, classes: int, attack: str | float):
    """The findings of one run: a row for each client and round."""
    labels = np.concatenate([
        rng.choice(classes, ROUNDS, p=rng.dirichlet([0.3] * classes)) for _ in range(clients)
    ])  # fmt: skip
    claimed = rng.integers(classes, size=len(labels))
    if attack == "constant":
        claimed[:] = 0
    elif attack != "random":
        claimed = np.where(rng.random(len(labels)) < float(attack), labels, claimed)
    at = np.tile(np.arange(1, ROUNDS + 1), clients)
    client = np.repeat(np.arange(clients), ROUNDS)
    right = (claimed == labels).astype(float)
    return pd.DataFrame({
        "round": at.astype(float), "client": client, "value": right, "counted": right,
        "victim": [f"r{n:04d}-c{c:04d}" for n, c in zip(at, client, strict=True)],
        "baseline": 1 / classes, "baseline_prior": np.nan, "seed": "7", "label": "attack",
        "metric": "asr", "status": "ok", "probe": "", "batch_size": "1",
        "unit": client,
    })  # fmt: skip


def leaks(trials: int, clients: int, classes: int, attack: str | float) -> float:
    """The share of simulated runs with the verdict "leaks"."""
    rng = np.random.default_rng(0)
    found = (judge({"": findings(rng, clients, classes, attack)}, MEASURES) for _ in range(trials))
    return sum(one[""].kind == "leaks" for one in found) / trials


def main() -> None:
    """Print a table for each number of classes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trials", nargs="?", type=int, default=200)
    trials = parser.parse_args().trials
    for classes in (10, 2):
        print(f"{classes} classes: share of {trials} runs with the verdict 'leaks'")
        print("attack".ljust(10), *(f"{n:>3} client{'s' * (n > 1)}".rjust(11) for n in CLIENTS))
        for attack in ATTACKS:
            shown = attack if isinstance(attack, str) else f"{attack:.0%}"
            shares = (leaks(trials, clients, classes, attack) for clients in CLIENTS)
            print(shown.ljust(10), *(f"{share:.1%}".rjust(11) for share in shares), flush=True)


if __name__ == "__main__":
    main()
