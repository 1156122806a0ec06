"""Do the papers' pages hold with other seeds? Figures at smoke scale once more, beside the pages.

    python benchmarks/other_seeds.py [llg/fig3c dlg/fig5 ...] [--seed 4711] [--out runs/other-seeds]

Each figure is reproduced with another seed of the scenario, which changes networks, batches and
victims; what has ended is not run again. Every mean with an interval that the figure's section of
docs/results has is compared with the new one: two 95 % intervals of one mean touch nearly always,
unless one has no width, because a few values are equal.
The table between the marks of docs/results/other-seeds.md is rewritten, with all figures that there
are in the folder; rows of other figures stay.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from results_index import grids
from results_page import RESULTS, Section, split

PAGE = RESULTS / "other-seeds.md"
NUMBER = r"-?\d(?:[\d.]|,\d{3})*(?:e[+-]?\d+)?"
CELL = re.compile(rf"^({NUMBER})( \D*?)?\[({NUMBER}), ({NUMBER})\]")
SEEDS = re.compile(r"; seeds (?:in part )?(\d+(?: to \d+)?)")
SCALE = re.compile(r"^## \S+ \((smoke|paper) scale")


Key = tuple[str, str, str]
"""A table, a row and a column."""


@dataclass(frozen=True)
class Mean:
    """A mean, and its 95 % interval, in a unit."""

    value: float
    low: float
    high: float
    unit: str = ""

    def touches(self, other: "Mean") -> bool:
        """Whether the intervals have a point in common."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        return f"{self.value:g} \\[{self.low:g}, {self.high:g}\\]"


def means(section: Section) -> dict[Key, Mean]:
    """Every mean with an interval of a section."""
    found: dict[Key, Mean] = {}
    for before, head, body in grids(section.text):
        has_verdicts = "ours" in head  # one row for each published number, else one for each place
        for row in body:
            for name, text in zip(head, row, strict=True):
                cell = CELL.match(text)
                if cell is None or name in {"n", "by chance", "published", "verdict"}:
                    continue
                labels = row[: head.index("ours")] if has_verdicts else row[:1]
                title = "" if has_verdicts else before.partition(":")[0]
                key = (title, " ".join(labels), name)
                value, low, high = (float(cell[at].replace(",", "")) for at in (1, 3, 4))
                mean = Mean(value, low, high, (cell[2] or "").strip())
                found.setdefault(key, mean)
    return found


@dataclass(frozen=True)
class Row:
    """What is said of a figure.

    Attributes:
        scale: That of the page's section.
        seeds: The other seeds.
        means: How many are compared.
        touching: How many have intervals that touch.
        flat: Of the others, how many new intervals have no width, because all values are equal.
        apart: The others with a width, in words.
    """

    figure: str
    scale: str
    seeds: str
    means: int
    touching: int
    flat: int
    apart: str

    def __str__(self) -> str:
        return f"| {' | '.join(str(getattr(self, field.name)) for field in fields(self))} |"

    @classmethod
    def read(cls, line: str) -> "Row":
        """The row that `str` made."""
        figure, scale, seeds, means, touching, flat, apart = map(str.strip, line.split("|")[1:-1])
        return cls(figure, scale, seeds, int(means), int(touching), int(flat), apart)


def compared(out: Path) -> Iterator[Row]:
    """The row of each figure that is in a folder and on a page."""
    for new in sorted(out.glob("*/smoke.md")):
        own = split((RESULTS / f"{new.parent.name}.md").read_text(encoding="utf-8"))[1]
        # A section at smoke scale, where there is one, is of the same model and data.
        own.sort(key=lambda section: "(smoke scale" not in section.text)
        for section in split(new.read_text(encoding="utf-8"))[1]:
            ours, both, scales = means(section), dict[Key, tuple[Mean, Mean]](), set[str]()
            for other in (one for one in own if one.key == section.key):
                for key, page in means(other).items():
                    if key in ours and key not in both and page.unit == ours[key].unit:
                        both[key] = ours[key], page
                        scales.update(SCALE.findall(other.text))
            if both:
                yield _row(section, both, " and ".join(sorted(scales)))


def _row(section: Section, both: dict[Key, tuple[Mean, Mean]], scale: str) -> Row:
    apart = {key: pair for key, pair in both.items() if not pair[0].touches(pair[1])}
    said = "; ".join(
        f"{' '.join(filter(None, key[:2]))}, {key[2]}: {page}, now {mine}"
        for key, (mine, page) in apart.items()
        if mine.low < mine.high
    )
    flat = sum(mine.low == mine.high for mine, _ in apart.values())
    seeds = ", ".join(dict.fromkeys(SEEDS.findall(section.text)))
    touching = len(both) - len(apart)
    return Row(section.key, scale, seeds, len(both), touching, flat, said)


def main() -> None:
    """Reproduce, compare, and rewrite the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("figures", nargs="*")
    parser.add_argument("--seed", type=int, default=4711)
    parser.add_argument("--out", type=Path, default=Path("runs/other-seeds"))
    asked = parser.parse_args()
    for name in asked.figures:
        command = ["reproduce", name, "--set", f"seed={asked.seed}", "--out", str(asked.out)]
        subprocess.run([sys.executable, "-m", "fedsim.cli", *command], check=True)
    text = PAGE.read_text(encoding="utf-8")
    kept = [Row.read(line) for line in re.findall(r"^\| \w+/.*", text, re.MULTILINE)]
    found = {row.figure: row for row in [*kept, *compared(asked.out)]}
    rows = [found[figure] for figure in sorted(found)]
    sums = (sum(getattr(row, what) for row in rows) for what in ("means", "touching", "flat"))
    rows.append(Row("all", "", "", *sums, ""))
    heads = (
        "figure",
        "page's scale",
        "seeds",
        "means",
        "touch",
        "apart, now equal values",
        "apart",
    )
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|", *map(str, rows)]
    block = re.compile(r"<!-- figures -->\n.*?<!-- end of figures -->", re.DOTALL)
    new = "\n".join(["<!-- figures -->", *lines, "<!-- end of figures -->"])
    PAGE.write_text(block.sub(lambda _: new, text), encoding="utf-8")
    print(f"{len(found)} figures: {PAGE}")


if __name__ == "__main__":
    main()
