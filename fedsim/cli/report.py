"""`fedsim report`: a run's page, from its folder alone."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def report(
    run_dirs: Annotated[list[Path], typer.Argument(help="One run folder or more")],
    format: Annotated[Literal["html", "markdown"], typer.Option("--format")] = "html",
) -> None:
    """Write a run's report again, from its folder alone."""
    from fedsim.report import write_report

    for folder in run_dirs:
        typer.echo(write_report(folder, format))
