"""Why the attacks on a run find something or not: diagnosis.csv."""

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from fedsim.adversary import Adversary
from fedsim.attacking.audit import as_stated, planned
from fedsim.attacking.executor import Observer
from fedsim.attacking.modalities import revealed_task_of_run
from fedsim.attacking.revealed import Revealed
from fedsim.diagnosis.cost import seconds
from fedsim.diagnosis.leaks import outcomes
from fedsim.diagnosis.rows import COLUMNS, Attacked, Rows, point_and_seed, recorded
from fedsim.errors import RunFolderError, ScenarioError
from fedsim.inert import restored
from fedsim.libraries import brief
from fedsim.plugin import names
from fedsim.quantity import QUANTITIES
from fedsim.references import is_reference, references
from fedsim.report.diagnosis import ATTACK, FILE
from fedsim.report.folder import read_folder
from fedsim.report.verdict import verdicts_of
from fedsim.runs import provenance
from fedsim.runs.files import write_whole
from fedsim.runs.recording import Recording
from fedsim.runs.tables import cells, lines, place, writing
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, PlannedAdversary, build
from fedsim.seeds import isolated, torch_defaults
from fedsim.task import Task
from fedsim.victim import Loss

if TYPE_CHECKING:
    import pandas as pd

BUDGET = 5.0
"""Seconds that the diagnosis at the end of a run takes, about; `seconds` estimates them."""

MOST = 400
"""The largest number of updates that it measures."""

Item = TypeVar("Item")


@torch_defaults()
def diagnose(
    run: str | Path,
    adversaries: Sequence[Adversary] = (),
    *,
    task: Task | None = None,
    model: Callable[[], nn.Module] | None = None,
    loss: Loss | None = None,
    data: str | Path | None = None,
    trust: bool = False,
) -> "pd.DataFrame":
    """Diagnose every recorded update of a run, for every adversary, and write diagnosis.csv.

    Nothing is attacked. Adversaries are those that the run's scenario names and those that attacked
    it since; of another Flower project, those of its findings, with default settings. Of attacked
    updates that were not recorded, the table has what follows from the scenario alone.

    Args:
        run: The run folder.
        adversaries: Further adversaries.
        task: What the clients trained, for a run of another Flower project.
        model: Makes the model of another Flower project whose clients revealed their examples.
        loss: The training loss of such a project, cross-entropy by default.
        data: Folder of local data sets, the run's own by default.
        trust: Whether to import code that the run's scenario names.

    Returns:
        The table, one row for each update and adversary. `expected` says whether the attack should
        leak, `found` how it ended: "leaks", "less", "nothing", "unscored", "failed", "timeout",
        "denied", "unverified", or "" if it was not made.

    Raises:
        RunFolderError: The folder holds no run, nothing was recorded or attacked, or the model of
            another project is not given.
        ScenarioError: An adversary attacks other modalities.
    """
    folder = Path(run)
    path = folder / "scenario.toml"
    if not path.is_file():
        raise RunFolderError(f"{run} holds no run: there is no scenario.toml in it")
    scenario = Scenario.load(path, data=data, trust=trust)
    if model is not None and task is None:
        task = revealed_task_of_run(folder, model, loss, scenario)
    return diagnosed(folder, scenario, planned(adversaries), task=task, trust=trust)


def diagnosed(
    folder: Path,
    scenario: Scenario,
    more: Sequence[PlannedAdversary] = (),
    *,
    task: Task | None = None,
    trust: bool = False,
) -> "pd.DataFrame":
    """Diagnose a run whose scenario is read; see `diagnose`.

    Args:
        folder: The run folder.
        scenario: Its scenario.
        more: Adversaries beside those that the folder names.
        task: What the clients trained, instead of the scenario's task.
        trust: Whether to import code that attacks on the recording name.
    """
    rows = _measured(folder, scenario, more, task=task, trust=trust)
    if not rows:
        raise RunFolderError(
            f"{folder} has nothing to diagnose: no update was recorded or attacked, or there is no "
            'adversary. Record with record.keep = "all" or fedsim train; name one with '
            "fedsim diagnose --adversary"
        )
    _write(folder, rows)
    return read_diagnosis(folder)


