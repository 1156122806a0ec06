"""What DLG leaks, and what training loses, under three ways to round a gradient to eight bits.

    python benchmarks/dlg_int8.py [--repetitions 3] [--rounds 400] [--data DIR]

DLG's paper has Int8 as a defense that also costs 22.6 points of accuracy (figure 7 c and table 3),
and does not say how it scales. The scale is the largest magnitude of each tensor, as the defense
`int8` has it; that of the whole gradient; or one, so that values beyond it are clipped. The leak is
that of figure 7 (CIFAR-100, LeNet with sigmoids, four images an update of one each); the accuracy
that of table 3's scenario (MNIST, LeNet, the mean of the last ten rounds).
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from scipy.stats import sem

import fedsim
from fedsim.defense import ClientState, Defense
from fedsim.records import Update
from fedsim.scenario import Scenario

SCENARIOS = Path(__file__).parent.parent / "scenarios" / "papers" / "dlg"
WAYS = {
    "no rounding": "[]",
    "each tensor's largest": '[{name="int8"}]',
    "the gradient's largest": '[{name="dlg_int8:OneScale", scale="largest"}]',
    "one": '[{name="dlg_int8:OneScale", scale="one"}]',
}


class OneScale(Defense):
    """Rounds every coordinate to eight bits with one scale for all tensors."""

    name = "one-scale-int8"

    scale: Literal["largest", "one"] = "largest"
    """The largest magnitude of the whole gradient, or one."""

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Round the update."""
        largest = max(float(one.abs().max()) for one in update.tensors.values())
        step = (largest if self.scale == "largest" else 1.0) / 127
        rounded = {k: (v / step).round().clamp(-127, 127) * step for k, v in update.tensors.items()}
        return update.replace(tensors=rounded)


def run(file: str, changes: Sequence[str], data: str | None, table: str) -> pd.DataFrame:
    """A table of a shipped scenario under every way."""
    sweep = f"sweep.defenses=[{', '.join(WAYS.values())}]"
    scenario = Scenario.load(SCENARIOS / file, [sweep, *changes], data=data, trust=True)
    with tempfile.TemporaryDirectory() as folder:
        fedsim.simulate(scenario, Path(folder) / "run")
        rows: pd.DataFrame = getattr(fedsim.load(Path(folder) / "run", trust=True), table)
    return rows


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    chosen = parser.parse_args()
    seeds = f"sweep.seed={[*range(7, 7 + chosen.repetitions)]}"
    leaked = run("fig7.toml", [seeds], chosen.data, "findings")
    leaked = leaked[leaked["metric"] == "mse"]
    rounds = f"training.rounds={chosen.rounds}"
    learnt = run("table3-accuracy.toml", [seeds, rounds], chosen.data, "utility")
    learnt = learnt[(learnt["metric"] == "accuracy") & (learnt["round"] > chosen.rounds - 10)]
    places = ["defenses=none", "defenses=int8", "scale=largest", "scale=one"]
    print("| Scale | Mean squared error of the image | Accuracy |")
    print("| --- | --- | --- |")
    for way, place in zip(WAYS, places, strict=True):
        errors = leaked.loc[leaked["point"].str.contains(place), "value"].to_numpy(float)
        here = learnt[learnt["point"].str.contains(place)]
        ends = here.groupby("point")["value"].mean().to_numpy(float)
        cells = [f"{errors.mean():.2g} ± {1.96 * sem(errors):.1g} ({len(errors)})"]
        cells += [f"{ends.mean():.1%} ({', '.join(f'{one:.1%}' for one in ends)})"]
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
