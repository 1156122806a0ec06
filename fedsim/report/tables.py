"""Tables of a page: the means of several series, their differences, and the numbers by round."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedsim.metric import Measure
from fedsim.report.intervals import FEWEST, Estimate
from fedsim.report.replication import (
    Series,
    attacks_of,
    differences_of,
    last_utility,
    leaked,
    over_rounds,
    utility_measure,
)
from fedsim.report.traces import COLOURS
from fedsim.report.verdict import Verdict
from fedsim.runs.reading import STATUSES, Measures

if TYPE_CHECKING:
    import pandas as pd

Table = dict[str, Any]
"""A table with `head` (column titles) and `body`: rows of lists of lines of text."""

NOTHING = ["–"]


def seeds(series: Series) -> list[str]:
    """The seeds of a series, in order."""
    found = {*series.rows["seed"], *series.utility["seed"]}
    return sorted(map(str, found), key=lambda seed: (len(seed), seed))


def replication(every: Sequence[Series]) -> str:
    """A sentence on what the intervals of some series rest on."""
    most = max((seeds(one) for one in every), key=len, default=[])
    if len(most) >= FEWEST:
        return (
            f"Means over {len(most)} seeds ({_range(most)}). In brackets and as bands: the 95 % "
            "interval over seeds (Student's t over the seeds' means; Wilson's for yes or no)."
        )
    if len(most) > 1:
        return (
            f"Means over {len(most)} seeds ({_range(most)}). An interval over seeds takes at least "
            f"{FEWEST}."
        )
    each = " each" if len({seed for one in every for seed in seeds(one)}) > 1 else ""
    return (
        f"One seed{each}, so there is no interval over seeds; fedsim run with --seeds 3 repeats "
        "the scenario."
    )


def hidden(series: int, drawn: int) -> str:
    """A sentence on the series that a chart of several does not show at first, or ""."""
    first = len(COLOURS)
    if series <= first:
        return ""
    rest = f"; {series - drawn} others are in the tables alone" if series > drawn else ""
    return f"The first {first} are shown, and a click in the legend shows others{rest}."


def _range(found: Sequence[str]) -> str:
    return ", ".join(found) if len(found) <= 3 else f"{found[0]} to {found[-1]}"


def means(
    every: Sequence[Series],
    main: Mapping[str, str],
    measures: Measures,
    verdicts: Mapping[tuple[str, str], Verdict],
    *,
    of: str = "Point",
) -> Table:
    """Tabulate series: the utility after the last round, and each adversary's main metric.

    A cell holds the mean and its interval over seeds. One of leakage also holds the score of a
    random guess, the verdict, and how many attacks have no score or one that does not count.

    Args:
        every: The series.
        main: The main metric of each adversary, by label.
        measures: How metrics are read.
        verdicts: The verdict on each adversary, by series and label.
        of: The title of the column with the series' names.
    """
    metrics = list(dict.fromkeys(metric for one in every for metric in one.utility["metric"]))
    repeated = any(len(seeds(one)) > 1 for one in every)
    body = []
    for one in every:
        last = last_utility(one.utility)
        row = [[one.name or "(no point)"]]
        row += [[str(len(seeds(one)))]] if repeated else []
        for metric in metrics:
            row.append(_cell(last.get(metric), utility_measure(metric)))
        for label, metric in main.items():
            mine = one.rows[one.rows["label"] == label]
            verdict = verdicts.get((one.name, label))
            row.append(_leakage(mine, verdict, metric, measures[metric]) if verdict else NOTHING)
        body.append(row)
    head = [of, *(["Seeds"] if repeated else []), *metrics]
    head += [f"{label}: {measures[metric].title}" for label, metric in main.items()]
    return {"head": head, "body": body}


def _leakage(mine: "pd.DataFrame", verdict: Verdict, metric: str, how: Measure) -> list[str]:
    """The lines of a cell on one adversary, by its main metric and by the verdict of all."""
    part = attacks_of(mine, mine["label"].iloc[0], metric)
    mean, guess = leaked(part, how), leaked(part, how, "baseline")
    lines = [*_cell(mean, how), f"chance {how.show(guess.mean)}", verdict.badge]
    if verdict.metric not in ("", metric):
        lines.append(verdict.figure)
    return lines + unscored(mine)


def unscored(mine: "pd.DataFrame") -> list[str]:
    """How many attacks of one adversary have no score, or one that does not count, by status."""
    attacks = mine.drop_duplicates(["seed", "round", "client", "victim"])["status"].value_counts()
    return [f"{attacks[one]} {one}" for one in STATUSES if one != "ok" and one in attacks]


def _cell(mean: Estimate | None, how: Measure) -> list[str]:
    if mean is None:
        return NOTHING
    shown = mean.show(how) if mean.over_seeds else how.show(mean.mean)
    number, bracket, ends = shown.partition(" [")
    return [number, f"[{ends}"] if bracket else [number]


def differences(
    pairs: Sequence[tuple[Series, Series]],
    main: Mapping[str, str],
    measures: Measures,
    *,
    of: str = "Point",
    named: bool = False,
) -> Table | None:
    """Tabulate the differences of series from their baselines; None if nothing can be compared.

    Args:
        pairs: Each series with its baseline.
        main: The main metric of each adversary, by label.
        measures: How metrics are read.
        of: The title of the column with the series' names.
        named: Whether each row names its baseline even if all have the same.
    """
    found = [(one, base, differences_of(one, base, main, measures)) for one, base in pairs]
    columns = list(dict.fromkeys(name for *_, texts in found for name in texts))
    if not columns:
        return None
    several = named or len({base.name for _, base in pairs}) > 1
    body = []
    for one, base, texts in found:
        row = [[one.name or "(no point)"]]
        row += [[base.name or "(no point)"]] if several else []
        for name in columns:
            number, bracket, ends = texts.get(name, "–").partition(" [")
            row.append([number, f"[{ends}"] if bracket else [number])
        body.append(row)
    titles = [f"{name}: {measures[main[name]].title}" if name in main else name for name in columns]
    return {"head": [of, *(["Compared with"] if several else []), *titles], "body": body}


def by_round(series: Series, main: Mapping[str, str], measures: Measures) -> dict[str, list[Any]]:
    """The numbers behind the plot of a series, a row for each round."""
    columns: dict[str, dict[float, str]] = {}
    for metric, part in series.utility.groupby("metric", sort=False):
        how = utility_measure(str(metric))
        plain = replace(how, kind="number")
        over = over_rounds(part, how, "value")
        columns[str(metric)] = {at: one.show(plain) for at, one in over.items()}
    for label, metric in main.items():
        part, how = attacks_of(series.rows, label, metric), measures[metric]
        over = over_rounds(part, how)
        chance = over_rounds(part[part["baseline"].notna()], how, "baseline")
        columns[f"{label}: {how.title}"] = {at: one.show(how) for at, one in over.items()}
        columns[f"{label}: chance"] = {at: how.show(one.mean) for at, one in chance.items()}
    rounds = sorted({at for column in columns.values() for at in column})
    body = [[f"{at:g}", *(column.get(at, "–") for column in columns.values())] for at in rounds]
    return {"head": ["Round", *columns], "body": body}
