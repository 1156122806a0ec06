"""The command line, with one file for each command."""

import io
import os
import sys
from typing import Annotated

import typer

from fedsim.cli.attack import attack
from fedsim.cli.check import check
from fedsim.cli.diagnose import diagnose
from fedsim.cli.list import list_
from fedsim.cli.new import new
from fedsim.cli.report import report
from fedsim.cli.reproduce import reproduce
from fedsim.cli.run import run
from fedsim.cli.show import show
from fedsim.cli.train import train

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
for command in (run, train, attack, diagnose, report, reproduce, list_, show, check, new):
    app.command(command.__name__.rstrip("_"))(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from fedsim import __version__

        typer.echo(f"fedsim {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version"),
    ] = False,
) -> None:
    """Simulate federated learning with adversaries that attack every update."""


def main() -> None:
    """Run the command line; an error of the user ends in one message, never a traceback."""
    import click

    from fedsim.errors import ClientError, DiskFull, EngineError, FedsimError, NotMeasured

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # its encoding may lack characters
            stream.reconfigure(errors="replace")
    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
    except FedsimError as error:
        if os.environ.get("FEDSIM_DEBUG"):
            raise
        typer.secho(f"error: {error}", fg="red", err=True)
        ran = isinstance(error, ClientError | DiskFull | EngineError | NotMeasured)
        code = 1 if ran else 2
    except (KeyboardInterrupt, click.Abort):
        typer.secho("interrupted; what was found is in the run folder", fg="yellow", err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except OSError as error:  # a full disk behind the output, a path that is too long
        if os.environ.get("FEDSIM_DEBUG"):
            raise
        typer.secho(f"error: {error} (FEDSIM_DEBUG=1 shows where)", fg="red", err=True)
        code = 1
    sys.exit(code)
