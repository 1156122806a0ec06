"""A campaign for another Flower project, which knows only the settings that are stated."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from fedsim.adversary import Adversary
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.campaign import UNKNOWN, Campaign
from fedsim.attacking.executor import InlineExecutor, Observer
from fedsim.attacking.probes import refuse_elsewhere
from fedsim.attacking.revealed import Revealed
from fedsim.errors import ScenarioError
from fedsim.knowledge import Knowledge
from fedsim.plugin import check_objects, find, names
from fedsim.runs import provenance
from fedsim.runs.ledger import Ledger
from fedsim.runs.lock import alone_in
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, PlannedAdversary, build
from fedsim.scenario.settings import AttackPlan
from fedsim.task import RUN_FIELDS, Task

OUT = "runs/audit"
"""The run folder, if none is named."""

LOCAL = ("algorithm", "rounds", "batch_size", "local_steps", "lr", "momentum", "weight_decay")
"""Keys of `training` on how clients train, which may be unknown in another Flower project."""


def audit_campaign(
    adversaries: Sequence[Adversary],
    task: Task | None,
    *,
    out: str | Path = OUT,
    observed: Collection[str] = (),
    seconds: float | None = None,
    observer: Observer = lambda event, **fields: None,
    **settings: Any,
) -> Campaign:
    """Make a campaign for another Flower project, with attacks in this process.

    The label of the second adversary of a kind is `llg 2`, and so on.

    Args:
        adversaries: The adversaries.
        task: What the clients train.
        out: The run folder, in which settings that are not stated are "unknown".
        observed: Keys such as "training.lr" among `settings` that clients were seen to use, and
            nobody stated.
        seconds: Time for attacks at the end of a round; the others are made later.
        observer: Called with each event.
        **settings: Tables of a scenario (seed, threat, training, defenses) that state what the
            server knows and how the clients train. `training` may also name the clients'
            `optimizer`, such as "sgd" or "adam".

    Raises:
        ScenarioError: The task is missing, an adversary attacks other modalities, there are
            probes, or a table holds what a scenario's cannot.
    """
    if task is None:
        raise ScenarioError(
            "neither a model nor a task: give model=, which makes what your clients train, or task="
        )
    kind = task.spec_type
    unsuited = [text for one in adversaries for text in one.unsuited(kind, task.name)]
    if unsuited and not isinstance(task, Revealed):  # there, its rows are "denied"
        raise ScenarioError("\n".join(unsuited))
    table, optimizer = stated_table(settings, clients=task.clients, seed=task.seed)
    training = table["training"]
    if task.name in names("tasks"):
        own = task.model_dump(mode="json", exclude=set(RUN_FIELDS), exclude_none=True)
        table["task"] = {"name": task.name, **own}
        table["data_dir"] = str(task.folder or "")
    scenario = Scenario.parse(table)
    refuse_elsewhere(scenario)
    stated = _stated(scenario, table, task)
    ledger = Ledger.create(Path(out), scenario)
    ledger.artifact("scenario.toml", tomli_w.dumps(stated).encode())
    unknown = [] if "defenses" in table else ["defenses"]
    known = {*training, *(["local_steps"] if "local_epochs" in training else [])}
    unknown += [f"training.{key}" for key in LOCAL if key not in known]
    if "model" not in stated.get("task", {}):
        unknown.append("task.model")
    more: dict[str, Any] = {"observed": sorted(observed)} if observed else {}
    ledger.provenance(
        scenario, {"data": task.fingerprint()}, optimizer=optimizer, unknown=unknown, **more
    )
    built = build(scenario, task=task, adversaries=planned(adversaries))
    built = as_stated(built, [*unknown, *observed])
    runner = AttackRunner(built, batch_size_stated="batch_size" in training)
    executor = InlineExecutor(runner, observer, seconds=seconds)
    campaign = Campaign(built, ledger, executor, observer=observer)
    campaign.trained = task.trained(task.module())
    campaign.optimizer = optimizer
    campaign.held.enter_context(alone_in(ledger.folder))
    return campaign


def stated_table(
    settings: Mapping[str, Any], *, clients: int, seed: int = 0
) -> tuple[dict[str, Any], str]:
    """The scenario's table of what was stated, and the name of the clients' optimizer.

    Args:
        settings: Tables of a scenario.
        clients: The number of clients.
        seed: The seed, if it is not stated.

    Raises:
        ScenarioError: A table lacks what another one depends on.
    """
    if settings.get("seed") == "random":
        raise ScenarioError(
            'seed = "random" is for runs of fedsim itself: clients of another Flower project draw '
            "from generators of their own. Leave seed out, or state a number"
        )
    training = {"clients": clients, **settings.get("training", {})}
    optimizer = training.pop("optimizer", UNKNOWN)
    if not isinstance(optimizer, str):
        raise ScenarioError(
            f"training.optimizer is {optimizer!r}; expected a name, such as 'sgd' or 'adam'"
        )
    rounds = settings.get("threat", {}).get("rounds", "all")
    if isinstance(rounds, str) and rounds != "all" and "rounds" not in training:
        raise ScenarioError(
            f"threat.rounds = {rounds!r} ends with the last round, and training.rounds is not "
            "stated. State the number of rounds, too"
        )
    if "local_epochs" in training and "batch_size" not in training:
        raise ScenarioError(
            "training.local_epochs is stated without training.batch_size, and both decide how many "
            "local steps a client takes. State the batch size, too"
        )
    table = {"name": "audit", "seed": seed, **settings, "training": training}
    return table, optimizer.lower()


def planned(adversaries: Sequence[Adversary]) -> list[PlannedAdversary]:
    """Plan attacks of adversaries; the second of a name has the label `NAME 2`, and so on."""
    check_objects("adversaries", adversaries)
    found, called = list[PlannedAdversary](), Counter[str]()
    for adversary in adversaries:
        called[name := adversary.name] += 1
        label = name if called[name] == 1 else f"{name} {called[name]}"
        plan = AttackPlan(name=name, label=label, settings=adversary.model_dump(exclude_none=True))
        found.append((label, plan, adversary))
    return found


def as_stated(built: BuiltRun, unknown: Collection[str]) -> BuiltRun:
    """Withhold the knowledge that depends on keys which were not stated.

    The steps of clients that reveal them are known of each update alone; see `Revealed.unknown`.
    """
    granted, seen = built.threat.granted, set[str]()
    if isinstance(built.task, Revealed):
        seen.add("training.local_steps")
        built.task.stating(steps="training.local_steps" not in unknown)
    for key, knowledge in provenance.STATED.items():
        if key in unknown and key not in seen:
            granted &= ~Knowledge[knowledge]
    return replace(built, threat=replace(built.threat, granted=granted))


def _stated(scenario: Scenario, table: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """A scenario as a table, without defaults that may be wrong for another Flower project."""
    stated = scenario.to_dict()
    stated["training"] = {key: stated["training"][key] for key in table["training"]}
    if "defenses" not in table:
        stated.pop("defenses", None)
    if "task" not in table:  # a task that is not installed, which nobody could make again
        del stated["task"]
    elif type(task) is not find("tasks", task.name):  # a subclass may build another model
        stated["task"].pop("model", None)
    return stated
