"""Update a committed page of results with what `fedsim reproduce` has measured since.

    python benchmarks/results_page.py docs/results/llg.md [OUT/llg ...]

OUT is the folder that was given to `reproduce --out`. The page keeps, for each figure, the section
with the most complete repetitions (of every series and place), which may be its own. A section at
smoke scale stays beside one at paper scale until all repetitions of paper scale are there. The text
before and after the figures stays. A new figure is inserted in alphabetical order, and removed from
the lists of figures that are not measured, or are measured elsewhere.

Below the heading of each figure stand what the paper claims and how to read what was measured, from
`docs/results/tables.toml`. After a page under `docs/results`, its index, README.md, is
made anew (`benchmarks/results_index.py`).

Intervals that rest on fewer than three seeds are labelled "over victims of one network", as new
pages have it.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.report.intervals import FEWEST
from fedsim.reproduce import figures

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
SOURCE = RESULTS / "tables.toml"
HEAD = re.compile(r"\A(?:(?:Claimed in|Reading of) (?:table|figure) \d+: .*\n\n)+")
"""What `heads` has put below the heading of a section."""
LISTS = ("## Not measured yet", "## Measured elsewhere")
FACTS = re.compile(r"^\S+: data .*$", re.MULTILINE)
SEEDS = re.compile(r"; seeds ([\d, to]+);")
PART = re.compile(r"; seeds in part ([\d, to]+);")
INTERVAL = re.compile(r"(?<=\S )(\\\[[^\[\]|]+, [^\[\]|]+\\\])(?! over)")
"""An interval in a table, `\\[0.1, 0.2\\]`, with the mean before it and no label after it."""
COUNT = re.compile(r"(?P<n>\d+)(, (\d+–)?(?P<seeds>\d+) seeds?)?$")
"""How many values a mean is of, and of how many seeds: `20`, `20, 2 seeds` or `3–4, 1 seed`."""
TITLE = re.compile(r"## (?P<key>[\w-]+/[\w-]+)(?: \([^)]*\))?: ")


@dataclass(frozen=True)
class Section:
    """A figure: its name, such as llg/fig4a, and its text with the heading."""

    key: str
    text: str

    @property
    def complete(self) -> list[int]:
        """Of each scenario, how many seeds there are of which every point has ended."""
        return [_seeds(SEEDS, facts) for facts in FACTS.findall(self.text)]

    @property
    def labelled(self) -> "Section":
        """With a label at each interval that rests on several victims of fewer than three seeds."""
        facts = FACTS.findall(self.text)
        most = max((_seeds(SEEDS, one) + _seeds(PART, one) for one in facts), default=0)
        lines, head = [], list[str]()
        for line in self.text.splitlines():
            cells = [cell.strip() for cell in line.split(" | ")]
            if "n" in (names := [cell.strip("| ") for cell in cells]):
                head = names
            elif head and len(cells) == len(head):
                count = COUNT.search(names[head.index("n")])
                seeds = int(count["seeds"] or most) if count else 0
                if count and 0 < seeds < min(FEWEST, int(count["n"])):
                    networks = "one network" if seeds == 1 else f"{seeds} networks"
                    line = INTERVAL.sub(rf"\1 over victims of {networks}", line)
            lines.append(line)
        return Section(self.key, "\n".join(lines) + "\n")

    def headed(self, lines: Sequence[str]) -> "Section":
        """With paragraphs below its heading: what is claimed, and how to read what was measured."""
        title, _, rest = self.text.partition("\n")
        kept = HEAD.sub("", rest.lstrip("\n"))
        return Section(self.key, "\n\n".join([title, *lines, kept]))

    @property
    def rank(self) -> tuple[int, int]:
        """Complete repetitions of all scenarios together, and where some others have begun."""
        return sum(self.complete), len(PART.findall(self.text))

    def titled(self, scale: str, asked: int) -> "Section":
        """With the scale in its heading, and how many repetitions where that is not all of them."""
        counts = sorted({*filter(None, self.complete)}) or [0]
        some = scale == "paper" and counts[0] < asked
        count = (
            f", {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} of its repetitions"
        )
        note = f" ({scale} scale{count if some else ''}): "
        title = TITLE.match(self.text)
        assert title is not None
        return Section(self.key, f"## {self.key}{note}{self.text[title.end() :]}")


def _seeds(what: re.Pattern[str], facts: str) -> int:
    """How many seeds a scenario's facts list."""
    found = what.search(facts)
    return sum(map(_length, found[1].split(", "))) if found else 0


