"""Why the attacks on a recorded run find something or not: diagnosis.csv."""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedsim.adversary import Adversary
from fedsim.attacking.audit import as_stated, planned
from fedsim.attacking.probes import computed, probes_of
from fedsim.attacking.revealed import Revealed
from fedsim.attacking.scoring import Scorer
from fedsim.diagnosis.head import Layer
from fedsim.diagnosis.leaks import LEAKS, gains
from fedsim.diagnosis.measuring import measure
from fedsim.diagnosis.verdict import expect, rounds_text, sentence
from fedsim.errors import FedsimError, RunFolderError, ScenarioError
from fedsim.plugin import names
from fedsim.quantity import QUANTITIES
from fedsim.records import Interception, Truth, Update
from fedsim.runs import provenance
from fedsim.runs.reading import read_findings, read_measures
from fedsim.runs.recording import Recording
from fedsim.runs.tables import cells, lines, place, writing
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.seeds import isolated
from fedsim.task import Task
from fedsim.victim import Loss

if TYPE_CHECKING:
    import pandas as pd

FILE = "diagnosis.csv"
ABOUT = ["point", "seed", "round", "client", "victim", "label", "adversary"]
VERDICT = ["expected", "found", "gain", "reasons", "unknown", "sentence", "advice"]
COLUMNS = [*ABOUT, *VERDICT, *QUANTITIES, "layers"]
"""Columns of diagnosis.csv, one row for each adversary and recorded update."""

