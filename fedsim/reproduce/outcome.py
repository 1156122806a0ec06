"""The results of a figure beside the published statements, with a verdict on each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsim.errors import FedsimError
from fedsim.metric import Measure
from fedsim.references import references
from fedsim.report.exhibits import Exhibits, scores
from fedsim.reproduce.catalogue import GROWING, Figure, Part
from fedsim.reproduce.cells import Cell, Place, Rows, places, reading, series
from fedsim.reproduce.driver import folder_of
from fedsim.reproduce.verdict import Judgement, Measured, judge, speaks_of
from fedsim.runs import provenance
from fedsim.runs.ledger import Ledger
from fedsim.runs.reading import Measures, split_point
from fedsim.scenario import Scenario, read_table
from fedsim.scenario.paper import Paper

IN_A_CELL = 60
"""Length, in characters, up to which a problem is repeated in every verdict of a table."""


OF_IMAGES = ("mse", "recovered")
"""Measures of images; figures with one of them have examples."""


@dataclass(frozen=True, slots=True)
class Example:
    """The picture of one attack, originals above and reconstructions below.

    Attributes:
        words: Its series, place and scores.
        uri: The picture as a data URI.
    """

    words: str
    uri: str


@dataclass(frozen=True, slots=True)
class Share:
    """The results of one scenario of a figure.

    Attributes:
        part: The scenario.
        paper: Its `[paper]` table at this scale.
        places: The places on the axis.
        cells: The means.
        judgements: The published statements beside the means.
        facts: Data, model, seeds, device and versions behind the means, as (what, value).
        problem: Why it was not measured, or "".
        examples: Recovered images, for figures about images.
        measures: How measures are read.
    """

    part: Part
    paper: Paper
    places: tuple[Place, ...] = ()
    cells: tuple[Cell, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    examples: tuple[Example, ...] = ()
    measures: Measures = field(default_factory=Measures)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a figure at one scale."""

    figure: Figure
    scale: str
    shares: tuple[Share, ...]

    @property
    def judgements(self) -> list[Judgement]:
        """The judgements of all its scenarios."""
        return [one for share in self.shares for one in share.judgements]

    def how(self, measure: str) -> Measure:
        """How a measure is read, according to the first scenario that measures it."""
        own = (share.measures for share in self.shares if measure in share.paper.measure)
        return next(own, self.shares[0].measures)[measure]


def outcome(
    figure: Figure,
    out: Path,
    scale: str,
    *,
    overrides: Sequence[str] = (),
    data: str = "",
    problems: Mapping[str, str] | None = None,
    as_run: bool = False,
) -> Outcome:
    """Collect the results of a figure from its run folders, as far as they exist.

    Args:
        figure: The figure.
        out: The folder of all reproductions.
        scale: "smoke" or "paper".
        overrides: Settings as for `--set`, KEY=VALUE.
        data: The folder of local data sets.
        problems: Why scenarios could not be run just now, by name.
        as_run: Whether to read each folder by the scenario that it was run with; otherwise a folder
            of another scenario is refused.
    """
    shares = []
    for part in figure.parts:
        folder = folder_of(out, figure, part, scale)
        try:
            scenario = part.scenario(scale, overrides, data)
        except FedsimError as error:
            share = Share(part, part.paper, problem=str(error), measures=reading(folder))
        else:
            problem = (problems or {}).get(part.name, "")
            share = _share(part, scenario, folder, problem, as_run=as_run)
        shares.append(share)
    return Outcome(figure, scale, tuple(shares))


def _share(part: Part, scenario: Scenario, folder: Path, problem: str, *, as_run: bool) -> Share:
    paper = scenario.paper or part.paper
    cells: list[Cell] = []
    examples: list[Example] = []
    refused = False
    try:
        if as_run:
            scenario = _recorded(folder, scenario)
        if (folder / "scenario.toml").is_file():
            if not as_run:
                Ledger(folder).same_scenario(scenario, GROWING)
            rows = Rows(folder, scenario)
            cells = list(rows.cells())
            examples = gallery(rows, folder)
    except FedsimError as error:
        refused, problem = True, problem or str(error)
    problem = problem.replace(str(folder), folder.name)  # since pages are shared
    measures = reading(folder)
    found = tuple(_verdicts(scenario, paper, cells, problem, measures))
    axis = tuple(places(scenario).values())
    facts = tuple(_facts(scenario, None if refused else folder))
    return Share(part, paper, axis, tuple(cells), found, facts, problem, tuple(examples), measures)


def _recorded(folder: Path, scenario: Scenario) -> Scenario:
    """The scenario that a folder was run with, or this one, with the current `[paper]` table."""
    path = folder / "scenario.toml"
    if not path.is_file():
        return scenario
    table = {key: value for key, value in read_table(path).items() if key != "paper"}
    if references(table) != references(scenario.to_dict()):  # code that is nobody's here
        return scenario
    table["search_dirs"] = scenario.search_dirs  # not where the folder would have code looked up
    return Scenario.parse(table).model_copy(update={"paper": scenario.paper})