def diagnose_end(
    folder: Path,
    scenario: Scenario,
    observer: Observer,
    more: Sequence[PlannedAdversary] = (),
    *,
    task: Task | None = None,
    after: BuiltRun | None = None,
) -> None:
    """Diagnose the attacked updates of a run that ends, as many as fit in a few seconds.

    Which ones are measured depends on the run alone, and not on the speed of the machine. A failure
    is a caution: it costs the run no result.

    Args:
        folder: The run folder, with its findings.
        scenario: The run's scenario.
        observer: Called with a caution if nothing can be diagnosed.
        more: Adversaries beside those that the folder names.
        task: What the clients trained, instead of the scenario's task.
        after: The run that this process built before; see `build`.
    """
    try:
        if rows := _measured(folder, scenario, more, task=task, after=after, at_end=True):
            _write(folder, rows)
    except Exception as error:  # whatever a plugin or a model does, the run has ended well
        observer("caution", text=f"why attacks leak or not was not measured: {brief(error)}")


def _measured(
    folder: Path,
    scenario: Scenario,
    more: Sequence[PlannedAdversary],
    *,
    task: Task | None,
    after: BuiltRun | None = None,
    trust: bool = False,
    at_end: bool = False,
) -> list[list[Any]]:
    """The rows of diagnosis.csv; at the end of a run of attacked updates alone, not of all."""
    written = provenance.read(folder)
    unknown = [str(key) for key in written.get("unknown", [])]
    optimizer = str(written.get("optimizer", ""))
    if task is None and "task.model" in unknown:
        raise RunFolderError(
            f"{folder} is of another Flower project, whose task.model is not stated in it. "
            "Diagnose it in Python, with its model: fedsim.diagnose(..., model=Net)"
        )
    run = read_folder(folder)
    ended = outcomes(run.rows, run.measures, verdicts_of(run.rows, run.measures))
    attacks = _attacks(run.rows)
    known = {*references(scenario.to_dict())}
    plans = [one for one in _plans(folder) if trust or {*references(one)} <= known]
    points = {
        name: (point, attacks.get(point_and_seed(name, point.seed), []))
        for name, point in scenario.points().items()
    }
    if at_end:
        points = {name: one for name, one in points.items() if one[1]}
    found = list[list[Any]]()
    for name, (point, mine) in points.items():
        table = point.to_dict()
        table["adversaries"] = _distinct([*table.get("adversaries", []), *plans], more, mine)
        after = as_stated(build(Scenario.parse(table, task=task), after=after, task=task), unknown)
        built = _with(after, more)
        making = Rows(name, built, ended, unknown, optimizer)
        with isolated(point.seed, "diagnosis"):
            updates = [*recorded(built, Recording(folder / place("tape", name)))]
            if not updates:
                most = MOST // len(points) if at_end else len(mine)
                found += making.of_attacks(_evenly(mine, most))
                continue
            if at_end:
                each = BUDGET / seconds(built.task.victim(updates[0].before))
                most = int(min(each, MOST)) // len(points)
                chosen = _chosen(mine, {one.victim for one in updates}, most)
                updates = [one for one in updates if one.victim in chosen]
            for one in updates:
                found += making.of_update(one)
    return found


def _write(folder: Path, rows: Iterable[Sequence[Any]]) -> None:
    path = folder / FILE
    with writing(path):
        write_whole(path, lines([COLUMNS, *map(cells, rows)]).encode())


def read_diagnosis(folder: Path) -> "pd.DataFrame":
    """Read diagnosis.csv, numbers as numbers.

    Raises:
        RunFolderError: It cannot be read.
    """
    import pandas as pd

    try:
        table = pd.read_csv(folder / FILE, dtype=str, keep_default_na=False).map(restored)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder / FILE} cannot be read: {error}") from error
    if list(table.columns) != COLUMNS:
        raise RunFolderError(
            f"{folder / FILE} has other columns than this version writes; run fedsim diagnose again"
        )
    for column in ("seed", "round"):
        table[column] = table[column].astype(int)
    for column in ("gain", *(name for name in QUANTITIES if name != "optimizer")):
        table[column] = pd.to_numeric(table[column], errors="coerce")
    return table


