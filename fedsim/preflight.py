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
    defenses = scenario.build_defenses()
    for position, defense in enumerate(defenses):
        if complaint := defense.unknown_layers(trained):
            raise ScenarioError(f"defenses.{position} ({defense.name}).{complaint}")
    clients = range(scenario.training.clients)
    for chain in dict.fromkeys(tuple(d for d in defenses if d.guards(c)) for c in clients):
        local_training(scenario, task, module, (), torch.Generator(), chain)
    return task, Budget(scenario, task).cautions()
