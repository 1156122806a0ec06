"""`fedsim train`: record what the server intercepts, without attacks."""

import functools
import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import AsJson, Data, Out, Points, Quiet, Seeds, Set, Trust, open_console


def train(
    scenario: Annotated[
        str, typer.Argument(help="A scenario's name or TOML file; to resume, also a run folder")
    ],
    set: Set = None,
    seeds: Seeds = None,
    out: Out = None,
    data: Data = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue interrupted training")] = False,
    points: Points = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a scenario and record every update, for `fedsim attack`."""
    from fedsim.cli.working import load_scenario, loading, resumed, run_folder, trusted, work

    console = open_console(stderr=as_json)
    with loading(console, quiet=quiet):
        from fedsim.engine.simulate import train as train_scenario

        loaded, given = load_scenario(scenario, set, seeds, data, trust=trust, resume=resume)
    folder = Path(scenario) if given else run_folder(out, loaded.name, resume=resume)
    job = functools.partial(train_scenario, loaded, folder, resume=resume, points=points)
    again = resumed(folder, points, loaded, command="train")
    work(job, folder, console, again=again, quiet=quiet, as_json=as_json)
    if not quiet and not as_json:
        command = shlex.join(["fedsim", "attack", str(folder), *trusted(loaded)])
        text = f"attack it with: {command}{'' if loaded.adversaries else ' --adversary NAME'}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
