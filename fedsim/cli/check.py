"""`fedsim check`: what is wrong with a scenario or a plugin, before anything runs."""

from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import Data, Set, Trust
from fedsim.errors import PluginError

if TYPE_CHECKING:
    from fedsim.scenario.built import BuiltRun


def check(
    what: Annotated[
        str,
        typer.Argument(help="A scenario; or an adversary, defense, metric or task as module:Class"),
    ],
    set: Set = None,
    data: Data = "",
    trust: Trust = False,
) -> None:
    """Check a scenario, or a plugin's conformance, before any training."""
    from fedsim.diagnosis.foreseen import foreseen
    from fedsim.engine.preflight import own_task_complaints, preflight
    from fedsim.references import is_reference
    from fedsim.scenario import Scenario

    if (file := Path(what.partition(":")[0])).suffix == ".py":
        raise PluginError(
            f"'{what}' is a file of Python: in its folder, name the class, "
            f"such as fedsim check {file.stem}:Class"
        )
    if is_reference(what) and not Path(what).exists():
        _check_plugin(what)
        return
    scenario, denied = Scenario.load(what, set or [], data=data or None, trust=trust), False
    built = None
    for name, point in scenario.points().items():
        built, cautions = preflight(point, after=built)
        fewest = min(built.task.num_examples(client) for client in range(point.training.clients))
        t = point.training
        where = f"{name}: " if name else ""
        typer.echo(
            f"{where}{t.clients} clients, {t.per_round} a round, {t.rounds} rounds of "
            f"{t.algorithm}; at least {fewest} examples a client"
        )
        complaints = [f"task {complaint}" for complaint in own_task_complaints(built)]
        for caution in cautions + complaints:
            typer.echo(f"  warning: {caution}")
        denials, expected = point.denials(), dict(foreseen(built))
        for label, _, adversary in built.adversaries:
            needs, lacking = ", ".join(adversary.requires().names()), denials.get(label)
            verdict = f"denied: lacks {', '.join(lacking.names())}" if lacking else "granted"
            typer.echo(f"  {label}: needs {needs}: {verdict}")
            if label in expected:
                typer.echo(f"    {expected[label]}")
        if built.adversaries:
            typer.echo(f"  {_bound(built, denials)}")
        if denials:
            denied = True
            typer.echo(
                f"threat.grants = {point.threat.grants!r} withholds what "
                f"{', '.join(denials)} needs; grant it, or leave the adversary out",
                err=True,
            )
    if denied:
        raise typer.Exit(1)


def _bound(built: "BuiltRun", denials: Container[str]) -> str:
    """The number of attacks that are not denied, and the time that their limits allow."""
    from fedsim.attacking.victims import most_attacks
    from fedsim.engine import engine_name, workers

    scenario, engine = built.scenario, built.scenario.engine
    number, seconds, longest = 0, 0.0, 0.0
    for label, plan, _ in built.adversaries:
        if label not in denials and (attacks := most_attacks(scenario, plan)):
            limit = plan.timeout or scenario.threat.timeout
            number, seconds = number + attacks, seconds + attacks * limit
            longest = max(longest, limit)
    at_once = 1
    if engine_name(scenario) == "ray":
        auto = engine.attack_workers == "auto"
        at_once = workers(scenario) if auto else int(engine.attack_workers)
    # However attacks are dealt out, no worker is idle while one waits.
    seconds = seconds / at_once + longest * (1 - 1 / at_once)
    hours, minutes = seconds / 3600, seconds / 60
    most = f"{hours:.3g} h" if hours >= 1 else f"{minutes:.3g} min"
    counted = f"{number} attack{'s' * (number != 1)}"
    several = "" if at_once == 1 else "s"
    return f"{counted}; at most {most} with {at_once} attack worker{several} (threat.timeout)"


def _check_plugin(what: str) -> None:
    from fedsim.references import look_in, resolve
    from fedsim.testing import conformance

    look_in([Path.cwd()])
    complaints = conformance(resolve(what))
    for complaint in complaints:
        typer.echo(f"  - {complaint}")
    number = f"{len(complaints)} complaint{'' if len(complaints) == 1 else 's'}"
    typer.echo(f"{what}: {number if complaints else 'conforms'}")
    if complaints:
        raise typer.Exit(1)
