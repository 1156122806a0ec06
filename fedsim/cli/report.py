"""`fedsim report`: a run's page, from its folder alone."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["report"]


def report(
    run_dirs: Annotated[list[Path], typer.Argument(help="One run folder or more")],
    format: Annotated[str, typer.Option("--format", help="html or markdown")] = "html",
) -> None:
    """Write a run's report again, from its folder alone."""
    from fedsim.errors import ScenarioError
    from fedsim.report import write_report

    if format not in ("html", "markdown"):
        raise ScenarioError(f"--format {format}: expected html or markdown")
    kind: Literal["html", "markdown"] = "html" if format == "html" else "markdown"
    for folder in run_dirs:
        typer.echo(write_report(folder, kind))
