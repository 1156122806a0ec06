"""`fedsim list`: plugins, scenarios, models and data, by kind or by word."""

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import AsJson, Data, open_console, print_json


def list_(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND|WORD]",
            help="adversaries, defenses, scenarios, tasks, metrics, models or data; or a word to "
            "look for, such as pruning",
        ),
    ] = None,
    data: Data = "",
    as_json: AsJson = False,
) -> None:
    """List what is installed, of a kind or under a word; everything by default."""
    import difflib

    from rich.markup import escape
    from rich.table import Table

    from fedsim.cli.catalogue import KINDS, entries, matching
    from fedsim.errors import DataError, ScenarioError
    from fedsim.task import named_folder

    word = " ".join(what or ())
    folder = Path(data) if data else named_folder()
    if word == "data" and folder is not None and not folder.is_dir():
        raise DataError(
            f"{folder} is no folder: expected one with local data sets (--data DIR or FEDSIM_DATA)"
        )
    if word in ("", *KINDS):
        found = entries([word] if word else KINDS, folder)
    else:
        found = matching(word, folder)
    if not found:
        # The case of terms is that of the field; the case of the word is the user's.
        terms = {term.lower(): term for each in entries() for term in each.words}
        near = difflib.get_close_matches(word.lower(), {*KINDS, *terms}, n=3)
        hint = f"Near it: {', '.join(terms.get(term, term) for term in near)}. " if near else ""
        raise ScenarioError(f"nothing is found under '{word}'. {hint}Kinds: {', '.join(KINDS)}.")
    tables: dict[str, dict[str, str]] = {}
    for entry in found:
        rows = tables.setdefault(entry.kind, {})
        text = f"{entry.task}: {entry.summary}" if entry.task else entry.summary
        rows[entry.name] = f"{rows[entry.name]}; {text}" if entry.name in rows else text
    if as_json:
        print_json(tables[word] if word in KINDS else tables)
        return
    console = open_console()
    for kind in tables:
        table = Table(title=kind, title_justify="left", box=None, show_header=False)
        for entry in found:
            if entry.kind == kind:
                cells = (entry.name, entry.task or entry.attacks, entry.summary)
                table.add_row(*map(escape, filter(None, cells)))
        console.print(table)
    if "scenarios" in tables:
        console.print("papers' figures and tables: fedsim reproduce", highlight=False)