def is_current(folder: Path) -> bool:
    """Whether diagnosis.csv has all recorded updates, and no finding or recorded round is newer."""
    path = folder / FILE
    if not path.is_file():
        return False
    indices = [*folder.glob("tape/**/index.jsonl")]
    others = [folder / "findings.csv", *indices]
    newest = max((one.stat().st_mtime for one in others if one.is_file()), default=0.0)
    if path.stat().st_mtime < newest:
        return False
    try:
        table = read_diagnosis(folder)
    except RunFolderError:  # of another version of fedsim
        return False
    there = {place("tape", str(point)): part for point, part in table.groupby("point")}
    for index in indices:
        rows = there.get(index.parent.relative_to(folder).as_posix())
        kept = {one.victim for one in Recording(index.parent)}
        if not kept:
            continue
        if rows is None or len(rows) < rows["label"].nunique() * rows["victim"].nunique():
            return False
        if kept - {*rows["victim"]}:
            return False
    return True


def _plans(folder: Path) -> list[dict[str, Any]]:
    """The adversaries of each `fedsim attack` on a recorded run."""
    found = list[dict[str, Any]]()
    for path in sorted(folder.glob("attacks/*.toml")):
        try:
            found += tomllib.loads(path.read_text(encoding="utf-8")).get("adversaries", [])
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error
    return found


def _attacks(rows: "pd.DataFrame") -> dict[tuple[str, str], list[Attacked]]:
    """A row of the findings for each attack, by point without its seed, and seed."""
    found: dict[tuple[str, str], list[Attacked]] = {}
    for row in rows.drop_duplicates(["point", *ATTACK, "named"]).to_dict("records"):
        found.setdefault((row["point"], row["seed"]), []).append(row)
    return found


def _distinct(
    plans: Sequence[Mapping[str, Any]],
    more: Sequence[PlannedAdversary],
    attacks: Sequence[Attacked],
) -> list[Mapping[str, Any]]:
    """The last plan of each label, and for labels of findings without a plan the defaults.

    Plugins that are not installed here are left out.
    """
    installed, given = {*names("adversaries")}, {label for label, _, _ in more}
    found = {
        str(one.get("label") or one["name"]): one
        for one in plans
        if one["name"] in installed or is_reference(one["name"])
    }
    for row in attacks:
        label, name = row["named"], row["adversary"]
        if name in installed and label not in given:
            found.setdefault(label, {"name": name, "label": label})
    return [*found.values()]


def _with(built: BuiltRun, more: Sequence[PlannedAdversary]) -> BuiltRun:
    """A run with further adversaries, but for labels that it has.

    Those that cannot work on another Flower project, whatever the update, are left out.

    Raises:
        ScenarioError: One of them attacks other modalities.
    """
    task, labels = built.task, {label for label, _, _ in built.adversaries}
    every = [*built.adversaries, *(one for one in more if one[0] not in labels)]
    if isinstance(task, Revealed):
        every = [one for one in every if not task.unsuited(one[2])]
    elif wrong := [text for _, _, one in more for text in one.unsuited(task.spec_type, task.name)]:
        raise ScenarioError("\n".join(wrong))
    return replace(built, adversaries=tuple(every))


def _chosen(attacks: Sequence[Attacked], there: Collection[str], most: int) -> set[str]:
    """The victims that are measured at the end of a run: of each adversary some, evenly spread."""
    victims: dict[str, list[str]] = {}
    for row in attacks:
        if row["victim"] in there:
            victims.setdefault(row["named"], []).append(row["victim"])
    alike = {tuple(sorted(own)) for own in victims.values()}
    return {one for own in alike for one in _evenly(own, most // len(alike))}


def _evenly(items: Sequence[Item], most: int) -> list[Item]:
    """So many of the items, evenly spread from the first to the last, and one at least."""
    if len(items) <= max(1, most):
        return [*items]
    step = (len(items) - 1) / max(1, most - 1)
    return [items[round(at * step)] for at in range(max(1, most))]
