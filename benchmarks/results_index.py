"""Make docs/results/README.md: the tables and figures of the five papers, ours beside published.

    python benchmarks/results_index.py

`docs/results/tables.toml` has by hand, for each table or figure, what is claimed, the points that
the claim is about, and why ours differs. The page's text before its table stays as it is. All
numbers and verdicts are read from the papers' pages beside it, which `fedsim reproduce` and
`benchmarks/results_page.py` made; the numbers published for what is not measured come from the
scenarios. The same rows go to `fedsim/reproduce/tables.json`, which ships with the package, for
`fedsim reproduce`.
"""

import html
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedsim.metric import Measure
from fedsim.metrics import installed
from fedsim.report.intervals import change
from fedsim.report.replication import utility_measure
from fedsim.reproduce import figures
from fedsim.reproduce.cells import KNOWN, Cell, Place
from fedsim.reproduce.tables import PAPERS, Compared, Row, write_tables
from fedsim.reproduce.verdict import Measured, judge, shown, speaks_of
from fedsim.scenario.paper import Published

sys.path.insert(0, str(Path(__file__).parent))
from results_page import RESULTS, SOURCE, Section, split

INDEX = RESULTS / "README.md"
NETWORKS = re.compile(r" over victims of (one network|\d+ networks)")
SCALE = re.compile(r"## \S+ \((smoke|paper) scale")
STEP = r"(?:differs by|;) ([+-]\S+(?: points)?)(?: at ([^;:]+?))?(?=;|:| \(|$)"
"""A difference in a verdict, and where."""
WORDS = {
    "agrees": "agree",
    "better": "better",
    "differs": "differ",
    "too few": "with too few values to say",
    "no number": "without a published number",
    "not measured": "not measured",
}
HEADING = "## Ours beside published\n"


@dataclass(frozen=True)
class Point:
    """What a claim is about: a series of a figure at a place; `tables.toml` says what keys mean."""

    what: str
    id: str
    measure: str
    series: str = ""
    at: str = ""
    show: str = ""
    show_measure: str = ""
    page: str = ""
    section: str = ""

    @property
    def how(self) -> Measure:
        """How the measure is read."""
        return measure(self.measure)

    @property
    def statement(self) -> Published | None:
        """The scenarios' first statement about it."""
        place = Place(self.at, frozenset({self.at}))
        for part in figures()[self.id].parts:
            for one in part.paper.published:
                same = (one.measure or part.paper.measure[0]) == self.measure
                if same and {"*", self.series} & {*one.series} and self._speaks(one, place):
                    return one
        return None

    def _speaks(self, one: Published, place: Place) -> bool:
        return all(speaks_of(one, place, x) for x in one.at)


@dataclass(frozen=True)
class Found:
    """A point's result as text; `details` is the verdict on its page, and `place` what is shown."""

    published: str
    ours: str = "–"
    victims: str = "–"
    scale: str = "–"
    verdict: str = "not measured"
    details: str = ""
    place: str = ""

    def compared(self, point: Point) -> Compared:
        """With what is compared, and the difference at the place or else the first one."""
        steps = [(where, by) for by, where in re.findall(STEP, self.details)]
        by = f"by {dict(steps).get(self.place, steps[0][1])}" if steps else ""
        if "no attack succeeded" in self.details:
            by = "(none succeeded)"
        numbers = (self.published, self.ours, self.victims, self.scale)
        return Compared(point.what, *numbers, self.verdict, by)


def measure(name: str) -> Measure:
    """How a measure is read."""
    if name in KNOWN:
        return KNOWN[name]
    return installed()[name].shown if name in installed() else utility_measure(name)


@cache
def sections(paper: str) -> tuple[Section, ...]:
    """The sections of a paper's page."""
    return tuple(split((RESULTS / f"{paper}.md").read_text(encoding="utf-8"))[1])


