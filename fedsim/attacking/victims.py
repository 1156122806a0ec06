"""The choice of victims: whom an adversary attacks in a round."""

from collections.abc import Sequence

import torch

from fedsim.scenario import Scenario
from fedsim.scenario.settings import AttackPlan, attacked_rounds
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
    if rounds != "all" and round not in attacked_rounds(rounds, scenario.training.rounds):
        return []
    victims = threat.victims if plan.victims is None else plan.victims
    if victims == "all":
        return [(one, 1.0) for one in present]
    if isinstance(victims, list):
        return [(one, 1.0) for one in present if set(one) & set(victims)]
    rng = torch_generator(scenario.seed, "victims", round)
    places = torch.randperm(scenario.training.clients, generator=rng).tolist()
    rank = dict(enumerate(places))
    last = len(rank)  # for nodes whose client is not known
    chosen = sorted(sorted(present, key=lambda one: min(rank.get(c, last) for c in one))[:victims])
    return [(one, min(1.0, victims / len(present))) for one in chosen]


def most_attacks(scenario: Scenario, plan: AttackPlan) -> int:
    """The largest number of attacks of an adversary in a run.

    Args:
        scenario: The scenario.
        plan: The adversary's plan.
    """
    training, threat = scenario.training, scenario.threat
    rounds = threat.rounds if plan.rounds is None else plan.rounds
    victims = threat.victims if plan.victims is None else plan.victims
    updates = 1 if training.secure_aggregation else training.per_round
    asked = updates if victims == "all" else victims
    number = len({*asked}) if isinstance(asked, list) else int(asked)
    probes = sum(table.updates for table in threat.probes)
    return len(attacked_rounds(rounds, training.rounds)) * (min(number, updates) + probes)
