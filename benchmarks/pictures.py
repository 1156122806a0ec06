"""Make the pictures of the pages on attacks and defenses: originals above what was recovered.

    python benchmarks/pictures.py RUNS

Each picture is of a scenario's run, which is made in a folder of RUNS unless it is there, and shows
up to five victims of the first round. It goes to docs/pictures/NAME.png.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from PIL import Image

import fedsim
from fedsim.results.loading import Run

DOCS = Path(__file__).resolve().parent.parent / "docs"
VICTIMS = 5
SIDE = 96
"""Width of an image of the picture in pixels."""

FIRST = ["training.rounds=1", "adversaries.1.victims=5", "adversaries.1.restarts=1"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "defenses": ("defenses", FIRST),
    "dlg": ("first-rounds", FIRST),
    "first-linear": (
        "first-rounds",
        [
            "task.model=mlp",
            "training.rounds=1",
            'adversaries=[{name="first-linear", layer="hidden.0"}]',
        ],
    ),
    "inverting-gradients": (
        "first-rounds",
        ["training.rounds=1", 'adversaries=[{name="inverting-gradients", restarts=0}]'],
    ),
}
"""Of each run: the scenario and its settings. `defenses` gives the pictures of all defenses."""


def made(folder: Path, scenario: str, settings: list[str]) -> Run:
    """Run a scenario, unless its folder is there."""
    if not folder.is_dir():
        words = ["run", scenario, "--out", str(folder)]
        words += [word for setting in settings for word in ("--set", setting)]
        subprocess.run([sys.executable, "-m", "fedsim.cli", *words], check=True)
    return fedsim.load(folder)


def picture(run: Run, label: str, point: str) -> Image.Image:
    """The victims of the first attacked round side by side."""
    table = run.artifacts
    table = table[(table["label"] == label) & (table["point"] == point)]
    table = table[table["round"] == table["round"].min()]
    strips = [Image.open(run.folder / path).convert("RGB") for path in table["artifact"][:VICTIMS]]
    strips = [one.resize((SIDE, SIDE * one.height // one.width)) for one in strips]
    sheet = Image.new("RGB", (sum(one.width for one in strips), strips[0].height), "white")
    for number, one in enumerate(strips):
        sheet.paste(one, (number * SIDE, 0))
    return sheet


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of the runs")
    runs = parser.parse_args().runs
    (DOCS / "pictures").mkdir(exist_ok=True)
    for name, (scenario, settings) in RUNS.items():
        run = made(runs / name, scenario, settings)
        for point in run.points or [""]:
            shown = name if name != "defenses" else point.partition("=")[2].partition("(")[0]
            label = "dlg" if name == "defenses" else name
            if shown != "none":
                sheet = picture(run, label, point)
                sheet.save(DOCS / "pictures" / f"{shown}.png", optimize=True)


if __name__ == "__main__":
    main()
