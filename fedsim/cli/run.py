"""`fedsim run`: the main job."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import AsJson, Data, Out, Points, Quiet, Seeds, Set, Trust, open_console


def run(
    scenario: Annotated[
        str, typer.Argument(help="A scenario's name or TOML file; to resume, also a run folder")
    ],
    set: Set = None,
    seeds: Seeds = None,
    out: Out = None,
    data: Data = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run")] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="With --resume: drop rows of changed adversaries"),
    ] = False,
    points: Points = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a scenario: train, intercept, attack, report."""
    from fedsim.cli.working import load_scenario, loading, resumed, run_folder, work

    console = open_console(stderr=as_json)
    with loading(console, quiet=quiet):
        from fedsim.engine.simulate import simulate

        loaded, given = load_scenario(scenario, set, seeds, data, trust=trust, resume=resume)
    folder = Path(scenario) if given else run_folder(out, loaded.name, resume=resume)
    job = functools.partial(
        simulate, loaded, folder, resume=resume, overwrite=overwrite, points=points
    )
    again = resumed(folder, points, loaded)
    work(job, folder, console, again=again, quiet=quiet, as_json=as_json)
