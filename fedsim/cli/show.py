"""`fedsim show`: a plugin's settings and needs, or a scenario's text."""

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import AsJson, open_console, print_json

__all__ = ["show"]


def show(
    name: Annotated[str, typer.Argument(help="An adversary, defense, task or scenario")],
    as_json: AsJson = False,
) -> None:
    """Show a plugin's settings and needs, or a scenario's text."""
    from fedsim import plugin
    from fedsim.cli.display import describe, print_facts
    from fedsim.errors import ScenarioError, did_you_mean
    from fedsim.scenario import Scenario, scenario_names

    known = {n: kind for kind in ("tasks", "defenses", "adversaries") for n in plugin.names(kind)}
    if name in known:
        facts = describe(known[name], name)
        if as_json:
            print_json(facts)
        else:
            print_facts(open_console(), facts)
            if name in scenario_names():
                typer.echo(f"\nThe scenario '{name}':\n\n{Scenario.load(name).to_toml()}")
    elif name in scenario_names() or Path(name).is_file():
        loaded = Scenario.load(name)
        if as_json:
            print_json(loaded.to_dict())
        else:
            typer.echo(loaded.to_toml())
    else:
        every = [*known, *scenario_names()]
        listed = [*known, *scenario_names(papers=False)]
        raise ScenarioError(f"nothing called '{name}' to show. {did_you_mean(name, every, listed)}")
