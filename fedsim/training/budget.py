"""What a run's defenses have spent of their privacy budgets, round by round."""

import functools
from collections.abc import Mapping

from fedsim.defense import Defense, Exposure, overlap
from fedsim.scenario.built import BuiltRun

__all__ = ["Budget"]

PLAIN_MEAN = ("FedAvg", "FedProx", "FedSGD")
"""Strategies whose new model is the plain mean of what clients send, so that noise adds up."""


class Budget:
    """Counts for every defense what `Defense.spent` asks for."""

    def __init__(self, built: BuiltRun) -> None:
        self.scenario, self.task, self.defenses = built.scenario, built.task, built.defenses

    @functools.cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        """What is trained, and the buffers that travel with it."""
        module = self.task.module()
        trained = self.task.trained(module)
        return trained, frozenset(self.task.arrays(module)) - trained

    def spent(self, rounds: int, taken_part: Mapping[int, int]) -> dict[str, float]:
        """Epsilon, delta and what else defenses report after so many rounds.

        taken_part: by client, the rounds it took part in. Where several defenses report, their
        names stand before the quantities.
        """
        reports = {
            position: dict(defense.spent(self._exposure(position, rounds, taken_part)))
            for position, defense in enumerate(self.defenses)
            if type(defense).spent is not Defense.spent
        }
        if len(reports) == 1:
            return next(iter(reports.values()))
        return {
            f"{self.defenses[position].name}.{position} {key}": value
            for position, report in reports.items()
            for key, value in report.items()
        }

    def cautions(self) -> list[str]:
        """What the defenses have to say before a run, as if one client took part in every round."""
        rounds = self.scenario.training.rounds
        taken_part = dict.fromkeys(range(self.scenario.training.clients), rounds)
        self.spent(rounds, taken_part)  # an accountant that fails does so before any training
        return [
            caution
            for position, defense in enumerate(self.defenses)
            for caution in defense.cautions(self._exposure(position, rounds, taken_part))
        ]

    def _exposure(self, position: int, rounds: int, taken_part: Mapping[int, int]) -> Exposure:
        training, defense = self.scenario.training, self.defenses[position]
        held = {client: self.task.num_examples(client) for client in range(training.clients)}
        fewest = min(number for client, number in held.items() if defense.guards(client))
        everyone = all(map(defense.guards, held))
        # What comes later may take most of the noise away again before it is added up.
        last = not any(
            overlap(defense, later) and type(later).protect is not Defense.protect
            for later in self.defenses[position + 1 :]
        )
        adds_up = fewest >= training.batch_size and everyone and last
        name = training.strategy
        name = str(name.get("name", "FedAvg")) if isinstance(name, dict) else name
        sampled = not self.scenario.threat.follow
        # Where clients may be dropped, one may be left; of a secure sum two at least.
        hidden = bool(training.secure_aggregation)
        added = training.per_round if training.on_failure == "stop" else 1 + hidden
        return Exposure(
            rounds=rounds,
            participations=max((n for c, n in taken_part.items() if defense.guards(c)), default=0),
            clients=training.clients,
            clients_per_round=training.per_round,
            examples=fewest,
            batch_size=min(training.batch_size, fewest),
            local_steps=training.local_steps,
            summed=added if hidden and adds_up else 1,
            released=added if adds_up and sampled and name in PLAIN_MEAN else 0,
            trained=self._names[0],
            buffers=self._names[1],
            uniform=self.task.draws_uniformly,
        )
