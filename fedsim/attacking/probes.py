"""Probes: a client's local training repeated on the global model of a round, for attacks alone.

The batches, dropout and noise of a probe are the same in every round, so that what is recovered in
two rounds differs by the model alone. No client computes a probe, and training does not feel it.
"""

from dataclasses import replace

from fedsim.errors import ScenarioError
from fedsim.records import Interception, Probe
from fedsim.scenario import AttackPlan, Scenario
from fedsim.scenario.built import BuiltRun
from fedsim.scenario.rounds import chosen_rounds
from fedsim.training.local import client_training, client_update


def probes_of(scenario: Scenario, plan: AttackPlan, round: int) -> list[tuple[int, Probe]]:
    """The probes that an adversary attacks in a round.

    Args:
        scenario: The scenario, for its `[[threat.probes]]`.
        plan: The adversary's plan.
        round: The number of the round.

    Returns:
        Client and probe, in the order of the tables.
    """
    rounds = scenario.threat.rounds if plan.rounds is None else plan.rounds
    if round not in chosen_rounds(rounds, scenario.training.rounds):
        return []
    found: list[tuple[int, Probe]] = []
    for table in scenario.threat.probes:
        first = sum(client == table.client for client, _ in found)
        found += [
            (table.client, Probe(number, table.batch_size))
            for number in range(first, first + table.updates)
        ]
    return found


def computed(built: BuiltRun, one: Interception) -> Interception:
    """Compute the update of a probe; what a client sent is returned as it is.

    The learning rate is `training.lr` in every round, whatever the schedule.

    Raises:
        UpdateRefused: The update holds NaN, or is otherwise one that the server would refuse.
    """
    if one.probe is None:
        return one
    module, where = built.task.victim(one.before).module, (one.draw, one.clients[0])
    batches = built.batches(one.clients[0], one.draw, one.probe.batch_size)
    update, _ = client_update(
        built,
        module,
        one.before,
        where,
        {},
        client_training(built, module, where, batches),
        proximal_mu=float(built.scenario.training.strategy_table.get("proximal_mu", 0.0)),
    )
    update.check(one.before)
    return replace(one, update=update)


def refuse_elsewhere(scenario: Scenario) -> None:
    """Refuse what an audit of another Flower project cannot do.

    Raises:
        ScenarioError: The scenario has probes, which repeat a training that fedsim does not know,
            or sinks, which follow the rounds of fedsim's own runs.
    """
    if scenario.sinks.model_dump(exclude_none=True):
        raise ScenarioError(
            "sinks: curves go to TensorBoard and MLflow from fedsim's own runs, not from another "
            "Flower project. Leave sinks out; fedsim.load reads the same numbers"
        )
    if scenario.threat.probes:
        raise ScenarioError(
            "threat.probes: probes repeat the local training of fedsim's own clients, and those of "
            "another Flower project may train differently. Leave threat.probes out"
        )


def check_probes(built: BuiltRun) -> list[str]:
    """Check the probes of a scenario against its data.

    Returns:
        Warnings for the user.

    Raises:
        ScenarioError: A batch is larger than the client's data.
    """
    tables = built.scenario.threat.probes
    complaints = [
        f"threat.probes.{index}.batch_size = {table.batch_size}, and client {table.client} has "
        f"{held} examples. Lower it, or name a client that has more"
        for index, table in enumerate(tables)
        if table.batch_size > (held := built.task.num_examples(table.client))
    ]
    if complaints:
        raise ScenarioError("\n".join(complaints))
    return [
        f"{defense.name} remembers earlier rounds of a client, and starts anew with each probe of "
        "threat.probes: probes show what leaks in the first round that a client takes part in"
        for defense in built.defenses
        if defense.remembers and any(defense.guards(table.client) for table in tables)
    ]
