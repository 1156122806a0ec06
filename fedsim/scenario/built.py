"""The task, plugins and threat model of a scenario, built once in each process."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fedsim.adversary import Adversary
from fedsim.defense import Defense
from fedsim.errors import PluginError, did_you_mean
from fedsim.isolation import wrapped
from fedsim.metric import Metric
from fedsim.records import Batch, Reconstruction
from fedsim.scenario import AttackPlan, Scenario
from fedsim.task import Task
from fedsim.threat import ThreatModel

PlannedAdversary = tuple[str, AttackPlan, Adversary]
"""An adversary with its label in the findings and the plan of its attacks."""


@dataclass(frozen=True, slots=True, eq=False)
class BuiltRun:
    """The task, plugins and threat model of one scenario (one point of a sweep).

    Attributes:
        scenario: The scenario from which all was built.
        task: Data, partition, model and loss, which are loaded when first used.
        defenses: The clients' defenses, in listed order.
        adversaries: (label, plan, adversary) in listed order.
        metrics: The scenario's own metrics, measured in addition to the installed ones.
        threat: The threat model, which grants knowledge to the adversaries.
    """

    scenario: Scenario
    task: Task
    defenses: tuple[Defense, ...]
    adversaries: tuple[PlannedAdversary, ...]
    metrics: tuple[Metric, ...]
    threat: ThreatModel

    def batches(self, client: int, round: int, batch_size: int | None = None) -> list[Batch]:
        """A client's batches in a round.

        Args:
            client: The client, from 0.
            round: The round, from 1.
            batch_size: Examples in a batch, by default those of the scenario.

        Raises:
            DataError: There is no such client.
        """
        size = batch_size or self.scenario.training.batch_size
        steps = self.steps(client, batch_size)
        return self.task.batches(client, round, batch_size=size, steps=steps)

    def steps(self, client: int, batch_size: int | None = None) -> int:
        """The number of local steps of a client in every round.

        Args:
            client: The client, from 0.
            batch_size: Examples in a batch, by default those of the scenario.

        Raises:
            DataError: Steps follow from epochs, and there is no such client.
        """
        training = self.scenario.training
        if training.local_epochs is None:
            return training.local_steps
        return training.local_epochs * math.ceil(
            self.task.num_examples(client) / (batch_size or training.batch_size)
        )


def build(
    scenario: Scenario,
    *,
    after: BuiltRun | None = None,
    task: Task | None = None,
    adversaries: Sequence[PlannedAdversary] | None = None,
) -> BuiltRun:
    """Build a scenario's task, plugins and threat model.

    Args:
        scenario: One point of a sweep, or a scenario without one.
        after: The run that this process built before. Its task is taken over if it has the same
            settings, so that data and model stay loaded from one point of a sweep to the next.
        task: The task, instead of the scenario's own.
        adversaries: The adversaries, instead of the scenario's own. They exist in this process
            already, so that their attacks run here unless `threat.isolation` is "process".

    Returns:
        The run. Data are not loaded yet, unless the task was taken over.

    Raises:
        PluginError: A plugin is unknown, or an adversary recovers what no claim has a field for.
        ScenarioError: A plugin refuses its settings.
    """
    if task is None:
        task = scenario.build_task()
        if after is not None and task.same_as(after.task):
            task = after.task
    if adversaries is None:
        adversaries = scenario.build_adversaries()
    elif scenario.threat.isolation == "process":
        limit = scenario.threat.memory_mb
        adversaries = [
            (label, plan, wrapped(one, memory_mb=limit)) for label, plan, one in adversaries
        ]
    known = [field.name for field in fields(Reconstruction)]
    for label, _, one in adversaries:
        for name in getattr(one, "recovers", ()):
            if name not in known:
                raise PluginError(
                    f"{label}: recovers names '{name}', which is no field of Reconstruction. "
                    f"{did_you_mean(name, known)}"
                )
    return BuiltRun(
        scenario,
        task,
        tuple(scenario.build_defenses()),
        tuple(adversaries),
        tuple(scenario.build_metrics()),
        ThreatModel(scenario.knowledge(), task),
    )
