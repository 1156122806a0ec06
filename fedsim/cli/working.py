"""What the commands that run, train and attack have in common: display, Ctrl-C and the summary."""

import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsim.cli.options import print_json
from fedsim.interrupts import noted

if TYPE_CHECKING:
    from rich.console import Console

    from fedsim.scenario import Scenario

_ENDS = (("fedsim.engine.ray.session", "kill_session"), ("fedsim.isolation.process", "stop"))
"""What ends other processes when this one is interrupted."""


@contextmanager
def loading(console: "Console", *, quiet: bool) -> Iterator[None]:
    """Show on a terminal that libraries are being loaded, which takes seconds.

    No garbage is looked for meanwhile: these libraries make none, and a tenth of the CPU time of a
    short command went into looking.
    """
    status = None if quiet else console.status("loading")
    if status is not None and console.is_terminal:
        status.start()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        if status is not None:
            status.stop()


def work(
    job: Callable[..., Path],
    folder: Path,
    console: "Console",
    *,
    again: Sequence[str],
    quiet: bool,
    as_json: bool,
) -> None:
    """Do a job on a run folder, show its progress, and print what leaked.

    Args:
        job: Called with `observer=`; returns the path of the report.
        folder: The run folder.
        console: Where to print.
        again: The command that continues the job after an interruption.
        quiet: Whether to print nothing but errors.
        as_json: Whether to print the summary as JSON.
    """
    from fedsim.cli.display import Display
    from fedsim.cli.summary import print_summary
    from fedsim.errors import ClientError, DiskFull, EngineError

    command = f"continue with: {shlex.join(again)}"
    try:
        with noted(), Display(console, quiet=quiet) as display:
            report = job(observer=display)
    except KeyboardInterrupt:
        typer.secho(f"interrupted; what was found is in {folder}", fg="yellow", err=True)
        typer.secho(command, fg="yellow", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        for module, end in _ENDS:
            if module in sys.modules:
                getattr(sys.modules[module], end)()
        os._exit(130)  # leaving by the front door, Ray takes seconds to say goodbye
    except (ClientError, DiskFull, EngineError):
        table = folder / "findings.csv"
        if table.exists() and table.read_bytes().count(b"\n") > 1:
            typer.secho(f"what was found is in {folder}; {command}", fg="yellow", err=True)
        raise
    if as_json:
        from fedsim.report import summary

        print_json({"report": str(report), "summary": summary(folder)})
    elif not quiet:
        print_summary(console, folder)
        console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)


def run_folder(out: str | None, name: str, *, resume: bool) -> Path:
    """`--out`, or `runs/NAME`, or the first free `runs/NAME-2`, ...; to resume, the last one."""
    from fedsim.errors import ScenarioError

    if out == "":
        raise ScenarioError("--out is empty: name a folder, or leave it out for runs/NAME")
    if out:
        return Path(out)
    base, number = Path("runs") / name, 1
    last = base
    while (folder := base if number == 1 else base.with_name(f"{name}-{number}")).exists():
        last, number = folder, number + 1
    return last if resume else folder


def load_scenario(
    source: str,
    overrides: Sequence[str] | None,
    seeds: int | None,
    data: str,
    *,
    trust: bool,
    resume: bool,
) -> "tuple[Scenario, bool]":
    """The scenario that a command names, and whether it names a run folder.

    Raises:
        ScenarioError: There is no such scenario, or it is a run folder and nothing is resumed.
    """
    from fedsim.errors import ScenarioError
    from fedsim.scenario import Scenario

    of_run = (Path(source) / "scenario.toml").is_file()
    if of_run and not resume:
        raise ScenarioError(
            f"{source} is a run folder: continue it with --resume, or attack what it recorded with "
            f"fedsim attack {source}"
        )
    path = Path(source) / "scenario.toml" if of_run else source
    loaded = Scenario.load(path, overrides or [], data=data or None, trust=trust)
    if seeds is not None:
        loaded = loaded.over_seeds(range(loaded.seed, loaded.seed + seeds))
    return loaded, of_run


def resumed(
    folder: Path, points: Sequence[str] | None, scenario: "Scenario", command: str = "run"
) -> list[str]:
    """The command that continues a run from its folder, with `--trust` if that names code."""
    chosen = [word for point in points or () for word in ("--points", point)]
    return ["fedsim", command, str(folder), "--resume", *chosen, *trusted(scenario)]


def trusted(scenario: "Scenario") -> list[str]:
    """The option that a command on a run folder needs if its scenario names code."""
    from fedsim.scenario.files import code_named

    return ["--trust"] if code_named(scenario.to_dict()) else []
