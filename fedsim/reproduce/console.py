"""Terminal output of `fedsim reproduce`: list of figures, progress bars and tables."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from fedsim.errors import NotMeasured, ScenarioError
from fedsim.reproduce import driver
from fedsim.reproduce.catalogue import Figure, Part, choose, figures
from fedsim.reproduce.outcome import Outcome, outcome
from fedsim.reproduce.pages import statements, values, write_page
from fedsim.reproduce.tables import PAPERS, tables
from fedsim.scenario.paper import SCALES

PAUSE = 60.0
"""Off a terminal a long reproduction prints a line of progress after as many seconds."""


def listing(console: Console) -> None:
    """Print the papers' tables with claim, verdict and numbers, and all figures with their times.

    The figures of each table follow it; those that belong to no table come last, with their titles.
    """
    known = figures()
    for paper, title in PAPERS.items():
        console.print(f"\n{title.short}: {title.long}", style="bold", highlight=False)
        table = _two_columns()
        for row in (one for one in tables() if one.paper == paper):
            found = row.decisive
            numbers = f"{found.what}: {found.ours}; published {found.published}"
            if len(row.points) > 1:
                numbers += f" ({len(row.points)} points compared)"
            table.add_row(row.table, escape(row.claim), style="bold")
            table.add_row(found.verdict, escape(numbers))
            for id in row.ids:
                table.add_row(f"  {id}", escape(known[id].words("takes")), style="dim")
        console.print(table, highlight=False)
    console.print("\nOther figures", style="bold")
    table = _two_columns()
    listed = {id for row in tables() for id in row.ids}
    for figure in known.values():
        if figure.id not in listed:
            text = f"{figure.title}: {figure.words('takes')}"
            table.add_row(f"  {escape(figure.id)}", escape(text), style="dim")
    console.print(table, highlight=False)


def _two_columns() -> Table:
    columns = (Column(no_wrap=True), Column(overflow="fold"))
    return Table(*columns, box=None, show_header=False, pad_edge=False)


def reproduce(
    which: str,
    out: Path,
    scale: str = "smoke",
    *,
    overrides: Sequence[str] = (),
    data: str = "",
    execute: bool = True,
    console: Console | None = None,
    strict: bool = False,
) -> list[Path]:
    """Run what is left of a paper or figure, print its tables and write its paper's pages.

    A figure that cannot be measured, for example because its data is missing, does not stop the
    others. After Ctrl-C the tables are printed and the pages written with the results so far.

    Args:
        which: A paper ("llg"), a figure ("llg/fig4a"), or a TOML file with a [paper] table.
        out: The folder for all reproductions.
        scale: "smoke" or "paper".
        overrides: Settings as for `--set`, KEY=VALUE.
        data: The folder of local data sets.
        execute: Whether to run anything; if False, or while another process runs the figure, the
            results so far are shown.
        console: Where to print; None prints nothing.
        strict: Raise if there is no measured row in the end.

    Returns:
        The paths of the pages, Markdown before HTML.

    Raises:
        KeyboardInterrupt: There was Ctrl-C or SIGTERM.
        ScenarioError: There is no such figure, or none of the scenarios takes the settings.
        NotMeasured: `strict` is set and there is no row; the pages have been written.
    """
    if scale not in SCALES:
        raise ScenarioError(f"--scale {scale}: expected {' or '.join(SCALES)}")
    console = console or Console(quiet=True)
    chosen = choose(which)
    _check_settings(chosen, scale, overrides, data)
    interrupted = False
    problems: dict[str, dict[str, str]] = {figure.id: {} for figure in chosen}
    for figure in chosen:
        if execute and figure.words("needs"):
            text = f"{figure.id} needs {figure.words('needs')}"
            console.print(text, markup=False, highlight=False, style="dim")
    try:
        with _bars(console) as bars:
            for figure, part in _order(chosen) if execute else ():
                problem = driver.run_figure(
                    figure, part, out, scale, overrides=overrides, data=data, progress=bars
                )
                if problem:
                    problems[figure.id][part.name] = problem
    except KeyboardInterrupt:
        interrupted = True
    finally:
        known = {**figures(), **{figure.id: figure for figure in chosen}}
        found = {
            id: outcome(
                figure,
                out,
                scale,
                overrides=overrides if figure in chosen else (),
                data=data,
                problems=problems.get(id, {}),
                as_run=figure not in chosen,
            )
            for id, figure in known.items()
            if figure.paper in {one.paper for one in chosen}
        }
        pages = []
        for paper in dict.fromkeys(one.figure.paper for one in found.values()):
            own = [one for one in found.values() if one.figure.paper == paper]
            for suffix in (".md", ".html"):
                pages.append(write_page(out / paper / f"{scale}{suffix}", paper, scale, own))
    for figure in chosen:
        _show(console, found[figure.id])
    for page in pages:
        console.print(f"page: {page}", markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        raise KeyboardInterrupt
    shares = [share for figure in chosen for share in found[figure.id].shares]
    if strict and not any(cell.n for share in shares for cell in share.cells):
        reasons = [share.problem for share in shares if share.problem]
        hint = "" if execute else " (--show runs nothing)"
        raise NotMeasured(
            f"{which}: not one row was measured{hint}. {''.join(reasons[-1:])}".strip()
        )
    return pages


def _check_settings(
    chosen: Sequence[Figure], scale: str, overrides: Sequence[str], data: str
) -> None:
    """Raise `ScenarioError` if no scenario takes the settings.

    Some of a paper's scenarios may lack a key that others have.
    """
    mistakes = []
    for part in (part for figure in chosen for part in figure.parts):
        try:
            part.scenario(scale, overrides, data)
        except ScenarioError as error:
            mistakes.append(error)
        else:
            return
    raise mistakes[0]


def _order(chosen: Sequence[Figure]) -> list[tuple[Figure, Part]]:
    """The first scenario of every figure, then the second ones, which are often slow additions."""
    several = ([(figure, part) for part in figure.parts] for figure in chosen)
    return [one for places in itertools.zip_longest(*several) for one in places if one]


def _show(console: Console, found: Outcome) -> None:
    console.print(f"\n{escape(found.figure.id)}: {escape(found.figure.title)}", style="bold")
    for share in found.shares:
        if share.problem:
            console.print(f"{share.part.name}: {share.problem}", markup=False, highlight=False)
    if found.figure.parts[0].paper.kind != "table":
        for name in dict.fromkeys(m for share in found.shares for m in share.paper.measure):
            made = values(found, name)
            if made["body"]:
                _print(console, made["head"], made["body"], title=found.how(name).title)
    made = statements(found)
    if made["body"]:
        # In a narrow column a reason would take dozens of lines, so reasons are printed below.
        reasons: dict[str, int] = {}
        first = len(made["notes"]) + 1
        body = [list(row) for row in made["body"]]
        for row, one in zip(body, found.judgements, strict=False):
            if one.text != one.outcome:
                number = reasons.setdefault(row[-1], first + len(reasons))
                row[-1] = f"{'too few' if one.outcome == 'few' else one.outcome} ({number})"
        _print(console, made["head"], body)
        for line in [*made["notes"], *(f"({number}) {why}" for why, number in reasons.items())]:
            console.print(line, markup=False, highlight=False)


def _print(
    console: Console, head: Sequence[str], body: Sequence[Sequence[str]], title: str = ""
) -> None:
    columns = (Column(escape(column), overflow="fold") for column in head)
    table = Table(*columns, title=escape(title) or None, title_justify="left", box=None)
    for row in body:
        table.add_row(*map(escape, row))
    console.print(table)


@contextlib.contextmanager
def _bars(console: Console) -> Iterator[driver.Progress]:
    """Show a bar for each scenario, from the first report of its progress.

    Where there is no terminal, a plain line says how far a scenario is when it ends, and before
    that once a minute at most, as progress is reported.
    """
    if not console.is_terminal:
        yield _lines(console)
        return
    with Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("points"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
    ) as progress:
        bars: dict[str, TaskID] = {}

        def update(part: str, done: int, of: int, note: str) -> None:
            if part not in bars:
                bars[part] = progress.add_task(part, note="")
            progress.update(bars[part], completed=done, total=of, note=note)

        yield update


def _lines(console: Console) -> driver.Progress:
    said = time.monotonic()

    def update(part: str, done: int, of: int, note: str) -> None:
        nonlocal said
        if done == of or time.monotonic() - said >= PAUSE:
            said = time.monotonic()
            text = f"{part}: {done} of {of} points{f'; {note}' if note else ''}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    return update
