"""`fedsim show`: the description and settings of an entry of `fedsim list`, or a scenario."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import AsJson, Trust, open_console, print_json

if TYPE_CHECKING:
    from fedsim.scenario import Scenario


def show(
    name: Annotated[
        str, typer.Argument(help="An adversary, defense, scenario, task, metric, model or data")
    ],
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Show what something is, what it needs and its settings, or a scenario's text."""
    from fedsim.cli.catalogue import entries
    from fedsim.cli.display import print_facts
    from fedsim.errors import ScenarioError, did_you_mean
    from fedsim.scenario import scenario_names

    kinds = ("adversaries", "defenses", "tasks", "metrics", "models", "data")
    known, scenarios = entries(kinds), scenario_names()
    facts = [entry.describe() for entry in known if entry.name == name]
    if as_json and facts:
        print_json(facts[0] if len(facts) == 1 else facts)
        return
    for one in facts:
        print_facts(open_console(), one)
    if facts:
        if name in scenarios:
            typer.echo(f"\nThe scenario '{name}':\n\n{_shown(name).to_toml()}")
    elif name in scenarios or Path(name).is_file():
        loaded = _shown(name, trust=trust)
        if as_json:
            print_json(loaded.to_dict())
        else:
            typer.echo(loaded.to_toml())
    else:
        names = [entry.name for entry in known]
        meant = did_you_mean(name, [*names, *scenarios], [*names, *scenario_names(papers=False)])
        raise ScenarioError(f"nothing called '{name}' to show. {meant}")


def _shown(name: str, *, trust: bool = False) -> "Scenario":
    """A scenario with the data folder that its file states, whatever FEDSIM_DATA names."""
    from fedsim.scenario import Scenario, locate, read_table

    stated = read_table(locate(name)).get("data_dir", "")
    return Scenario.load(name, trust=trust).model_copy(update={"data_dir": stated})
