"""Draw accuracy and leakage of a run over its rounds, as an SVG for the documentation.

    python benchmarks/leakage_picture.py RUN OUT.svg [--panel "dlg, B = 1=psnr" ...]

RUN is the folder of a run, whose sweep may repeat points with several seeds. There is a panel for
accuracy and one for each adversary's main metric, or for each of the panels that are named, as
ADVERSARY=METRIC. The axis of rounds is logarithmic, since most is attacked early. Lines are means
over seeds, bands their 95 % intervals, the dotted line is a random guess.
"""

import argparse
import html
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsim.metric import Measure
from fedsim.report.folder import RunFolder, open_folder
from fedsim.report.intervals import Estimate
from fedsim.report.replication import attacks_of, over_rounds, utility_measure
from fedsim.report.traces import COLOURS, GREY

COLUMNS, WIDTH, HEIGHT, LEFT, GAP, TOP = 2, 330, 130, 56, 62, 34
"""Number of panels in a row; width and height of a panel, and the room beside and above it, in
pixels."""

STYLE = "font-family='system-ui,sans-serif' font-size='11' fill='#333'"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Attributes:
        title: Its title.
        how: How its values are read.
        lines: Estimates by round, by the name of the point.
        chance: The mean score of a random guess by round; empty if there is none.
    """

    title: str
    how: Measure
    lines: Mapping[str, Mapping[float, Estimate]]
    chance: Mapping[float, float]


def panels(run: RunFolder, chosen: list[tuple[str, str]]) -> list[Panel]:
    """The panel of accuracy, then one for each adversary and metric.

    Args:
        run: The run.
        chosen: Labels of adversaries with a metric each; if empty, every adversary's main metric.
    """
    every = run.series()
    named = zip(run.rows["label"], run.rows["metric"], strict=True)
    chosen = chosen or [*run.measures.main(named).items()]
    how = utility_measure("accuracy")
    learned = {
        one.name: over_rounds(one.utility[one.utility["metric"] == "accuracy"], how, "value")
        for one in every
    }
    found = [Panel("Test accuracy", how, learned, {})]
    for label, metric in chosen:
        how = run.measures[metric]
        parts = {one.name: attacks_of(one.rows, label, metric) for one in every}
        if all(part.empty for part in parts.values()):
            raise SystemExit(f"{label} has no {metric}")
        first = next(part for part in parts.values() if len(part))
        chance = first.groupby("round")["baseline"].mean().dropna()
        lines = {name: over_rounds(part, how) for name, part in parts.items()}
        found.append(Panel(f"{label}: {how.title.lower()}", how, lines, dict(chance)))
    return found


def drawn(found: list[Panel]) -> str:
    """The panels as an SVG file."""
    rounds = [at for panel in found for line in panel.lines.values() for at in line if at >= 1]
    last, names = max(rounds), list(found[0].lines)
    height = TOP + -(-len(found) // COLUMNS) * (HEIGHT + GAP)
    width = COLUMNS * (LEFT + WIDTH) + 20
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {STYLE}>",
        f"<rect width='{width}' height='{height}' fill='#fff'/>",
        *_legend(names, any(panel.chance for panel in found)),
    ]
    for place, panel in enumerate(found):
        left = LEFT + place % COLUMNS * (LEFT + WIDTH)
        top = TOP + 22 + place // COLUMNS * (HEIGHT + GAP)
        parts.append(f"<g transform='translate({left},{top})'>{_panel(panel, last)}</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(names: list[str], guess: bool) -> list[str]:
    """Names of the points beside their colours."""
    found, x = [], LEFT
    entries = [(_plain(name), COLOURS[i % len(COLOURS)], "") for i, name in enumerate(names)]
    for name, colour, dash in [*entries, *[("random guess", GREY, "2 3")] * guess]:
        style = f"stroke='{colour}' stroke-width='3' stroke-dasharray='{dash}'"
        found.append(f"<path d='M{x} 16h22' {style}/><text x='{x + 28}' y='20'>{name}</text>")
        x += 50 + 6 * len(name)
    return found


def _plain(name: str) -> str:
    """A point's name without what all names have in common."""
    return html.escape(name.removeprefix("defenses=").replace("none", "undefended") or "the run")


def _panel(panel: Panel, last: float) -> str:
    """A chart whose lower left corner is at (0, HEIGHT)."""
    ends = [v for line in panel.lines.values() for one in line.values() for v in _ends(one)]
    top = 1.0 if panel.how.kind != "number" else max([*ends, *panel.chance.values()])

    def x(at: float) -> float:
        return WIDTH * math.log(max(at, 1)) / max(math.log(last), 1e-9)

    def y(value: float) -> float:
        return HEIGHT * (1 - min(max(value / top, 0), 1))

    title = f"<text y='-8' font-weight='600'>{html.escape(panel.title)}</text>"
    return title + _axes(panel.how, top, last, x, y) + _lines(panel, x, y)


Scale = Callable[[float], float]


def _axes(how: Measure, top: float, last: float, x: Scale, y: Scale) -> str:
    parts = []
    for value in (0, top / 2, top):
        label = f"<text x='-6' y='{y(value) + 4:.1f}' text-anchor='end'>{how.show(value)}</text>"
        parts.append(f"<path d='M0 {y(value):.1f}h{WIDTH}' stroke='#ddd'/>{label}")
    marks = [*(10**power for power in range(math.floor(math.log10(last)) + 1)), last]
    for at in [one for one in marks[:-1] if one < last / 2] + marks[-1:]:
        number = f"<text x='{x(at):.1f}' y='{HEIGHT + 15}' text-anchor='middle'>{at:g}</text>"
        parts.append(f"<path d='M{x(at):.1f} {HEIGHT}v4' stroke='#888'/>{number}")
    parts.append(f"<text x='{WIDTH / 2}' y='{HEIGHT + 28}' text-anchor='middle'>round</text>")
    return "".join(parts)


def _lines(panel: Panel, x: Scale, y: Scale) -> str:
    bands, lines = [], []
    for i, line in enumerate(panel.lines.values()):
        colour = COLOURS[i % len(COLOURS)]
        here = {at: one for at, one in line.items() if at >= 1 and not math.isnan(one.mean)}
        known = {at: one for at, one in here.items() if one.over_seeds}
        upper = [f"{x(at):.1f},{y(one.high or 0):.1f}" for at, one in known.items()]
        lower = [f"{x(at):.1f},{y(one.low or 0):.1f}" for at, one in known.items()]
        points = " ".join([*upper, *reversed(lower)])
        bands.append(f"<polygon points='{points}' fill='{colour}' opacity='.15'/>")
        path = " ".join(f"{x(at):.1f},{y(one.mean):.1f}" for at, one in here.items())
        width = 4.5 - 1.25 * (i % 3)  # a line below another one is wider
        lines.append(
            f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width}'/>"
        )
    guess = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in panel.chance.items())
    lines.append(
        f"<polyline points='{guess}' fill='none' stroke='{GREY}' stroke-width='2' "
        "stroke-dasharray='2 3'/>"
    )
    return "".join([*bands, *lines])


def _ends(one: Estimate) -> list[float]:
    return [v for v in (one.mean, one.high if one.over_seeds else None) if v is not None]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--panel", action="append", default=[], metavar="ADVERSARY=METRIC")
    options = parser.parse_args()
    chosen = [(label, metric) for label, _, metric in (p.rpartition("=") for p in options.panel)]
    options.out.write_text(drawn(panels(open_folder(options.run), chosen)), encoding="utf-8")


if __name__ == "__main__":
    main()
