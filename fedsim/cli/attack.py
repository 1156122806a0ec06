"""`fedsim attack`: attack a recorded run."""

import functools
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import AsJson, Data, Points, Quiet, Set, Trust, open_console


def attack(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder")],
    scenario: Annotated[
        str | None,
        typer.Argument(help="A scenario whose adversaries, threat and engine are used instead"),
    ] = None,
    adversary: Annotated[
        str | None,
        typer.Option("--adversary", metavar="NAME", help="This one; --set adversaries.0.KEY"),
    ] = None,
    set: Set = None,
    rounds: Annotated[
        str | None, typer.Option("--rounds", help="Only these rounds, such as 1,5-10")
    ] = None,
    clients: Annotated[
        str | None, typer.Option("--clients", help="Only these clients, such as 0,3-5")
    ] = None,
    points: Points = None,
    grants: Annotated[
        str | None,
        typer.Option("--grants", help="Knowledge: a preset, or names separated by commas"),
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Repeat attacks that failed or timed out")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Drop the rows of another adversary of this label")
    ] = False,
    data: Data = "",
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack what a run recorded, without training again; findings join the run's own."""
    from fedsim.cli.working import loading, work

    console = open_console(stderr=as_json)
    with loading(console, quiet=quiet):
        from fedsim.engine.attack import attack as attack_run
        from fedsim.engine.request import changes_of, numbers

        changes = changes_of(
            Path(run), scenario, adversary, set or [], grants, trust=trust, data=data or None
        )
    job = functools.partial(
        attack_run,
        run,
        changes=changes,
        rounds=numbers(rounds, "--rounds"),
        clients=numbers(clients, "--clients"),
        points=points,
        retry=retry,
        overwrite=overwrite,
        trust=trust,
        data=data or None,
    )
    again = ["fedsim", *sys.argv[1:]]
    work(job, Path(run), console, again=again, quiet=quiet, as_json=as_json)
