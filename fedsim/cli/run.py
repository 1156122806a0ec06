"""`fedsim run`: the main job."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import AsJson, Data, Seeds, Set, Trust, open_console, print_json


def run(
    scenario: Annotated[str, typer.Argument(help="A scenario's name or TOML file")],
    set: Set = None,
    seeds: Seeds = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="Run folder [default: runs/NAME]")
    ] = None,
    data: Data = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run")] = False,
    points: Annotated[
        list[str] | None,
        typer.Option("--points", help="Only this point of the sweep; give it once a point"),
    ] = None,
    trust: Trust = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a scenario: train, intercept, attack, report."""
    console = open_console(stderr=as_json)
    status = None if quiet else console.status("loading")
    if status is not None and console.is_terminal:
        status.start()
    try:
        from fedsim.cli.display import Display, print_summary
        from fedsim.engine.simulate import simulate
        from fedsim.errors import ScenarioError
        from fedsim.scenario import Scenario

        loaded = Scenario.load(scenario, set or [], data=data or None, trust=trust)
        if seeds is not None:
            loaded = loaded.over_seeds(range(loaded.seed, loaded.seed + seeds))
    finally:
        if status is not None:
            status.stop()
    if out == "":
        raise ScenarioError("--out is empty: name a folder, or leave it out for runs/NAME")
    folder = Path(out) if out else _default_folder(loaded.name, resume=resume)
    try:
        with Display(console, quiet=quiet) as display:
            report = simulate(loaded, folder, resume=resume, points=points, observer=display)
    except KeyboardInterrupt:
        typer.secho(f"interrupted; what was found is in {folder}", fg="yellow", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        if "fedsim.engine.ray.session" in sys.modules:
            sys.modules["fedsim.engine.ray.session"].kill_session()
        os._exit(130)  # leaving by the front door, Ray takes seconds to say goodbye
    if as_json:
        from fedsim.report import summary

        print_json({"report": str(report), "summary": summary(folder)})
    elif not quiet:
        print_summary(console, folder)
        console.print(f"report: {report}", highlight=False, soft_wrap=True)


def _default_folder(name: str, *, resume: bool) -> Path:
    """`runs/NAME`, or the first free `runs/NAME-2`, ...; with `resume` the last that exists."""
    base, number = Path("runs") / name, 1
    last = base
    while (folder := base if number == 1 else base.with_name(f"{name}-{number}")).exists():
        last, number = folder, number + 1
    return last if resume else folder