def _length(seeds: str) -> int:
    """Of `7` or `7 to 16`."""
    first, _, last = seeds.partition(" to ")
    return int(last or first) - int(first) + 1


def split(text: str) -> tuple[str, list[Section], str]:
    """What stands before the figures, the figures, and what stands after them."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    before, sections, after = "", list[Section](), ""
    for part in parts:
        title = TITLE.match(part)
        if title:
            sections.append(Section(title["key"], part.rstrip() + "\n"))
        elif sections:
            after += part
        else:
            before += part
    return before, sections, after


def asked() -> dict[str, int]:
    """How many repetitions each figure has at paper scale."""
    found = {}
    for key, figure in figures().items():
        scenarios = [part.scenario("paper") for part in figure.parts]
        found[key] = max(one.paper.repetitions for one in scenarios if one.paper is not None)
    return found


def heads(source: str) -> dict[str, list[str]]:
    """Paragraphs to put below headings, by figure, from `docs/results/tables.toml`.

    How to read a table or figure is said once, below its first scenario.
    """
    found: dict[str, list[str]] = {}
    for table in tomllib.loads(source)["table"]:
        name = table["name"].lower()
        for id in table["ids"]:
            found.setdefault(id, []).append(f"Claimed in {name}: {table['claim']}")
        reading = f"{table.get('reading', '')} {table.get('why', '')}".strip()
        if reading:
            found[table["ids"][0]].append(f"Reading of {name}: {reading}")
    return {id: [re.sub(r"([*_])", r"\\\1", line) for line in lines] for id, lines in found.items()}


def updated(
    page: str,
    pages: list[tuple[str, str]],
    repetitions: Mapping[str, int],
    below: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The page, with sections of others (scale, text) where those rest on more.

    Args:
        page: The page.
        pages: The others.
        repetitions: Of each figure at paper scale.
        below: Paragraphs to put below the heading of a figure; None leaves headings alone.
    """
    before, own, after = split(page)
    best: dict[str, list[Section]] = {}
    for section in own:
        best.setdefault(section.key, []).append(section)
    for scale, text in pages:
        for section in split(text)[1]:
            there = max((one.rank for one in best.get(section.key, [])), default=(0, 0))
            if section.rank >= there and section.rank > (0, 0):
                kept = [o for o in best.get(section.key, []) if f"({scale} scale" not in o.text]
                wanted = repetitions.get(section.key, 1)
                whole = min(section.complete, default=0) >= wanted
                best[section.key] = [
                    section.titled(scale, wanted),
                    *(kept if scale == "paper" and not whole else []),
                ]
    for key in best.keys() - {section.key for section in own}:
        after = "".join(
            line for line in after.splitlines(keepends=True) if not line.startswith(f"- {key}:")
        )
    # A list that has lost its last line goes, too.
    lists = re.split(r"^(?=## )", after, flags=re.MULTILINE)
    after = "".join(one for one in lists if one.strip() not in LISTS)
    figures = [
        (one.labelled if below is None else one.labelled.headed(below.get(key, ()))).text
        for key in sorted(best)
        for one in best[key]
    ]
    return "\n".join([before.rstrip() + "\n", *figures, after]).rstrip() + "\n"


def main() -> None:
    """Rewrite the page in place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("runs", type=Path, nargs="*", help="folders with smoke.md, paper.md")
    options = parser.parse_args()
    pages = [
        (scale, (runs / f"{scale}.md").read_text(encoding="utf-8"))
        for runs in options.runs
        for scale in ("smoke", "paper")
        if (runs / f"{scale}.md").is_file()
    ]
    text = options.page.read_text(encoding="utf-8")
    below = heads(SOURCE.read_text(encoding="utf-8"))
    options.page.write_text(updated(text, pages, asked(), below), encoding="utf-8")
    if options.page.resolve().parent == RESULTS:
        from results_index import main as make_index

        make_index()


if __name__ == "__main__":
    main()
