"""`fedsim report`: the page of a run, or of several runs beside each other."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def report(
    run_dirs: Annotated[
        list[Path], typer.Argument(help="A run folder; or several, to compare them on one page")
    ],
    format: Annotated[Literal["html", "markdown"], typer.Option("--format")] = "html",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="PATH", help="Page of a comparison [default: ./comparison.html]"
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIR",
            file_okay=False,
            help="Also write the plots of a run there, as PNG and SVG",
        ),
    ] = None,
) -> None:
    """Write a run's report again, or compare several runs; from their folders alone."""
    from fedsim.errors import RunFolderError
    from fedsim.report import compare, write_report

    if figures is not None and len(run_dirs) > 1:
        raise RunFolderError(
            "--figures draws one run: give one run folder, or leave it out to compare several"
        )
    if len(run_dirs) > 1:
        typer.echo(compare(run_dirs, out, format))
    elif out is not None:
        raise RunFolderError(
            "--out is the page of a comparison: give several run folders, or leave it out to write "
            "the page of one run into its folder"
        )
    else:
        typer.echo(write_report(run_dirs[0], format))
        if figures is not None:
            from fedsim.results.plots import Plots

            for path in Plots(run_dirs[0]).save(figures):
                typer.echo(path)
