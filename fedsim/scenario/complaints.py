"""What in a scenario contradicts itself, before any plugin is made."""

from collections.abc import Iterator, Sequence

from fedsim.scenario.dotted import short
from fedsim.scenario.paper import Paper
from fedsim.scenario.settings import AttackPlan, Sweep, Threat, Training


def complaints(
    training: Training,
    threat: Threat,
    adversaries: Sequence[AttackPlan],
    sweep: Sweep,
    paper: Paper | None,
) -> list[str]:
    """A line for each contradiction within one of these tables of a scenario, or between them."""
    return [
        *training.complaints(),
        *_followed(threat.follow, training.per_round),
        *_rounds_and_clients(training, threat, adversaries),
        *_adversaries(threat, adversaries),
        *_sweep(sweep),
        *(paper.complaints(sweep) if paper else ()),
    ]


def _followed(follow: Sequence[int], per_round: int) -> Iterator[str]:
    if len(follow) > per_round:
        yield f"threat.follow names {len(follow)} clients, {per_round} take part a round"
    if len({*follow}) < len(follow):
        yield f"threat.follow = {follow} names a client twice; name each once"


def _rounds_and_clients(
    training: Training, threat: Threat, adversaries: Sequence[AttackPlan]
) -> Iterator[str]:
    """Rounds and clients that do not exist, and probes among sums of updates."""
    named = {"threat.follow": threat.follow}
    named |= {f"threat.probes.{i}": [one.client] for i, one in enumerate(threat.probes)}
    if threat.probes and training.secure_aggregation:
        yield (
            "threat.probes under training.secure_aggregation: the server receives sums of "
            "updates alone, and a probe is the update of one client. Leave one of them out"
        )
    plans: dict[str, Threat | AttackPlan] = {"threat": threat}
    plans |= {f"adversaries.{i}": plan for i, plan in enumerate(adversaries)}
    for where, plan in plans.items():
        if isinstance(plan.victims, list):
            named[f"{where}.victims"] = plan.victims
        for round in plan.rounds if isinstance(plan.rounds, list) else ():
            if not 1 <= round <= training.rounds:
                yield (
                    f"{where}.rounds: round {round} is attacked, but rounds go from 1 to "
                    f"{training.rounds}"
                )
    for where, clients in named.items():
        for client in clients:
            if not 0 <= client < training.clients:
                last = training.clients - 1
                yield f"{where}: there is no client {client}; clients go from 0 to {last}"


def _adversaries(threat: Threat, adversaries: Sequence[AttackPlan]) -> Iterator[str]:
    """Labels that occur twice, and adversaries that attack nobody."""
    labels = [plan.title for plan in adversaries]
    for label in sorted({one for one in labels if labels.count(one) > 1}):
        yield f"two adversaries are called '{label}'; give one a label of its own"
    for i, one in enumerate(adversaries):
        whom = threat.victims if one.victims is None else one.victims
        when = threat.rounds if one.rounds is None else one.rounds
        if (whom == [] and not threat.probes) or when == []:
            nothing = "rounds = []" if when == [] else "victims = [], without threat.probes"
            yield (
                f"adversaries.{i} ({one.title}) attacks nobody: {nothing}. Name some, or leave "
                "the key out to attack all"
            )


def _sweep(sweep: Sweep) -> Iterator[str]:
    for key, options in sweep.items():
        if len({short(value) for value in options}) < len(options):
            yield (
                f"sweep.{key}: {options} holds a value twice, or two values that have the same name"
            )
    if "random" in sweep.get("seed", []):
        yield 'sweep.seed holds "random", and each point needs a number'
