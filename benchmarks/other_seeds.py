"""Do the papers' pages hold with other seeds? Figures at smoke scale once more, beside the pages.

    python benchmarks/other_seeds.py [llg/fig3c dlg/fig5 ...] [--seed 4711] [--out runs/other-seeds]

Each figure is reproduced with another seed of the scenario, which changes networks, batches and
victims; what has ended is not run again. Every mean with an interval that the figure's section of
docs/results has is compared with the new one: two 95 % intervals of one mean touch nearly always.
The table between the marks of docs/results/other-seeds.md is rewritten, with all figures that there
are in the folder.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from results_index import grids
from results_page import RESULTS, Section, split

PAGE = RESULTS / "other-seeds.md"
NUMBER = r"-?[\d.]+(?:e[+-]?\d+)?"
CELL = re.compile(rf"^({NUMBER})\D*?\[({NUMBER}), ({NUMBER})\]")
SEEDS = re.compile(r"; seeds (?:in part )?(\d+(?: to \d+)?)")


@dataclass(frozen=True)
class Mean:
    """A mean, and its 95 % interval."""

    value: float
    low: float
    high: float

    def touches(self, other: "Mean") -> bool:
        """Whether the intervals have a point in common."""
        return self.low <= other.high and other.low <= self.high

    def __str__(self) -> str:
        return f"{self.value:g} \\[{self.low:g}, {self.high:g}\\]"


def means(section: Section) -> dict[tuple[str, str, str], Mean]:
    """Every mean with an interval of a section, by table, row and column."""
    found: dict[tuple[str, str, str], Mean] = {}
    for before, head, body in grids(section.text):
        judged = "ours" in head
        for row in body:
            for name, text in zip(head, row, strict=True):
                cell = CELL.match(text)
                if cell is None or name in {"n", "by chance", "published", "verdict"}:
                    continue
                labels = row[: head.index("ours")] if judged else row[:1]
                key = ("" if judged else before.partition(":")[0], " ".join(labels), name)
                found.setdefault(key, Mean(*map(float, cell.groups())))
    return found


@dataclass(frozen=True)
class Row:
    """What is said of a figure."""

    figure: str
    seeds: str
    means: int
    touching: int
    apart: str

    def __str__(self) -> str:
        cells = (self.figure, self.seeds, self.means, self.touching, self.apart)
        return f"| {' | '.join(map(str, cells))} |"


def compared(out: Path) -> Iterator[Row]:
    """The row of each figure that is in a folder and on a page."""
    for new in sorted(out.glob("*/smoke.md")):
        own = split((RESULTS / f"{new.parent.name}.md").read_text(encoding="utf-8"))[1]
        for section in split(new.read_text(encoding="utf-8"))[1]:
            ours = means(section)
            pages = [means(one) for one in own if one.key == section.key]
            both = [(key, ours[key], page[key]) for page in pages for key in page if key in ours]
            if not both:
                continue
            apart = [each for each in both if not each[1].touches(each[2])]
            said = "; ".join(
                f"{' '.join(filter(None, key[:2]))}, {key[2]}: {page}, now {mine}"
                for key, mine, page in apart
            )
            seeds = ", ".join(dict.fromkeys(SEEDS.findall(section.text)))
            yield Row(section.key, seeds, len(both), len(both) - len(apart), said)


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
    rows = list(compared(asked.out))
    rows.append(Row("all", "", sum(r.means for r in rows), sum(r.touching for r in rows), ""))
    head = "| figure | seeds | means compared | intervals touch | those that do not |"
    lines = [head, "| --- | --- | --- | --- | --- |", *map(str, rows)]
    text = PAGE.read_text(encoding="utf-8")
    block = re.compile(r"<!-- figures -->\n.*?<!-- end of figures -->", re.DOTALL)
    new = "\n".join(["<!-- figures -->", *lines, "<!-- end of figures -->"])
    PAGE.write_text(block.sub(lambda _: new, text), encoding="utf-8")
    print(f"{len(rows) - 1} figures: {PAGE}")


if __name__ == "__main__":
    main()
