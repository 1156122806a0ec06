"""`fedsim reproduce`: a paper's figures and tables."""

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Data, Set, open_console


def reproduce(
    which: Annotated[
        str, typer.Argument(metavar="[PAPER[/FIGURE]]", help="Nothing: list what there is")
    ] = "",
    scale: Annotated[str, typer.Option("--scale", help="smoke or paper")] = "smoke",
    set: Set = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for all of them")] = Path(
        "runs/reproduce"
    ),
    data: Data = "",
    show: Annotated[bool, typer.Option("--show", help="Run nothing; show what is there")] = False,
) -> None:
    """Reproduce a paper's figures and tables, ours beside published."""
    from fedsim.interrupts import noted
    from fedsim.reproduce import console as terminal

    console = open_console()
    if not which:
        terminal.listing(console)
        return
    try:
        with noted():  # SIGTERM writes the pages, too, as Ctrl-C does
            terminal.reproduce(
                which,
                out,
                scale,
                overrides=set or [],
                data=data,
                execute=not show,
                console=console,
                strict=True,
            )
    except KeyboardInterrupt:
        text = "interrupted; the same command goes on with what is left"
        typer.secho(text, fg="yellow", err=True)
        raise typer.Exit(130) from None
