"""The command line: run, report, reproduce, list, show, check."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. training.lr=0.05"),
]
Data = Annotated[
    str,
    typer.Option("--data", envvar="FEDSIM_DATA", help="Folder with local data sets"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output")]


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


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(help="A scenario's name or TOML file")],
    set: Set = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="Run folder [default: runs/NAME]")
    ] = None,
    data: Data = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run")] = False,
    points: Annotated[
        list[str] | None,
        typer.Option("--points", help="Only this point of the sweep; give it once a point"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a scenario: train, intercept, attack, report."""
    from rich.console import Console

    console = Console(stderr=as_json)
    status = None if quiet else console.status("loading")
    if status is not None and console.is_terminal:
        status.start()
    try:
        from fedsim.cli.display import Display, print_summary
        from fedsim.engine.simulate import simulate
        from fedsim.errors import ScenarioError
        from fedsim.scenario import Scenario

        loaded = Scenario.load(scenario, set or [], data=data or None)
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
        if "fedsim.engine.ray" in sys.modules:
            sys.modules["fedsim.engine.ray"].kill_session()
        os._exit(130)  # leaving by the front door, Ray takes seconds to say goodbye
    if as_json:
        from fedsim.report import summary

        _print_json({"report": str(report), "summary": summary(folder)})
    elif not quiet:
        print_summary(console, folder)
        console.print(f"report: {report}", highlight=False, soft_wrap=True)


@app.command()
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


@app.command()
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
    from rich.console import Console

    from fedsim.reproduce import console as terminal

    console = Console()
    if not which:
        terminal.listing(console)
        return
    terminal.reproduce(
        which,
        out,
        scale,
        overrides=set or [],
        data=data,
        play=not show,
        console=console,
        strict=True,
    )


KINDS = ("adversaries", "defenses", "scenarios", "tasks")


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help=" | ".join(KINDS))] = "",
    as_json: AsJson = False,
) -> None:
    """List adversaries, defenses, scenarios and tasks."""
    from rich.console import Console
    from rich.table import Table

    from fedsim import plugin
    from fedsim.errors import ScenarioError, did_you_mean
    from fedsim.scenario import Scenario, scenario_names

    if kind and kind not in KINDS:
        raise ScenarioError(f"nothing called '{kind}' to list. {did_you_mean(kind, KINDS)}")
    found: dict[str, dict[str, str]] = {}
    for each in [kind] if kind else KINDS:
        if each == "scenarios":
            # `fedsim reproduce` lists those of papers by figure.
            own = scenario_names(papers=False)
            found[each] = {name: Scenario.load(name).description for name in own}
        else:
            found[each] = {name: _plugin_summary(each, name) for name in plugin.names(each)}
    if as_json:
        _print_json(found if not kind else found[kind])
        return
    console = Console()
    for each, entries in found.items():
        table = Table(title=each, title_justify="left", box=None, show_header=False)
        for name, summary in entries.items():
            table.add_row(name, summary)
        console.print(table)
    if "scenarios" in found:
        console.print("papers' figures and tables: fedsim reproduce", highlight=False)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An adversary, defense, task or scenario")],
    as_json: AsJson = False,
) -> None:
    """Show a plugin's settings and needs, or a scenario's text."""
    from rich.console import Console

    from fedsim import plugin
    from fedsim.cli.display import describe, print_facts
    from fedsim.errors import ScenarioError, did_you_mean
    from fedsim.scenario import Scenario, scenario_names

    known = {n: kind for kind in ("tasks", "defenses", "adversaries") for n in plugin.names(kind)}
    if name in known:
        facts = describe(known[name], name)
        if as_json:
            _print_json(facts)
        else:
            print_facts(Console(), facts)
            if name in scenario_names():
                typer.echo(f"\nThe scenario '{name}':\n\n{Scenario.load(name).to_toml()}")
    elif name in scenario_names() or Path(name).is_file():
        loaded = Scenario.load(name)
        if as_json:
            _print_json(loaded.to_dict())
        else:
            typer.echo(loaded.to_toml())
    else:
        every = [*known, *scenario_names()]
        listed = [*known, *scenario_names(papers=False)]
        raise ScenarioError(f"nothing called '{name}' to show. {did_you_mean(name, every, listed)}")


@app.command()
def check(
    what: Annotated[str, typer.Argument(help="A scenario, or a plugin as module:Class")],
    set: Set = None,
    data: Data = "",
) -> None:
    """Check a scenario, or a plugin's conformance, before any training."""
    from fedsim.engine.preflight import preflight
    from fedsim.scenario import Scenario

    if ":" in what and not Path(what).exists():
        _check_plugin(what)
        return
    scenario, denied = Scenario.load(what, set or [], data=data or None), False
    for name, point in scenario.points().items():
        task, cautions = preflight(point)
        fewest = min(task.num_examples(client) for client in range(point.training.clients))
        t = point.training
        where = f"{name}: " if name else ""
        typer.echo(
            f"{where}{t.clients} clients, {t.per_round} a round, {t.rounds} rounds of "
            f"{t.algorithm}; at least {fewest} examples a client"
        )
        if fewest < t.batch_size:
            typer.echo(
                f"  a batch of {t.batch_size} is cut to what a client holds, at least {fewest}"
            )
        for caution in cautions:
            typer.echo(f"  warning: {caution}")
        denials = point.denials()
        for label, _, adversary in point.build_adversaries():
            needs = ", ".join(adversary.requires().names())
            lacking = denials.get(label)
            verdict = f"denied: lacks {', '.join(lacking.names())}" if lacking else "granted"
            typer.echo(f"  {label}: needs {needs}: {verdict}")
        if denials:
            denied = True
            typer.echo(
                f"threat.grants = {point.threat.grants!r} withholds what "
                f"{', '.join(denials)} needs; grant it, or leave the adversary out",
                err=True,
            )
    if denied:
        raise typer.Exit(1)


def _check_plugin(what: str) -> None:
    import importlib

    from fedsim.errors import PluginError
    from fedsim.libraries import brief
    from fedsim.testing import conformance

    module, _, name = what.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        cls = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise PluginError(f"{what} cannot be imported: {brief(error)}") from error
    complaints = conformance(cls)
    for complaint in complaints:
        typer.echo(f"  - {complaint}")
    typer.echo(f"{what}: {f'{len(complaints)} complaints' if complaints else 'conforms'}")
    if complaints:
        raise typer.Exit(1)


def _plugin_summary(kind: str, name: str) -> str:
    from fedsim.errors import PluginError
    from fedsim.plugin import find

    try:
        return find(kind, name).summary()
    except PluginError as error:
        return f"(cannot be loaded: {error})"


def _default_folder(name: str, *, resume: bool) -> Path:
    """`runs/NAME`, or the first free `runs/NAME-2`, ...; with `resume` the last that exists."""
    base, number = Path("runs") / name, 1
    last = base
    while (folder := base if number == 1 else base.with_name(f"{name}-{number}")).exists():
        last, number = folder, number + 1
    return last if resume else folder


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def main() -> None:
    """Run the command line; a mistake of the user's ends in one message, never a traceback."""
    import click

    from fedsim.errors import ClientError, EngineError, FedsimError, NotMeasured

    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
    except FedsimError as error:
        if os.environ.get("FEDSIM_DEBUG"):
            raise
        typer.secho(f"error: {error}", fg="red", err=True)
        code = 1 if isinstance(error, ClientError | EngineError | NotMeasured) else 2
    except (KeyboardInterrupt, click.Abort):
        typer.secho("interrupted; what was found is in the run folder", fg="yellow", err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
