"""Make the pictures of the pages on attacks and defenses: what is recovered, or how much.

    python benchmarks/pictures.py RUNS

Each picture is of a scenario's run, which is made in a folder of RUNS unless it is there. Images
and sounds stand above what was recovered of them, up to five victims of the first round; labels and
texts are drawn as scores beside those of a random guess. The pictures go to docs/pictures.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

import fedsim
from fedsim.results.loading import Run
from fedsim.runs.reading import read_measures

DOCS = Path(__file__).resolve().parent.parent / "docs"
VICTIMS = 5
SIDE = 96
"""Width of an image of the picture in pixels."""

FIRST = ["training.rounds=1", "adversaries.1.victims=5", "adversaries.1.restarts=1"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "defenses": ("defenses", FIRST),
    "dlg": ("first-rounds", FIRST),
    "exact-batch": ("exact-batch", ["training.rounds=1"]),
    "first-linear": (
        "first-rounds",
        [
            "task.model=mlp",
            "training.rounds=1",
            'adversaries=[{name="first-linear", layer="hidden.0"}]',
        ],
    ),
    "spear": ("spear", ["training.rounds=1"]),
    "r-gap": ("r-gap", ["training.rounds=1", "training.clients_per_round=5"]),
    "inverting-gradients": (
        "first-rounds",
        ["training.rounds=1", 'adversaries=[{name="inverting-gradients", restarts=0}]'],
    ),
}
"""Of each run: the scenario and its settings. `defenses` gives the pictures of all defenses."""


BATCHES = "[1,2,4,8,16,32]"
SPEECH = [
    'task.model={name="deepspeech",hidden=1024,recurrent=512}',
    "task.seconds=[0.3,0.8]",
    "task.cut=true",
    "training.rounds=1",
    "training.clients_per_round=1",
    "training.lr=0.05",
    "threat.grants=full",
]
"""One short utterance for a wide recogniser, as on the pages of hfgm and ctc-matching."""

SOUNDS: dict[str, tuple[str, list[str]]] = {
    "first-frames": ("eavesdrop", ["training.rounds=1", "training.clients_per_round=1"]),
    "ctc-matching": ("speech", [*SPEECH, 'adversaries=[{name="ctc-matching"}]']),
    "hfgm": (
        "speech",
        [*SPEECH, 'adversaries=[{name="hfgm",iterations=200,schedule="cosine"}]'],
    ),
}
"""Runs whose first utterance is shown as a spectrogram."""

CHARTS: dict[str, tuple[str, list[str], str, str]] = {
    "labels": (
        "first-rounds",
        [
            "task.model=cnn",
            "training.rounds=1",
            "training.clients_per_round=20",
            f'sweep={{"training.batch_size"={BATCHES}}}',
            'adversaries=[{name="llg"},{name="rlg"},{name="idlg"},{name="min-column"},'
            '{name="bias-signs"}]',
        ],
        "batch_size",
        "label_f1",
    ),
    "tokens": (
        "text",
        [
            "training.rounds=1",
            "threat.grants=white-box",
            'task.model={name="transformers",config="gpt2",'
            "settings={n_embd=128,n_layer=2,n_head=4}}",
            'sweep={"training.batch_size"=[1,2,4]}',
            'adversaries=[{name="token-leak"},{name="dager",timeout=60}]',
        ],
        "batch_size",
        "token_f1",
    ),
    "texts": (
        "text",
        [
            "training.rounds=1",
            "training.clients_per_round=4",
            "threat.grants=full",
            'adversaries=[{name="lamp"},{name="tag"},{name="dlg-text"}]',
        ],
        "label",
        "token_f1",
    ),
    "transcripts": (
        "transcripts",
        ['adversaries=[{name="span-decoding"},{name="gm-bow"}]'],
        "label",
        "wer",
    ),
    "speaker-inference": ("speakers", [], "label", "speaker_top1"),
    "accumulate": ("accumulate", [], "round", "recovered"),
    "repeated-gradients": ("repeated-gradients", [], "round", "mse"),
}
"""Of each run also: what the scores are drawn against, a column of its findings, and the metric."""


def made(folder: Path, scenario: str, settings: list[str]) -> Run:
    """Run a scenario, unless its folder is there."""
    if not folder.is_dir():
        words = ["run", scenario, "--out", str(folder)]
        words += [word for setting in settings for word in ("--set", setting)]
        subprocess.run([sys.executable, "-m", "fedsim.cli", *words], check=True)
    return fedsim.load(folder)


def picture(run: Run, label: str, point: str) -> Image.Image:
    """The victims of the first attacked round side by side, or one victim's batch."""
    table = run.artifacts
    table = table[(table["label"] == label) & (table["point"] == point)]
    table = table[table["round"] == table["round"].min()]
    strips = [Image.open(run.folder / path).convert("RGB") for path in table["artifact"][:VICTIMS]]
    if strips[0].width > strips[0].height:
        return strips[0]  # a batch fills the width by itself
    strips = [one.resize((SIDE, SIDE * one.height // one.width)) for one in strips]
    sheet = Image.new("RGB", (sum(one.width for one in strips), strips[0].height), "white")
    for number, one in enumerate(strips):
        sheet.paste(one, (number * SIDE, 0))
    return sheet


def chart(run: Run, by: str, metric: str) -> Figure:
    """The mean score of each adversary, and that of a random guess."""
    rows = run.findings
    rows = rows[(rows["metric"] == metric) & (rows["status"] == "ok")].copy()
    rows[by] = pd.to_numeric(rows[by]) if by != "label" else rows[by]
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    chance = rows.groupby(by, sort=by != "label")["baseline"].mean()
    if by == "label":
        means = rows.groupby("label", sort=False)["value"].mean()
        places = range(len(means))
        axes.bar(places, means, width=0.35, label="attack")
        axes.bar([at + 0.38 for at in places], chance, width=0.35, color="0.75", label="chance")
        axes.set_xticks([at + 0.19 for at in places], list(means.index))
    else:
        for marker, (label, own) in zip("osD^v", rows.groupby("label", sort=False), strict=False):
            means = own.groupby(by)["value"].mean()
            axes.plot(means.index, means, marker=marker, label=label, clip_on=False)
        axes.plot(chance.index, chance, color="0.5", linestyle="--", label="chance")
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(chance.index), [f"{at:g}" for at in chance.index])
        axes.set_xlabel(by.replace("_", " "))
    if metric == "mse":
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(read_measures(run.folder)[0][metric].title)
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


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
    for name, (scenario, settings) in SOUNDS.items():
        run = made(runs / name, scenario, settings)
        first = min((run.folder / "artifacts").rglob("reconstruction-1.png"))
        Image.open(first).save(DOCS / "pictures" / f"{name}.png", optimize=True)
    # Text stays text, and identifiers do not change each time.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fedsim"}
    for name, (scenario, settings, by, metric) in CHARTS.items():
        run = made(runs / name, scenario, settings)
        chart(run, by, metric).savefig(DOCS / "pictures" / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