OUTCOMES = {True: "leaks", False: "nothing", None: ""}
"""How `expected` and `found` are written."""


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
    it since; of another Flower project, those of its findings, with default settings.

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
        leak, `found` whether it did: "leaks", "nothing", or "" if that is not known.

    Raises:
        RunFolderError: The folder holds no run, nothing was recorded, or the model of another
            project is not given.
        ScenarioError: An adversary attacks other modalities.
    """
    folder = Path(run)
    path = folder / "scenario.toml"
    if not path.is_file():
        raise RunFolderError(f"{run} holds no run: there is no scenario.toml in it")
    scenario = Scenario.load(path, data=data, trust=trust)
    if model is not None and task is None:
        task = Revealed.of_run(folder, model, loss, scenario)
    return diagnosed(folder, scenario, adversaries, task=task)


def diagnosed(
    folder: Path,
    scenario: Scenario,
    adversaries: Sequence[Adversary] = (),
    *,
    task: Task | None = None,
) -> "pd.DataFrame":
    """Diagnose a run whose scenario is read; see `diagnose`."""
    unknown = [str(key) for key in provenance.read(folder).get("unknown", [])]
    if task is None and "task.model" in unknown:
        raise RunFolderError(
            f"{folder} is of another Flower project, whose task.model is not stated in it. "
            "Diagnose it in Python, with its model: fedsim.diagnose(..., model=Net)"
        )
    findings, _ = read_findings(folder)
    measures, _ = read_measures(folder)
    found = gains(findings, measures)
    plans, rows = _plans(folder), list[list[Any]]()
    built: BuiltRun | None = None
    for name, point in scenario.points().items():
        table = point.to_dict()
        table["adversaries"] = _distinct([*table.get("adversaries", []), *plans], findings)
        built = as_stated(build(Scenario.parse(table, task=task), after=built, task=task), unknown)
        kind = built.task.spec_type
        if wrong := [text for a in adversaries for text in a.unsuited(kind, built.task.name)]:
            raise ScenarioError("\n".join(wrong))
        more = [one for one in planned(adversaries) if one[0] not in _labels(built)]
        every = (*built.adversaries, *more)
        if isinstance(task, Revealed):  # those that cannot work on the project were denied
            every = tuple(one for one in every if not task.unsuited(one[2]))
        built = replace(built, adversaries=every)
        scorer = Scorer(built, name, batch_size_stated="training.batch_size" not in unknown)
        with isolated(point.seed, "diagnosis"):
            for one in _recorded(built, Recording(folder / place("tape", name))):
                steps_known = "training.local_steps" not in unknown or _is_seen(built.task, one)
                rows += _rows(name, built, scorer, one, found, steps_known=steps_known)
    if not rows:
        raise RunFolderError(
            f"{folder} has nothing to diagnose: no update was recorded, or no adversary is named. "
            'Record with record.keep = "all" or fedsim train; name one with --adversary'
        )
    path = folder / FILE
    partial = path.with_name(path.name + ".part")
    with writing(path):
        partial.write_text(lines([COLUMNS, *map(cells, rows)]), encoding="utf-8")
        partial.replace(path)
    return read_diagnosis(folder)


def read_diagnosis(folder: Path) -> "pd.DataFrame":
    """Read diagnosis.csv, numbers as numbers.

    Raises:
        RunFolderError: It cannot be read.
    """
    import pandas as pd

    try:
        table = pd.read_csv(folder / FILE, dtype=str, keep_default_na=False)
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
    """Whether diagnosis.csv is there, and no finding or recorded round is newer."""
    path = folder / FILE
    if not path.is_file():
        return False
    others = [folder / "findings.csv", *folder.glob("tape/**/index.jsonl")]
    newest = max((one.stat().st_mtime for one in others if one.is_file()), default=0.0)
    return path.stat().st_mtime >= newest


def summary(table: "pd.DataFrame") -> Iterator[str]:
    """A sentence for each adversary and point, and one more where the verdict changes with rounds.

    A round has the most frequent verdict of its updates, with their number if they differ.

    Args:
        table: The table that `diagnose` returns.
    """
    by_label: dict[tuple[str, str], dict[int, list[dict[Any, Any]]]] = {}
    for row in table.to_dict("records"):
        rounds = by_label.setdefault((row["point"], row["label"]), {})
        rounds.setdefault(row["round"], []).append(row)
    for (point, _), rounds in by_label.items():
        prefix = f"{point}: " if point else ""
        spans: list[tuple[tuple[Any, ...], str, list[int], list[bool]]] = []
        for number, updates in sorted(rounds.items()):
            keys = [(one["expected"], one["found"], one["reasons"]) for one in updates]
            usual = max(keys, key=keys.count)
            if not spans or spans[-1][0] != usual:
                spans.append((usual, updates[keys.index(usual)]["sentence"], [], []))
            spans[-1][2].append(number)
            spans[-1][3].extend(key == usual for key in keys)
        for _, said, span, alike in spans:
            rest = "" if all(alike) else f" (so in {sum(alike)} of {len(alike)} updates)"
            yield prefix + said.replace(rounds_text(span[:1]), rounds_text(span), 1) + rest


def _plans(folder: Path) -> list[dict[str, Any]]:
    """The adversaries of each `fedsim attack` on a recorded run."""
    found = list[dict[str, Any]]()
    for path in sorted(folder.glob("attacks/*.toml")):
        try:
            found += tomllib.loads(path.read_text(encoding="utf-8")).get("adversaries", [])
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error
    return found


def _labels(built: BuiltRun) -> list[str]:
    return [label for label, _, _ in built.adversaries]


def _distinct(
    plans: Sequence[Mapping[str, Any]], findings: "pd.DataFrame"
) -> list[Mapping[str, Any]]:
    """The last plan of each label, and for labels of findings without a plan the defaults."""
    found = {str(one.get("label") or one["name"]): one for one in plans}
    installed = set(names("adversaries"))
    for label, name in zip(findings["label"], findings["adversary"], strict=True):
        if name in installed:
            found.setdefault(label, {"name": name, "label": label})
    return [*found.values()]


def _recorded(built: BuiltRun, recording: Recording) -> Iterator[Interception]:
    """The recorded updates, and the probes of each round whose global model was kept."""
    for number in recording.rounds:
        there = recording.interceptions(number)
        yield from there.values()
        before = next((one.before for one in there.values()), recording.model(number))
        plans = [plan for _, plan, _ in built.adversaries]
        asked = {pair: None for plan in plans for pair in probes_of(built.scenario, plan, number)}
        for client, probe in asked:
            if before is None:
                break
            nothing = Update(tensors={}, kind="gradient")
            yield computed(built, Interception(number, (client,), before, nothing, probe))


def _rows(
    point: str,
    built: BuiltRun,
    scorer: Scorer,
    one: Interception,
    found: Mapping[tuple[str, str, str], float],
    *,
    steps_known: bool,
) -> list[list[Any]]:
    """The rows of an update, one for each adversary."""
    measured = measure(one, built.task.victim(one.before), truth=_truth(scorer, one))
    values = {**measured.values, **({} if steps_known else {"steps": None})}
    layers = json.dumps({name: _shown(layer) for name, layer in measured.layers.items()})
    rows, where = list[list[Any]](), rounds_text([one.round])
    for label, plan, adversary in built.adversaries:
        score = found.get((point, one.victim, label))
        leaked = None if score is None else score >= LEAKS
        verdict = expect(adversary, built.threat.granted, values)
        said = sentence(label, verdict, values, where=where, found=leaked)
        row = {
            "point": point,
            "seed": built.scenario.seed,
            "round": one.round,
            "client": "+".join(map(str, one.clients)),
            "victim": one.victim,
            "label": label,
            "adversary": plan.name,
            "expected": OUTCOMES[verdict.leaks],
            "found": OUTCOMES[leaked],
            "gain": score,
            "reasons": " ".join(verdict.reasons),
            "unknown": " ".join(each.quantity for each in verdict.unknown),
            "sentence": said,
            "advice": verdict.advice,
            "layers": layers,
            **values,
        }
        rows.append([row[column] for column in COLUMNS])
    return rows


def _is_seen(task: Task, one: Interception) -> bool:
    """Whether `fedsim.watch` saw how a client of another Flower project trained."""
    return isinstance(task, Revealed) and task.state(one.clients, one.round) != "absent"


def _truth(scorer: Scorer, one: Interception) -> Truth | None:
    try:
        return scorer.truth(one)
    except FedsimError:  # such as examples that a client did not reveal
        return None


def _shown(layer: Layer) -> dict[str, Any]:
    snr = None if layer.snr is None else float(f"{min(layer.snr, 1e12):.4g}")
    return {"rank": layer.rank, "most": layer.most, "snr": snr}
