"""Run a figure's scenarios, one repetition after another, so that stopping costs only precision.

    OUT/PAPER/FIGURE/SCALE/SCENARIO/    a run folder; its points: `seed=13,training.batch_size=8`

A second call continues where the first one stopped: it skips finished points, and adds further
repetitions and points to the run folder.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsim import interrupts
from fedsim.engine import simulate as simulation
from fedsim.engine.preflight import preflight
from fedsim.errors import DataError, FedsimError
from fedsim.reproduce.catalogue import GROWING, Figure, Part
from fedsim.runs.files import make_private
from fedsim.runs.ledger import Ledger, place
from fedsim.runs.lock import locked
from fedsim.runs.tables import not_writable
from fedsim.scenario import Scenario, read_table
from fedsim.scenario.settings import Record
from fedsim.task import named_folder

Progress = Callable[[str, int, int, str], None]
"""progress(scenario, finished points, all points, progress of the current point)"""


def folder_of(out: Path, figure: Figure, part: Part, scale: str) -> Path:
    """The run folder of one scenario of a figure."""
    return out / figure.id / scale / part.name


def run_figure(
    figure: Figure,
    part: Part,
    out: Path,
    scale: str,
    *,
    overrides: Sequence[str] = (),
    data: str = "",
    progress: Progress = lambda part, done, of, note: None,
) -> str:
    """Run what is left of one scenario of a figure.

    An error, such as missing data, is returned and not raised, so that the other scenarios go on.

    Args:
        figure: The figure.
        part: Its scenario.
        out: The folder for all reproductions.
        scale: "smoke" or "paper".
        overrides: Settings as for `--set`, KEY=VALUE.
        data: The folder of local data sets.
        progress: Called after each step.

    Returns:
        Why the scenario could not be measured, or "".
    """
    folder = folder_of(out, figure, part, scale)
    try:
        scenario = part.scenario(scale, overrides, data)
        _own(out / figure.paper, scenario)
        with locked(folder.parent / f".{part.name}.lock") as ours:
            if not ours:
                return "another process is at it; this is what there is so far"
            return _run_points(scenario, folder, progress, part.name)
    except DataError as error:
        interrupts.check()
        # Pages are shared: they must not contain the local path of the data.
        reason = str(error)
        if named := named_folder(data):
            reason = reason.replace(str(named), "--data")
        return f"needs {part.paper.needs}: {reason}" if part.paper.needs else reason
    except FedsimError as error:
        interrupts.check()
        return str(error)


def unfinished(figure: Figure, part: Part, out: Path, scale: str) -> int:
    """The number of points of one scenario of a figure that have not ended."""
    scenario, folder = part.scenario(scale), folder_of(out, figure, part, scale)
    assert scenario.paper is not None  # noqa: S101 - the catalogue holds no other
    names = {
        name
        for seed in range(scenario.seed, scenario.seed + scenario.paper.repetitions)
        for name in _names(scenario, seed)
    }
    return len(names - (Ledger(folder).ended() if folder.exists() else set()))


def _own(folder: Path, scenario: Scenario) -> None:
    """Make the folder of a paper's pages and runs; pages of figures about images show examples."""
    try:
        if not folder.exists():
            make_private(folder, shared=scenario.record.shared)
    except OSError as error:
        raise not_writable(folder, error) from error


def _run_points(scenario: Scenario, folder: Path, progress: Progress, name: str) -> str:
    """Run the points that are left, and return why some of them failed, or ""."""
    assert scenario.paper is not None  # noqa: S101 - the catalogue holds no other
    scenario.refuse_drawn("a reproduction counts its seeds up")
    seeds = range(scenario.seed, scenario.seed + scenario.paper.repetitions)
    exists = (folder / "scenario.toml").exists()
    done: set[str] = set()
    if exists:
        so_far = Ledger(folder)
        so_far.same_scenario(scenario, GROWING)
        if _more_victims(folder, scenario):
            so_far.reopen()
        done = so_far.ended()
    left = [seed for seed in seeds if not {*_names(scenario, seed)} <= done]
    total = len(seeds) * len(_names(scenario, scenario.seed))
    ended = total - sum(len({*_names(scenario, seed)} - done) for seed in left)
    progress(name, ended, total, "")
    if not left:
        return ""
    built = None
    for own in _repetition(scenario, left[0]).points().values():
        built, _ = preflight(own, after=built)
    ledger = simulation.open_ledger(scenario, folder, resume=exists, growing=GROWING, after=built)
    here = Counter[str]()

    def waiting() -> Iterator[tuple[str, Scenario]]:
        nonlocal ended
        for seed in left:
            for point, own in _repetition(scenario, seed).points().items():
                if point in done:
                    continue
                here.clear()
                yield point, own
                ledger.discard(place("checkpoint", point))
                ended += 1
                progress(name, ended, total, "")

    def report(event: str, **fields: Any) -> None:
        if event == "round":
            here[event], here["of"] = fields["round"], fields["of"]
        elif event in ("attacks", "findings"):
            here[event] += fields.get("queued", 1)
        if event in ("round", "attacks", "findings", "progress"):
            parts = [f"round {here['round']} of {here['of']}"] if here["of"] > 1 else []
            if here["attacks"]:
                parts.append(f"{here['findings']} of {here['attacks']} attacks")
            if event == "progress":
                parts.append(str(fields["progress"]))
            progress(name, ended, total, "; ".join(parts))
        if event in ("point", "resumed", "caution"):
            ledger.event(event, **fields)

    points = waiting()
    try:
        refused = simulation.run_points(scenario, points, ledger, report, after=built)
    finally:
        with contextlib.suppress(FedsimError):
            ledger.finish()
    if not refused:
        return ""
    first, reason = next(iter(refused.items()))
    return f"{len(refused)} of {total} points failed; the first, {first}: {reason}"


def _more_victims(folder: Path, scenario: Scenario) -> bool:
    """Whether an adversary attacks more or other victims than in a folder of the same scenario."""
    before = read_table(folder / "scenario.toml")
    stated = before.get("threat", {}).get("victims", "all")
    for was, plan in zip(before.get("adversaries", []), scenario.adversaries, strict=True):
        old = was.get("victims", stated)
        new = scenario.threat.victims if plan.victims is None else plan.victims
        fewer = isinstance(old, int) and isinstance(new, int) and new < old
        if old not in ("all", new) and not fewer:
            return True
    return False


def _repetition(scenario: Scenario, seed: int) -> Scenario:
    """The scenario with the seed as the first key of its sweep, which keeps no recording."""
    # As for the seeds of a sweep: the attacks' random numbers are others in each repetition.
    attacks = scenario.threat.seed + seed - scenario.seed
    changes = {
        "record": Record(keep="nothing"),
        "threat": scenario.threat.model_copy(update={"seed": attacks}),
    }
    return scenario.over_seeds([seed]).model_copy(update=changes)


def _names(scenario: Scenario, seed: int) -> list[str]:
    return list(_repetition(scenario, seed).combinations())
