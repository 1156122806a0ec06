"""The privacy budgets that a run's defenses have spent, round by round."""

import functools
from collections.abc import Mapping

from fedsim.defense import Defense, Exposure, overlap
from fedsim.errors import PluginError
from fedsim.libraries import asking
from fedsim.scenario.built import BuiltRun

PLAIN_MEAN = ("FedAvg", "FedProx", "FedSGD")
"""Strategies whose new model is the plain mean of what clients send, so that noise adds up."""


TAKEN = frozenset({"round", "of", "point", "loss", "accuracy", "num_examples", "train_loss"})
"""Names that mean something else in utility.csv."""


class Budget:
    """Counts the exposure of clients, from which defenses compute what they have spent."""

    def __init__(self, built: BuiltRun) -> None:
        self.built = built
        self.scenario, self.task, self.defenses = built.scenario, built.task, built.defenses

    @functools.cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the trained parameters, and of the buffers that are sent with them."""
        module = self.task.module()
        trained = self.task.trained(module)
        return trained, frozenset(self.task.arrays(module)) - trained

    def spent(self, rounds: int, taken_part: Mapping[int, int]) -> dict[str, float]:
        """Epsilon, delta and other quantities that defenses report.

        Args:
            rounds: The number of rounds so far.
            taken_part: The number of rounds that each client took part in.

        Returns:
            The quantities by name. If several defenses report, a name begins with the defense's.
        """
        reports = {
            position: _reported(defense, self._exposure(position, rounds, taken_part))
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
        """Warnings of the defenses before a run, for a client that takes part in every round."""
        rounds = self.scenario.training.rounds
        taken_part = dict.fromkeys(range(self.scenario.training.clients), rounds)
        self.spent(rounds, taken_part)  # a failing accountant is an error before training
        return [
            caution
            for position, defense in enumerate(self.defenses)
            for caution in _cautions(defense, self._exposure(position, rounds, taken_part))
        ]

    def _exposure(self, position: int, rounds: int, taken_part: Mapping[int, int]) -> Exposure:
        training, defense = self.scenario.training, self.defenses[position]
        held = {client: self.task.num_examples(client) for client in range(training.clients)}
        fewest = min(number for client, number in held.items() if defense.guards(client))
        everyone = all(map(defense.guards, held))
        # A later defense may remove most of the noise before updates are added up.
        last = not any(
            overlap(defense, later) and type(later).protect is not Defense.protect
            for later in self.defenses[position + 1 :]
        )
        # Clients weigh as many examples as they train on.
        steps = {client: self.built.steps(client) for client in held}
        alike = training.batching == "draw" and len({*steps.values()}) == 1
        adds_up = fewest >= training.batch_size and alike and everyone and last
        name = training.strategy_table["name"]
        sampled = not self.scenario.threat.follow
        # If clients may be dropped, a single one may be left, or two of a secure sum.
        hidden = bool(training.secure_aggregation)
        added = training.per_round if training.on_failure == "stop" else 1 + hidden
        return Exposure(
            rounds=rounds,
            participations=max((n for c, n in taken_part.items() if defense.guards(c)), default=0),
            clients=training.clients,
            clients_per_round=training.per_round,
            examples=fewest,
            batch_size=min(training.batch_size, fewest),
            local_steps=max(n for client, n in steps.items() if defense.guards(client)),
            summed=added if hidden and adds_up else 1,
            released=added if adds_up and sampled and name in PLAIN_MEAN else 0,
            trained=self._names[0],
            buffers=self._names[1],
            uniform=self.task.draws_uniformly and training.batching == "draw",
        )


def _reported(defense: Defense, exposure: Exposure) -> dict[str, float]:
    """What a defense has spent, as numbers by name."""
    with asking(defense.name, "spent"):
        found = defense.spent(exposure)
    try:
        report = {str(name): float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise PluginError(
            f"{defense.name}: spent returned {type(found).__name__} {found!r:.60}, expected "
            "numbers by name, such as {'epsilon': 3.1}"
        ) from error
    if taken := sorted(TAKEN & {*report}):
        raise PluginError(
            f"{defense.name}: spent reports {', '.join(taken)}, which utility.csv has for "
            "something else: choose another name"
        )
    return report


def _cautions(defense: Defense, exposure: Exposure) -> list[str]:
    """The warnings of a defense."""
    with asking(defense.name, "cautions"):
        found = defense.cautions(exposure)
        return [found] if isinstance(found, str) else [*found]
