"""The choice of victims: whom an adversary attacks in a round."""

from collections.abc import Iterable, Sequence, Set
from functools import lru_cache

import torch
from torch import Tensor

from fedsim.scenario import Scenario
from fedsim.scenario.rounds import chosen_rounds
from fedsim.scenario.settings import AttackPlan
from fedsim.seeds import torch_generator


def victims_of(
    scenario: Scenario, plan: AttackPlan, round: int, present: Sequence[tuple[int, ...]]
) -> list[tuple[tuple[int, ...], float]]:
    """Choose an adversary's victims of a round.

    Clients are ranked once a round by a permutation that depends on (seed, round) alone, and not on
    their updates.

    Args:
        scenario: The scenario, for its `threat` table, seed and number of clients.
        plan: The adversary's plan.
        round: The number of the round.
        present: The clients of each update, sorted; several under secure aggregation.

    Returns:
        The clients of each victim, with the probability of being chosen.
    """
    threat = scenario.threat
    rounds = threat.rounds if plan.rounds is None else plan.rounds
    # Another Flower project may train for more rounds than it states.
    if rounds != "all" and round not in chosen_rounds(rounds, scenario.training.rounds):
        return []
    victims = threat.victims if plan.victims is None else plan.victims
    if victims == "all":
        return [(one, 1.0) for one in present]
    if isinstance(victims, list):
        return [(one, 1.0) for one in present if set(one) & set(victims)]
    places = _places(scenario.seed, round, scenario.training.clients)

    def rank(clients: tuple[int, ...]) -> int:
        known = [int(places[client]) for client in clients if client < len(places)]
        return min(known, default=len(places))  # last are nodes whose client is not known

    chosen = sorted(sorted(present, key=rank)[:victims])
    return [(one, min(1.0, victims / len(present))) for one in chosen]


def present_in(
    scenario: Scenario, sent: Iterable[tuple[int, ...]], refused: Iterable[int]
) -> list[tuple[int, ...]]:
    """List those that may be attacked in a round: all who were asked for an update.

    Under secure aggregation that is the one sum, whoever is missing in it. Without a sum, its place
    takes one of all the clients whose replies could not be used.

    Args:
        scenario: The scenario.
        sent: The clients of each update that was received.
        refused: The clients whose replies could not be used.
    """
    updates, others = [*sent], [*refused]
    if not scenario.training.secure_aggregation:
        return updates + [(client,) for client in others]
    return updates or ([tuple(sorted(others))] if others else [])


@lru_cache(maxsize=1)
def _places(seed: int, round: int, clients: int) -> Tensor:
    """The place of each client in the round's ranking, drawn once for all adversaries."""
    return torch.randperm(clients, generator=torch_generator(seed, "victims", round))


def most_victims(scenario: Scenario, plan: AttackPlan) -> int:
    """The largest number of updates that an adversary attacks in one of its rounds."""
    training = scenario.training
    victims = scenario.threat.victims if plan.victims is None else plan.victims
    updates = 1 if training.secure_aggregation else training.per_round
    asked = updates if victims == "all" else victims
    return min(len({*asked}) if isinstance(asked, list) else int(asked), updates)


def most_together(scenario: Scenario, plans: Iterable[AttackPlan]) -> int:
    """The largest number of updates that some adversaries attack in one round, each counted once.

    Of clients that are ranked, those of one adversary are among those of the next; clients that are
    named may be others.
    """
    named, ranked = set[int](), 0
    for plan in plans:
        victims = scenario.threat.victims if plan.victims is None else plan.victims
        if isinstance(victims, list):
            named.update(victims)
        else:
            ranked = max(ranked, most_victims(scenario, plan))
    training = scenario.training
    return min(ranked + len(named), 1 if training.secure_aggregation else training.per_round)


def rounds_of(scenario: Scenario, plan: AttackPlan) -> Set[int]:
    """The rounds that an adversary attacks."""
    rounds = scenario.threat.rounds if plan.rounds is None else plan.rounds
    return chosen_rounds(rounds, scenario.training.rounds)


def most_attacks(scenario: Scenario, plan: AttackPlan) -> int:
    """The largest number of attacks of an adversary in a run."""
    probes = sum(table.updates for table in scenario.threat.probes)
    return len(rounds_of(scenario, plan)) * (most_victims(scenario, plan) + probes)
