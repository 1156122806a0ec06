"""What each defense costs in accuracy, beside LLG's table 1 and DLG's table 3; prints Markdown.

    python benchmarks/defense_accuracy.py [--out runs/accuracy] [--data DIR] [--no-train]

Runs the scenarios papers/llg-table1-fedsgd, papers/llg-table1-fedavg, papers/dlg-table3-accuracy,
one folder each; a second call goes on where the first ended. --no-train: only print what is there.
Accuracy is the mean over the last ten rounds, on the test images.
"""

import argparse
import csv
import os
from pathlib import Path

from fedsim.scenario import Scenario
from fedsim.simulation import simulate

PUBLISHED = {
    "llg-table1-fedsgd": [93.3, 93.4, 89.9, "≤ 10.1", 89.0, 86.1, "≤ 52.4", 93.4, 93.7, 91.9],
    "llg-table1-fedavg": [94.5, 94.6, 91.4, "≤ 13.5", 91.2, 90.5, 52.5, 92.8, 91.6, 89.3],
    "dlg-table3-accuracy": [
        76.3,
        75.6,
        73.3,
        45.3,
        "≤ 1",
        75.6,
        73.4,
        46.2,
        "≤ 1",
        76.1,
        "–",
        53.7,
    ],
}
"""Per cent, in the order of each scenario's sweep. bfloat16's accuracy is not published."""

LAST = 10

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
parser.add_argument("--no-train", action="store_true")
options = parser.parse_args()


def accuracy(folder: Path, rounds: int) -> dict[str, float]:
    """By point that was trained to the end, the mean accuracy of the last rounds, per cent."""
    found: dict[str, dict[int, float]] = {}
    with (folder / "utility.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "accuracy":
                found.setdefault(row["point"], {})[int(row["round"])] = float(row["value"])
    return {
        point: 100 * sum(values[r] for r in range(rounds - LAST + 1, rounds + 1)) / LAST
        for point, values in found.items()
        if rounds in values
    }


for name, published in PUBLISHED.items():
    scenario = Scenario.load(f"papers/{name}", data=options.data)
    folder = options.out / name
    if not options.no_train:
        simulate(scenario, folder, resume=folder.exists())
    if not folder.exists():
        continue
    reached = accuracy(folder, scenario.training.rounds)
    print(f"### {name}\n\n| Defense | Accuracy | Change | Published | Change |")
    print("| --- | --- | --- | --- | --- |")
    points = list(scenario.points())
    for point, theirs in zip(points, published, strict=True):
        ours = reached.get(point)
        lost = "" if ours is None else f"{ours - reached[points[0]]:+.1f}"
        gone = f"{theirs - float(published[0]):+.1f}" if isinstance(theirs, float) else ""
        shown = "not measured" if ours is None else f"{ours:.1f} %"
        stated = theirs if theirs == "–" else f"{theirs} %"
        print(f"| {point.partition('=')[2]} | {shown} | {lost} | {stated} | {gone} |")
    print()
