"""Attack a recorded run: no training, no Flower, and Ray only with several attack workers."""

import contextlib
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from itertools import count
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from fedsim.adversary import Adversary
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.audit import as_stated, planned
from fedsim.attacking.campaign import Campaign, Clients, Wanted
from fedsim.attacking.executor import UNLOGGED, Executor, InlineExecutor, Observer
from fedsim.attacking.modalities import revealed_task_of_run
from fedsim.attacking.probes import check_probes, refuse_elsewhere
from fedsim.diagnosis.diagnose import diagnose_end
from fedsim.engine import attack_workers
from fedsim.engine.attackable import check_attackable
from fedsim.engine.process import (
    attack_cautions,
    check_gpus,
    check_importable,
    one_thread,
    reporting,
)
from fedsim.engine.request import SECTIONS, changed
from fedsim.errors import RunFolderError, ScenarioError, did_you_mean
from fedsim.results.loading import load
from fedsim.runs import provenance
from fedsim.runs.ledger import Ledger
from fedsim.runs.lock import alone_in
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.seeds import isolated, torch_defaults
from fedsim.task import Task
from fedsim.temporary import remove_stale
from fedsim.victim import Loss


@torch_defaults()
def attack(  # noqa: PLR0913 - each argument is an option of the command
    run: str | Path,
    adversaries: Sequence[Adversary] = (),
    *,
    changes: Mapping[str, Any] | None = None,
    task: Task | None = None,
    model: Callable[[], nn.Module] | None = None,
    loss: Loss | None = None,
    rounds: Collection[int] | None = None,
    clients: Collection[int] | None = None,
    points: Sequence[str] | None = None,
    retry: bool = False,
    overwrite: bool = False,
    trust: bool = False,
    data: str | Path | None = None,
    observer: Observer = lambda event, **fields: None,
) -> Path:
    """Attack the interceptions that a run recorded, and add the findings to its folder.

    The rows are those that the same adversary would have had in the run itself.

    Args:
        run: The run folder.
        adversaries: The adversaries; by default those that the run's scenario or `changes` name.
        changes: Tables `adversaries`, `threat`, `engine` and `metrics` instead of the run's own;
            of a table, the keys that are left out stay as they were. `search_dirs` lists the
            folders of modules that they name.
        task: What the clients trained, for a run of another Flower project whose task is not
            installed; by default it is made from the run's scenario.
        model: Makes the model of another Flower project whose clients revealed their examples
            (`fedsim.reveal`), such as its class; in place of a task.
        loss: The training loss of such a project, cross-entropy by default.
        rounds: Rounds whose findings are written, all that the threat model selects by default.
        clients: Clients whose findings are written.
        points: Points of the run's sweep, all by default.
        retry: Whether attacks that failed or timed out are repeated.
        overwrite: Whether the rows of another adversary of the same label are dropped.
        trust: Whether to import code that the run's scenario names.
        data: Folder of local data sets, the run's own by default.
        observer: Called with each event.

    Returns:
        The path of the report.

    Raises:
        FedsimError: The folder is no run, is being written, or has no recording of a victim; the
            data differ; or the adversaries cannot be used. Nothing is attacked then.
    """
    remove_stale()
    folder = Path(run)
    scenario, unknown = _scenario_of(folder, trust=trust, data=data)
    observed = provenance.read(folder).get("observed", [])
    if model is not None and task is None:
        task = revealed_task_of_run(folder, model, loss, scenario)
    if "task.model" in unknown and task is None:
        raise RunFolderError(
            f"{folder} is of another Flower project, whose task.model is not stated in it. Attack "
            "it in Python, with the task that its clients trained: fedsim.attack(..., task=...), "
            "or model=... if they revealed their examples"
        )
    with alone_in(folder):
        ledger = Ledger(folder)
        ledger.repair()
        ledger.same_training()
        chosen = _points(scenario, changes or {}, adversaries, points, task)
        prepared: list[tuple[str, BuiltRun]] = []
        after: BuiltRun | None = None
        for name, point in chosen.items():
            if "unknown" in provenance.read(folder):
                refuse_elsewhere(point)
            after = _built(point, adversaries, task, after, [*unknown, *observed])
            if not prepared:
                ledger.same_data(_fingerprint(scenario, after.task, given=task is not None))
            prepared.append((name, after))
        stated = "training.batch_size" not in unknown
        with contextlib.ExitStack() as stack:
            stack.callback(remove_stale)
            stack.enter_context(one_thread())
            stack.enter_context(isolated(scenario.seed, "simulation"))
            wanted = _wanted(_numbers("rounds", rounds), _numbers("clients", clients))
            left = check_attackable(ledger, prepared, wanted, retry=retry, overwrite=overwrite)
            for _, built in prepared if left else ():
                check_gpus(built.scenario, clients_too=False)

            def notify(event: str, **fields: Any) -> None:
                if event not in UNLOGGED:
                    ledger.event(event, **fields)
                observer(event, **fields)

            ledger.describe_metrics(prepared[0][1].scenario)
            file = _store(ledger, prepared[0][1]) if left else ""
            notify("attacking", points=[*chosen], attacks=left, adversaries=file)
            for text in provenance.changed_since(folder):
                notify("caution", text=text)
            own = prepared[0][1].adversaries
            diagnose = functools.partial(
                diagnose_end, folder, scenario, notify, own, task=task, after=after
            )
            stack.enter_context(reporting(ledger, diagnose))
            # Other processes cannot make these again, nor know what was not stated.
            here = bool(adversaries or task or unknown)
            executor = stack.enter_context(
                _executors([built.scenario for _, built in prepared], here=here)
            )
            for name, built in prepared:
                for text in check_probes(built) + attack_cautions(built):
                    notify("caution", point=name, text=text)
                notify("point", point=name, rounds=built.scenario.training.rounds)
                runner = AttackRunner(built, name, batch_size_stated=stated)
                where = executor(runner, notify)
                campaign = Campaign(built, ledger, where, point=name, observer=notify, retry=retry)
                try:
                    _attack_point(campaign, wanted)
                finally:
                    where.cancel()
    return folder / "report.html"


