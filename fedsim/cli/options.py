"""Options that several commands share."""

import json
import math
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 200
"""Width of a line, in characters, if the output is no terminal."""

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. training.lr=0.05"),
]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", min=1, metavar="N", help="Repeat with N seeds: seed, seed + 1, ..."),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="Folder with local data sets [default: the scenario's if it is there, or FEDSIM_DATA]",
    ),
]
Out = Annotated[
    str | None, typer.Option("--out", metavar="PATH", help="Run folder [default: runs/NAME]")
]
Points = Annotated[
    list[str] | None,
    typer.Option("--points", help="Only this point of the sweep; give it once a point"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the code that a run folder's scenario names"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output")]


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output: NaN as null, infinity as text."""
    typer.echo(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    """A value without numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_finite, value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value


def open_console(*, stderr: bool = False) -> "Console":
    """A console for tables, which is wide if the output is no terminal, so that nothing is cut."""
    from rich.console import Console

    console = Console(stderr=stderr)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(stderr=stderr, width=WIDE)
