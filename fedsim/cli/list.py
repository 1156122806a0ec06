"""`fedsim list`: what is installed."""

from typing import Annotated

import typer

from fedsim.cli.options import AsJson, open_console, print_json

__all__ = ["list_"]


KINDS = ("adversaries", "defenses", "scenarios", "tasks")


def list_(
    kind: Annotated[str, typer.Argument(help=" | ".join(KINDS))] = "",
    as_json: AsJson = False,
) -> None:
    """List adversaries, defenses, scenarios and tasks."""
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
        print_json(found if not kind else found[kind])
        return
    console = open_console()
    for each, entries in found.items():
        table = Table(title=each, title_justify="left", box=None, show_header=False)
        for name, summary in entries.items():
            table.add_row(name, summary)
        console.print(table)
    if "scenarios" in found:
        console.print("papers' figures and tables: fedsim reproduce", highlight=False)


def _plugin_summary(kind: str, name: str) -> str:
    from fedsim.errors import PluginError
    from fedsim.plugin import find

    try:
        return find(kind, name).summary()
    except PluginError as error:
        return f"(cannot be loaded: {error})"
