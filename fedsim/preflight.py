"""Everything that can go wrong before a run, found before there is a run folder."""

import torch

from fedsim.budget import Budget
from fedsim.client import local_training
from fedsim.errors import ScenarioError
from fedsim.scenario import Scenario
from fedsim.strategies import build_strategy, quiet
from fedsim.tasks import Task

__all__ = ["preflight"]


def preflight(scenario: Scenario) -> tuple[Task, list[str]]:
    """Load a scenario's data, build its model and strategy, rehearse its defenses.

    Returns the task, its data loaded, and what the user should be warned of. Raises
    `ScenarioError`, `DataError` or `PluginError`.
    """
    task = scenario.build_task()
    task.num_examples(0)
    task.head  # noqa: B018 - raises where none is found
    module = task.module().train()
    trained = task.trained(module)
    with quiet():
        build_strategy(scenario, set(task.arrays(module)) - trained)
    _check_client_half(scenario)
    defenses = scenario.build_defenses()
    for position, defense in enumerate(defenses):
        if complaint := defense.unknown_layers(trained):
            raise ScenarioError(f"defenses.{position} ({defense.name}).{complaint}")
    clients = range(scenario.training.clients)
    for chain in dict.fromkeys(tuple(d for d in defenses if d.guards(c)) for c in clients):
        local_training(scenario, task, module, (), torch.Generator(), chain)
    return task, Budget(scenario, task).cautions()


def _check_client_half(scenario: Scenario) -> None:
    """Two of Flower's strategies count on clients that clip."""
    asked = scenario.training.strategy
    settings = {"name": asked} if isinstance(asked, str) else asked
    name, norm = str(settings.get("name", "")), settings.get("clipping_norm")
    where = f"training.strategy ({name})"
    if name.endswith("ClientSideAdaptiveClipping"):
        raise ScenarioError(
            f"{where} needs a bit from every client beside its update, which no defense here sends."
            ' Use "DifferentialPrivacyServerSideAdaptiveClipping"'
        )
    bounds = {
        entry.get("clipping_norm", 1.0)
        for entry in scenario.defenses
        if entry.get("name") == "flower-fixed-clipping"
        and entry.get("clients", "all") == entry.get("layers", "all") == "all"
    }
    if name.endswith("ClientSideFixedClipping") and norm not in bounds:
        raise ScenarioError(
            f"{where} adds noise for updates that clients have clipped to {norm}, and none does. "
            f'Add [[defenses]] name = "flower-fixed-clipping", clipping_norm = {norm}'
        )
