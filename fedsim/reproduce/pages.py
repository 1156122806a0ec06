"""Results as pages: one page for each paper, as HTML with plots or as Markdown, and their tables.

A page depends on the run folders alone, and lists every figure of the paper, measured or not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedsim.metric import Measure
from fedsim.report import pages
from fedsim.report.intervals import FEWEST, interval_text
from fedsim.reproduce.cells import Cell, axis
from fedsim.reproduce.outcome import Outcome
from fedsim.reproduce.picture import picture
from fedsim.reproduce.verdict import shown

TEMPLATE = Path(__file__).parent / "templates" / "paper"
Table = dict[str, Any]
"""A table with `head` (column titles) and `body` (rows of text); statements also have `notes`."""


def write_page(path: Path, paper: str, scale: str, found: Sequence[Outcome]) -> Path:
    """Write a page to a path that ends in .html or .md, and return the path.

    Raises:
        RunFolderError: The file cannot be written.
    """
    format: Literal["html", "markdown"] = "html" if path.suffix == ".html" else "markdown"
    return pages.write_page(path, pages.render(_content(paper, scale, found), format, TEMPLATE))


def values(found: Outcome, measure: str) -> Table:
    """Tabulate a measure: a row for each place, a column for each series, chance and n.

    A cell reads `mean [95 % interval]`, followed by its n if that differs within the row.
    """
    cells = [c for s in found.shares for c in s.cells if c.measure == measure]
    names = list(dict.fromkeys(cell.series for cell in cells))
    every = {place.where: place for s in found.shares for place in s.places}
    shown_axis = sorted(
        every.values(), key=lambda p: p.at if isinstance(p.at, float) else 0.0
    )  # Text is not sorted.
    x = found.figure.parts[0].paper.x
    guessed = any(cell.chance is not None for cell in cells)
    body = []
    for place in shown_axis:
        row = [place.where]
        here = [cell for cell in cells if cell.place == place]
        if not here:
            continue
        mixed = len({(cell.n, cell.seeds) for cell in here}) > 1
        for name in names:
            own = [cell for cell in here if cell.series == name]
            row.append(
                "; ".join(number(one, found.how(measure), with_n=mixed) for one in own) or "–"
            )
        chances = [cell.chance for cell in here if cell.chance is not None]
        if guessed:
            row.append(found.how(measure).show(sum(chances) / len(chances)) if chances else "–")
        body.append([*row, _counts(here)])
    head = [axis(x), *names, *(["by chance"] if guessed else []), "n"]
    return {"head": head, "body": body}


def statements(found: Outcome) -> Table:
    """Tabulate measured beside published values: a row for each statement and series.

    `notes` holds the remarks on statements; a number in brackets after a verdict refers to one.
    """
    remarks = dict.fromkeys(o.published.remark for o in found.judgements if o.published.remark)
    notes = {remark: number for number, remark in enumerate(remarks, 1)}
    body = []
    for one in found.judgements:
        source = " (read off the plot)" if one.published.source == "plot" else ""
        theirs = shown(one.published, found.how(one.measure)) + source
        note = f" ({notes[one.published.remark]})" if one.published.remark else ""
        row = _row(found, one.measure, one.series, one.places, one.cells)
        body.append([*row, theirs, one.text + note])
    for share in found.shares if found.figure.parts[0].paper.kind == "table" else ():
        published = {(one.measure, one.series, p) for one in share.judgements for p in one.places}
        body += [
            [*_row(found, c.measure, c.series, [c.place.where], [c]), "–", ""]
            for c in share.cells
            if (c.measure, c.series, c.place.where) not in published
        ]
    x = found.figure.parts[0].paper.x
    head = ["measure", "series", *([axis(x)] if x else []), "ours", "n", "by chance", "published"]
    return {
        "head": [*head, "verdict"],
        "body": body,
        "notes": [f"({number}) {remark}" for remark, number in notes.items()],
    }


def number(cell: Cell, how: Measure, *, with_n: bool = False) -> str:
    """Format a mean with its interval, such as `98.1 % [97, 98.9]`, and the failed attacks.

    With fewer than three seeds the interval is over victims of the same networks, and is labelled
    so: it does not cover the variation between networks.
    """
    text = interval_text(cell.mean, cell.low, cell.high, how)
    if cell.low is not None and cell.seeds < FEWEST and cell.seeds < cell.n:
        networks = "one network" if cell.seeds == 1 else f"{cell.seeds} networks"
        text += f" over victims of {networks}"
    text += f", n {cell.n}" if with_n else ""
    return f"{text} ({cell.broken} failed)" if cell.broken else text


def _row(
    found: Outcome, measure: str, series: str, places: Sequence[str], cells: Sequence[Cell]
) -> list[str]:
    """What was measured of a series at some places: all columns but the published number."""
    how = found.how(measure)
    row = [how.title, series]
    if found.figure.parts[0].paper.x:
        every = {place.where for share in found.shares for place in share.places}
        few = ", ".join(places) if len(places) <= 4 else f"{places[0]} to {places[-1]}"
        row.append("all" if len(places) > 1 and {*places} == every else few)
    if not cells:
        return [*row, "–", "0", "–"]
    means = [cell.mean for cell in cells]
    ours = number(cells[0], how)
    if len(cells) > 1:
        ours = f"{how.show(min(means))} to {how.show(max(means))}"
    return [*row, ours, _counts(cells), _chance(cells, how)]


def _chance(cells: Sequence[Cell], how: Measure) -> str:
    """The random guesses' mean scores, as one number or a range."""
    known = [cell.chance for cell in cells if cell.chance is not None]
    ends = [how.show(end(known)) for end in (min, max)] if known else ["–"]
    return " to ".join(dict.fromkeys(ends))


def _counts(cells: Sequence[Cell]) -> str:
    """The number of values and, if it differs, the number of seeds, such as `20, 2 seeds`."""
    values, seeds = _span([cell.n for cell in cells]), _span([cell.seeds for cell in cells])
    if all(cell.n == cell.seeds for cell in cells):
        return values
    return f"{values}, {seeds} seed{'' if seeds == '1' else 's'}"


def _span(counts: Sequence[int]) -> str:
    return str(counts[0]) if len({*counts}) == 1 else f"{min(counts)}–{max(counts)}"


def _content(paper: str, scale: str, found: Sequence[Outcome]) -> dict[str, Any]:
    pictures: list[dict[str, Any]] = []
    figures = []
    for one in found:
        measures = []
        for name in dict.fromkeys(m for share in one.shares for m in share.paper.measure):
            drawn = picture(one, name)
            if not drawn["data"]:
                continue
            pictures.append(drawn)
            plain = one.figure.parts[0].paper.kind != "table"
            measures.append(
                {
                    "title": one.how(name).title,
                    "words": one.how(name).words,
                    "picture": len(pictures) - 1,
                    "values": values(one, name) if plain else None,
                }
            )
        outcomes = [judgement.outcome for judgement in one.judgements]
        figures.append(
            {
                "id": one.figure.id,
                "anchor": one.figure.id.replace("/", "-"),
                "title": one.figure.title,
                "measures": measures,
                "statements": statements(one),
                "tally": {kind: outcomes.count(kind) for kind in dict.fromkeys(outcomes)},
                "shares": one.shares,
            }
        )
    return {"paper": paper, "scale": scale, "results": figures, "figures": pictures}