def _verdicts(
    scenario: Scenario, paper: Paper, cells: Sequence[Cell], problem: str, measures: Measures
) -> list[Judgement]:
    axis = places(scenario).values()
    problem = _in_a_cell(problem)
    found = []
    for statement in paper.published:
        name = statement.measure or paper.measure[0]
        there = [place for place in axis if speaks_of(statement, place, paper.x)]
        names = list(series(scenario, name).values())
        for called in names if "*" in statement.series else statement.series:
            others = {
                cell.place: cell.mean
                for cell in cells
                if (cell.measure, cell.series) == (name, statement.like)
            }
            own = [
                cell
                for cell in cells
                if (cell.measure, cell.series) == (name, called)
                and cell.place in (there if statement.like is None else others.keys() & {*there})
            ]
            known = {cell.place.where for cell in own}
            missing = [place.where for place in there if place.where not in known]
            fruitless = []
            if name == "iterations_to_success":
                ran = {cell.place.where for cell in cells if cell.series == called}
                fruitless = [where for where in missing if where in ran]
                missing = [where for where in missing if where not in ran]
            where = (tuple(missing), tuple(fruitless))
            ours = Measured(name, measures[name], called, tuple(own), *where, others)
            found.append(judge(statement, ours, remark=paper.remark, problem=problem))
    return found


def _in_a_cell(problem: str) -> str:
    """The part of a problem that is repeated in every verdict; the whole stands above the table.

    Only known forms are cut at the colon: a file name before another colon is not a reason.
    """
    if problem.startswith("needs "):
        problem = problem.partition(": ")[0]
    elif re.match(r"\d+ of \d+ points failed; ", problem):
        problem = problem.partition("; ")[0]
    return problem if len(problem) <= IN_A_CELL else "see above"


def _model(task: Mapping[str, Any]) -> str:
    """A task's model as text, a folder without its path, since pages are shared."""
    own = "cnn" if task.get("name", "images") == "images" else "the task's own"
    asked = task.get("model", own)
    if not isinstance(asked, dict):
        return str(asked)
    config = asked.get("config")
    if config is None:
        return str(asked.get("name", asked))
    return str(config) if str(config).startswith("package:") else Path(str(config)).name


def _facts(scenario: Scenario, folder: Path | None) -> list[tuple[str, str]]:
    """Data, model, seeds, device and versions behind the numbers.

    Args:
        scenario: The scenario.
        folder: Its run folder; None if it was refused, since its hash and seeds then belong to
            other numbers.
    """
    known = provenance.read(folder) if folder else {}
    training = scenario.training
    facts = [
        ("data", str(scenario.task.get("data", "digits"))),
        ("model", _model(scenario.task)),
        ("training", f"{training.algorithm}, clients {training.clients}, rounds {training.rounds}"),
    ]
    if not folder or not known:
        return facts
    whole, part = _seeds(scenario, folder)
    facts += [(what, _ranges(s)) for what, s in (("seeds", whole), ("seeds in part", part)) if s]
    facts[0] = ("data", f"{facts[0][1]} (sha256 {str(known['hashes']['data'])[:12]})")
    versions = known.get("versions", {})
    return [
        *facts,
        ("device", str(known.get("device", "unknown"))),
        (
            "versions",
            f"fedsim {known.get('fedsim')}, torch {versions.get('torch')}, "
            f"flwr {versions.get('flwr')}, Python {known.get('python')}",
        ),
    ]


def _seeds(scenario: Scenario, folder: Path) -> tuple[set[int], set[int]]:
    """Seeds with all points of the sweep finished, and seeds with some of them finished."""
    ended: dict[str, set[int]] = {point: set() for point in scenario.combinations() or [""]}
    for point in Ledger(folder).ended():
        seed, rest = split_point(point)
        if rest in ended:
            ended[rest].add(int(seed))
    whole = set.intersection(*ended.values())
    return whole, set.union(*ended.values()) - whole


def _ranges(seeds: set[int]) -> str:
    """Seeds as text, such as `7 to 16, 20`."""
    ends = [(one, one - 1 in seeds, one + 1 in seeds) for one in sorted(seeds)]
    firsts = [one for one, before, _ in ends if not before]
    lasts = [one for one, _, after in ends if not after]
    return ", ".join(
        f"{first} to {last}" if last > first else f"{first}"
        for first, last in zip(firsts, lasts, strict=True)
    )


def gallery(rows: Rows, folder: Path) -> list[Example]:
    """The examples in a run folder that holds PNG files; none for figures not about images."""
    if rows.findings.empty or not {*OF_IMAGES} & {*rows.paper.measure}:
        return []
    exhibits, found = Exhibits(folder, rows.measures), []
    images = rows.findings[rows.findings["artifact"].str.endswith(".png")]
    errors = images[images["metric"] == "mse"].sort_values("counted", kind="stable")
    for (extra, label), called in series(rows.scenario, "mse").items():
        own = errors[(errors["extra"] == extra) & (errors["label"] == label)]
        for key, place in rows.places.items():
            here = own[own["place"] == key]
            if here.empty:
                continue
            middle = here.iloc[len(here) // 2]
            sheet = exhibits.embed(str(middle["artifact"]))
            if sheet and sheet["kind"] == "image":
                attack = images[images["artifact"] == middle["artifact"]]
                shown = attack[attack["metric"].isin([*OF_IMAGES])]
                words = scores(shown, rows.measures, details=False)
                where = f"{called}, {place.where}" if place.where else called
                found.append(Example(f"{where}: {words}", sheet["uri"]))
    return found