def _attack_point(campaign: Campaign, wanted: Wanted) -> None:
    queued, _ = campaign.recorded(wanted)
    try:
        for round, groups in queued.items():
            campaign.submit(round, groups)
            campaign.collect()
            campaign.observer("round", round=round, of=campaign.scenario.training.rounds)
        campaign.collect(wait=True)
    except BaseException:
        campaign.cancel()
        with contextlib.suppress(Exception):
            campaign.collect()
        raise


def _scenario_of(
    folder: Path, *, trust: bool, data: str | Path | None
) -> tuple[Scenario, list[str]]:
    """The scenario of a run folder, and the keys that were not stated in it."""
    unknown = provenance.read(folder).get("unknown", [])
    return load(folder, data=data, trust=trust).scenario, [str(key) for key in unknown]


def _points(
    scenario: Scenario,
    changes: Mapping[str, Any],
    adversaries: Sequence[Adversary],
    names: Sequence[str] | None,
    task: Task | None,
) -> dict[str, Scenario]:
    """The points that are attacked, with the tables that the attack changes."""
    found = scenario.points()
    for name in names or ():
        if name not in found:
            if not scenario.sweep:
                raise ScenarioError(f"no point '{name}': this run has no [sweep]")
            raise ScenarioError(
                f"no point '{name}' in this run's sweep. {did_you_mean(name, found)}"
            )
    chosen = {}
    for name in names or found:
        table = changed(scenario, name, found[name], changes)
        if adversaries:
            table["adversaries"] = []
        chosen[name] = Scenario.parse(table, task=task)
        if not adversaries and not chosen[name].adversaries:
            raise ScenarioError(
                "no adversary: the run's scenario names none. Name one with --adversary, or a "
                "scenario that has [[adversaries]]"
            )
    return chosen


def _built(
    scenario: Scenario,
    adversaries: Sequence[Adversary],
    task: Task | None,
    after: BuiltRun | None,
    unknown: Sequence[str],
) -> BuiltRun:
    """Build what attacks need; what was not stated of another Flower project is not granted."""
    own = planned(adversaries) if adversaries else None
    built = build(scenario, after=after, task=task, adversaries=own)
    kind = built.task.spec_type
    if wrong := [
        text for _, _, one in built.adversaries for text in one.unsuited(kind, built.task.name)
    ]:
        raise ScenarioError("\n".join(wrong))
    built.task.num_examples(0)
    return as_stated(built, unknown)


def _fingerprint(scenario: Scenario, task: Task, *, given: bool) -> str:
    """That of the data of the scenario itself, as a run keeps it, which a point may replace."""
    if given or not any(key.split(".")[0] == "task" for key in scenario.sweep):
        return task.fingerprint()
    return build(scenario).task.fingerprint()


def _wanted(rounds: Set[int] | None, clients: Set[int] | None) -> Wanted:
    def wanted(round: int, victim: Clients) -> bool:
        return (rounds is None or round in rounds) and (
            clients is None or not clients.isdisjoint(victim)
        )

    return wanted


def _numbers(name: str, given: Collection[int] | None) -> Set[int] | None:
    """The numbers that a program gives, such as a list, a range or a column of a table."""
    try:
        return None if given is None else {operator.index(one) for one in given}
    except TypeError:
        raise ScenarioError(
            f"{name}: found {given!r:.80}; expected a list of numbers, such as [1]"
        ) from None


def _store(ledger: Ledger, built: BuiltRun) -> str:
    """Write which adversaries attack, and under which threat model, to a file of the folder."""
    files = (f"attacks/{number}.toml" for number in count(1))
    name = next(file for file in files if not (ledger.folder / file).exists())
    table = built.scenario.to_dict()
    stated = {key: table[key] for key in SECTIONS if key in table}
    stated["adversaries"] = [
        {**plan.model_dump(exclude_none=True, exclude={"settings"}), **plan.settings}
        for _, plan, _ in built.adversaries
    ]
    ledger.artifact(name, tomli_w.dumps(stated).encode())
    return name


@contextlib.contextmanager
def _executors(
    points: Sequence[Scenario], *, here: bool
) -> Iterator[Callable[[AttackRunner, Observer], Executor]]:
    """Makes what runs a point's attacks: this process, or Ray with several workers."""
    number = attack_workers(points[0])
    if here or number == 1:
        yield InlineExecutor
        return
    for point in points:
        check_importable(point)
    from fedsim.engine.ray.attacks import RayExecutor
    from fedsim.engine.ray.pool import AttackPool
    from fedsim.engine.ray.session import start_session

    pool = AttackPool(start_session(points[0].engine, 0, number).gpus_per_attack)
    try:
        yield lambda runner, observer: RayExecutor(runner, number, pool, observer)
    finally:
        pool.close()
