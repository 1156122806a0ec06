"""Options that several commands share."""

import json
from typing import Annotated, Any

import typer

__all__ = ["AsJson", "Data", "Set", "print_json"]

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. training.lr=0.05"),
]
Data = Annotated[
    str,
    typer.Option("--data", envvar="FEDSIM_DATA", help="Folder with local data sets"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output")]


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, default=str))