def grids(text: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The tables of a text without escapes: the line before each, its head and its rows."""
    before, rows = "", list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            rows.append([html.unescape(re.sub(r"\\([\W_])", r"\1", cell)) for cell in cells])
            continue
        if rows:
            yield before, rows[0], rows[2:]
            before, rows = "", []
        before = line or before


def find(point: Point) -> Found:
    """The result of a point on its paper's page: of the first section that measured it."""
    if point.page:
        return training(point)
    for section in sections(point.id.partition("/")[0]):
        found = of_section(point, section) if section.key == point.id else None
        if found and found.verdict != "not measured":
            return found
    return Found(shown(point.statement, point.how) if point.statement else "–")


def of_section(point: Point, section: Section) -> Found:
    """What a section says of a point."""
    found = Found("–")
    for _, head, body in grids(section.text):
        for row in body if "verdict" in head else ():
            cells = dict(zip(head, row, strict=True))
            where = row[2] if head[2] != "ours" else ""
            asked = (point.how.title, point.series, point.at)
            if (row[0], row[1], where) == asked and cells["verdict"] and found.published == "–":
                found = Found(
                    cells["published"],
                    re.sub(r"^(.+) to \1$", r"\1", NETWORKS.sub("", cells["ours"])),
                    cells["n"],
                    verdict=kind(cells["verdict"], cells["published"], point.how),
                    details=cells["verdict"],
                    place=point.at,
                )
    scale = SCALE.match(section.text)
    return replace(shown_at(point, section, found), scale=scale[1] if scale else "–")


def shown_at(point: Point, section: Section, found: Found) -> Found:
    """With mean and interval at the place of a curve that is to be shown."""
    title = measure(point.show_measure or point.measure).title
    for before, head, body in grids(section.text):
        if point.show and before.startswith(f"{title}: ") and point.series in head:
            last = point.show == "last"
            [row] = body[-1:] if last else [row for row in body if row[0] == point.show]
            ours, _, own = NETWORKS.sub("", row[head.index(point.series)]).partition(", n ")
            verdict = found.verdict if point.at else "no number"
            victims = own or row[-1]
            return replace(found, ours=ours, victims=victims, verdict=verdict, place=row[0])
    return found


def training(point: Point) -> Found:
    """What a page says of accuracy: the change in the third column, of one run each."""
    text = (RESULTS / point.page).read_text(encoding="utf-8")
    parts = re.split(r"^#{2,3} ", text, flags=re.MULTILINE)
    [own] = [part for part in parts if part.startswith(f"{point.section}\n")]
    [third] = [row[2] for _, _, body in grids(own) for row in body if row[0] == point.at]
    value, statement = float(third) / 100, point.statement
    assert statement is not None
    cell = Cell(point.measure, "", Place("", frozenset()), 1, value, None, None)
    judged = judge(statement, Measured(point.measure, point.how, "", (cell,)))
    theirs = shown(statement, point.how)
    verdict = kind(judged.text, theirs, point.how)
    return Found(theirs, change(value, point.how), "1 run", "smoke", verdict)


def kind(text: str, published: str, how: Measure) -> str:
    """The kind of a verdict, from its words on a page.

    A difference is "better" if the attack recovers more than a published number at every place.
    Beyond a published limit of what leaks it is not, nor is a change of accuracy: those are claims
    about a defense.
    """
    for known in ("agrees", "too few", "not measured"):
        if text.startswith(known):
            return known
    signs = {by[0] for by, _ in re.findall(STEP, text)}
    more, limit = ("-", "≥") if how.lower else ("+", "≤")
    of_defense = how.signed or published.startswith((limit, "as "))
    if "no attack succeeded" in text or signs != {more} or of_defense:
        return "differs"
    return "better"


def made(table: Mapping[str, Any]) -> Row:
    """The row of one table or figure."""
    points = [Point(**one) for one in table["points"]]
    row = Row(
        paper=table["paper"],
        table=table["name"],
        claim=table["claim"],
        points=tuple(find(point).compared(point) for point in points),
        why=table.get("why", ""),
        ids=tuple(table["ids"]),
    )
    verdict, why = row.decisive.verdict, row.why
    there = {section.key for section in sections(row.paper)}
    missing = [id for id in row.ids if id not in there]
    if verdict in ("differs", "better") and not why:
        why = "The cause is not known."
    if verdict == "not measured":
        takes = figures()[row.ids[0]].words("takes").partition("; ")[0]
        why = f"Not run yet; takes {takes}."
    elif missing and not points[0].page:
        why = f"{why} Not measured: {', '.join(missing)}."
    return replace(row, why=why.strip())


def rows() -> list[Row]:
    """The rows of all tables and figures, in the papers' order."""
    return [made(one) for one in tomllib.loads(SOURCE.read_text(encoding="utf-8"))["table"]]


def cell(*texts: str) -> str:
    """A cell of a Markdown table; several different texts have letters, one a line."""
    escaped = [re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", text) for text in texts]
    if len({*escaped}) == 1:
        return escaped[0]
    return "<br>".join(f"{chr(ord('a') + n)}: {text}" for n, text in enumerate(escaped))


def line(one: Row) -> str:
    """A row in Markdown; its name leads to the section of its first measured scenario."""
    details = [f"{point.verdict} {point.by}".strip() for point in one.points]
    verdict = f"**{one.decisive.verdict}**"
    if len(details) == 1:
        verdict = f"{verdict} {cell(one.decisive.by)}".strip()
    elif {*details} != {one.decisive.verdict}:
        verdict = f"{verdict}<br>{cell(*details)}"
    ids = [f"`{id}`" for id in one.ids]
    short = ids if len(ids) < 5 else [ids[0], "to", ids[-1]]
    texts = [
        "<br>".join([f"[{PAPERS[one.paper].short}, {one.table.lower()}]({target(one)})", *short]),
        cell(one.claim),
        cell(*(point.what for point in one.points)),
        cell(*(point.published for point in one.points)),
        cell(*(point.ours for point in one.points)),
        cell(*(f"{point.victims}; {point.scale}".replace("–; –", "–") for point in one.points)),
        f"{verdict}<br>{cell(one.why)}" if one.why else verdict,
    ]
    return f"| {' | '.join(texts)} |"


def target(one: Row) -> str:
    """The address of the section that a row rests on, or of its paper's page."""
    own = [part for id in one.ids for part in sections(one.paper) if part.key == id]
    if not own:
        measured = one.decisive.verdict != "not measured"
        return "defenses.md" if measured else f"{one.paper}.md"
    title = own[0].text.partition("\n")[0].removeprefix("## ")
    return f"{one.paper}.md#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def tallied(verdicts: Iterable[str]) -> str:
    """How many there are of each verdict, in words."""
    counts = Counter(verdicts)
    return ", ".join(f"{counts[one]} {words}" for one, words in WORDS.items() if counts[one])


def index(page: str, found: Sequence[Row]) -> str:
    """The page: the text before the table stays."""
    points = [point.verdict for one in found for point in one.points]
    tally = (
        f"{len(found)} tables and figures: {tallied(one.decisive.verdict for one in found)}. "
        f"Their {len(points)} compared points: {tallied(points)}."
    )
    head = ["Table, `fedsim reproduce` ...", "What is claimed", "Compared", "Published"]
    head += ["Ours, 95 % interval", "Victims; scale", "Verdict"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *map(line, found)]
    return "\n".join([f"{page.partition(HEADING)[0]}{HEADING}", tally, "", *lines, ""])


def main() -> None:
    """Write the page and the rows that ship."""
    found = rows()
    INDEX.write_text(index(INDEX.read_text(encoding="utf-8"), found), encoding="utf-8")
    write_tables(found)


if __name__ == "__main__":
    main()
