"""What the page of a run shows: its settings together, then each on its own."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedsim.metric import Measure
from fedsim.report import attacks, tables
from fedsim.report.diagnosis import diagnoses
from fedsim.report.exhibits import SHOWN, Exhibits
from fedsim.report.folder import RunFolder
from fedsim.report.frontier import frontier
from fedsim.report.intervals import FEWEST
from fedsim.report.leakage import summarise
from fedsim.report.replication import Series, against, last_utility, over_rounds, utility_measure
from fedsim.report.verdict import Verdict, correction, verdicts_of
from fedsim.runs.reading import Measures, budget

if TYPE_CHECKING:
    import pandas as pd

ERRORS, ERROR_LENGTH = 12, 2000
WHOLE = 6
"""Up to so many galleries have all their pictures; beyond, the best, the median and the worst."""
EMBEDDED = 5_000_000
"""Bytes of pictures and sounds: a page with a table of 100,000 rows has less than 15 MB."""
CURVES = 12
"""The largest number of metrics among which the reader of a chart can choose."""

SHOWN_APART = ("versions", "optimizer", "unknown", "isolation")
"""Entries of provenance.json that have places of their own on the page."""


def content(folder: RunFolder) -> dict[str, Any]:
    """Everything that the templates of a run's page show, as plain values."""
    from fedsim.report import charts

    rows, measures, notes = folder.rows, folder.measures, [*folder.notes]
    verdicts = verdicts_of(rows, measures)
    totals = summarise(rows, measures, verdicts)
    main, every = folder.main, folder.series()
    several = len(every) > 1
    galleries = len({*zip(rows["point"], rows["label"], strict=True)})
    shown = SHOWN if galleries <= WHOLE else FEWEST
    exhibits = Exhibits(folder.path, measures, shown=shown, limit=EMBEDDED)
    pages = [
        _point(one, [row for row in totals if row["point"] == one.name], verdicts, main, exhibits)
        for one in every
    ]
    figures = [page["figure"] for page in pages]
    if several:
        figures += [charts.overlay(every, main, measures), frontier(every, main, measures)]
    for place, (one, page) in enumerate(zip(every, pages, strict=True)):
        page["curves"] = _curves([one], place, main, measures, figures)
    why, unmeasured = diagnoses(folder, verdicts, totals)
    for page in pages:
        page["diagnoses"] = [one for one in why if one.point == page["name"]]
    if exhibits.refused:
        notes.append(
            f"{exhibits.refused} artifacts are not shown: missing, outside the run folder, too "
            "large, or of a kind that is not embedded."
        )
    scenario, provenance = folder.scenario, folder.provenance
    listed = provenance.get("unknown")
    unknown = [str(key) for key in listed] if isinstance(listed, list) else []
    versions = provenance.get("versions")
    return {
        "name": folder.name,
        "lead": _lead(folder, every),
        "points": pages,
        "correction": correction(verdicts.values()),
        "replication": tables.replication(every),
        "sweep": tables.means(every, main, measures, verdicts) if several else None,
        "paired": tables.differences(against(every), main, measures) if several else None,
        "bases": list(dict.fromkeys(base.name for _, base in against(every))),
        "hidden": tables.hidden(len(every), charts.OVERLAID),
        "repeated": any(len(tables.seeds(one)) >= FEWEST for one in every),
        "overlay": _curves(every, len(every), main, measures, figures) if several else [],
        "figures": figures,
        "unmeasured": unmeasured,
        "attacks": attacks.table(rows, measures) if len(rows) else None,
        "notes": notes,
        "measures": measures,
        "threat": _pairs(scenario.get("threat")),
        "training": _pairs(scenario.get("task"))
        + _pairs(scenario.get("training"))
        + _pairs({key: provenance[key] for key in ("optimizer",) if key in provenance})
        + [(key.partition(".")[2], "unknown") for key in unknown if "." in key],
        "defenses": [("unknown", "nobody stated what clients do to their updates")]
        if "defenses" in unknown
        else _named(scenario.get("defenses")),
        "scenario": folder.scenario_text,
        "provenance": _pairs({k: v for k, v in provenance.items() if k not in SHOWN_APART})
        + [
            (f"isolation of {label}", walls) for label, walls in _pairs(provenance.get("isolation"))
        ],
        "versions": _pairs(versions),
        "provenance_text": "" if provenance else folder.provenance_text,
    }


def _curves(
    every: Sequence[Series],
    place: int,
    main: Mapping[str, str],
    measures: Measures,
    figures: list[dict[str, Any]],
) -> list[tuple[str, int]]:
    """What a chart can show: a title and the place in `figures`; adds a figure for each metric.

    Args:
        every: The series of the chart.
        place: Where the chart of the main metrics is.
        main: The main metric of each adversary, by label.
        measures: How metrics are read.
        figures: All figures of the page.
    """
    from fedsim.report import charts

    if len(every) > charts.OVERLAID:
        return []
    scored: dict[str, dict[str, str]] = {}
    for one in every:
        known = one.rows[one.rows["counted"].notna()].drop_duplicates(["label", "metric"])
        for label, metric in zip(known["label"], known["metric"], strict=True):
            if not measures[metric].detail:
                scored.setdefault(metric, {})[label] = metric
    found = [("main metric of each adversary", place)]
    for metric in sorted(scored, key=measures.rank)[:CURVES]:
        if scored[metric].items() <= main.items():
            continue  # shown already
        found.append((measures[metric].title, len(figures)))
        figures.append(
            charts.overlay(every, scored[metric], measures)
            if len(every) > 1
            else charts.figure(every[0], scored[metric], measures)
        )
    return found if len(found) > 1 else []


def _point(
    series: Series,
    totals: list[dict[str, Any]],
    verdicts: Mapping[tuple[str, str], Verdict],
    main: dict[str, str],
    exhibits: Exhibits,
) -> dict[str, Any]:
    """The plot, tables and gallery of one sweep point, or of a run without a sweep."""
    from fedsim.report import charts

    rows, adversaries = series.rows, []
    for label in dict.fromkeys(row["label"] for row in totals):
        mine = rows[rows["label"] == label]
        table = [row for row in totals if row["label"] == label]
        table.sort(
            key=lambda row: (
                not exhibits.measures[row["metric"]].leaks,
                exhibits.measures.rank(row["metric"]),
            )
        )
        chief = next((row for row in table if row["metric"] == main[label]), table[0])
        attacks = mine.drop_duplicates(["seed", "round", "client", "victim"])
        errors = attacks[attacks["error"] != ""].groupby(["status", "error"], sort=False).size()
        graded = min(table, key=lambda row: _graded(exhibits.measures[row["metric"]]))
        order = mine[mine["metric"] == graded["metric"]].sort_values(
            "counted", ascending=graded["lower_is_better"], kind="stable"
        )
        adversaries.append(
            {
                "label": label,
                "adversary": chief["adversary"],
                "chief": chief,
                "verdict": verdicts[series.name, label],
                "table": table,
                "statuses": attacks["status"].value_counts().to_dict(),
                "seconds": float(attacks["seconds"].sum()),
                "errors": [
                    {"status": status, "text": str(error)[:ERROR_LENGTH], "count": int(count)}
                    for (status, error), count in list(errors.items())[:ERRORS]
                ],
                "more_errors": max(0, len(errors) - ERRORS),
                "gallery": exhibits.of(order, mine),
                "graded": exhibits.measures[graded["metric"]].title,
            }
        )
    return {
        "name": series.name,
        "seeds": len(tables.seeds(series)),
        "replication": tables.replication([series]),
        "probed": bool((rows["probe"] != "").any()),
        "adversaries": adversaries,
        "figure": charts.figure(series, main, exhibits.measures),
        "rounds": tables.by_round(series, main, exhibits.measures),
    }


def _graded(how: Measure) -> tuple[bool, bool, float]:
    """The order of metrics for ranking pictures: one that is not only met or not met, by rank."""
    return not how.leaks or how.detail, how.kind == "yes/no", how.rank


def _lead(folder: RunFolder, every: Sequence[Series]) -> str:
    """Two or three sentences about who was attacked."""
    rows, points, parts = folder.rows, len(every), []
    if points > 1:
        parts.append(
            f"A sweep over {points} points: charts of all, pictures and tables of the one chosen."
        )
    if (repeated := max(len(tables.seeds(one)) for one in every)) > 1:
        parts.append(f"{'Each' if points > 1 else 'It'} was run with {repeated} seeds.")
    if rows.empty:
        named = folder.scenario.get("adversaries")
        none = "No attack has ended" if named else "No adversary took part in this run"
        parts.append(f"{none}: it shows utility alone.")
    else:
        each = ["point", "seed", "victim", "client"]
        attacked = rows[rows["status"] != "denied"].drop_duplicates(each)
        updates, probes = (attacked[(attacked["probe"] != "") == one] for one in (False, True))
        denied = rows[rows["status"] == "denied"].drop_duplicates([*each, "label"])
        training = folder.scenario.get("training")
        of = training.get("clients") if isinstance(training, dict) else None
        number = len({one for clients in updates["client"] for one in str(clients).split("+")})
        clients = _count(number, "client")
        if isinstance(of, int):
            clients = f"{number} of {_count(of, 'client')}"
        what = _count(len(updates), "update")
        if updates["client"].str.contains("+", regex=False).any():  # by secure aggregation
            what = _count(len(updates), "sum of updates", "sums of updates")
        whom = [f"{what} from {clients}"] * (len(updates) > 0 or probes.empty)
        if len(probes):
            whom.append(f"{_count(probes['probe'].nunique(), 'probe')} of each round's model")
        parts.append(
            f"{' and '.join(whom)} "
            f"{'was' if len(attacked) == 1 else 'were'} attacked in "
            f"{_count(rows['round'].nunique(), 'round')} by "
            f"{_count(rows['named'].nunique(), 'adversary', 'adversaries')}."
        )
        if len(denied):
            were = "was" if len(denied) == 1 else "were"
            parts.append(f"{_count(len(denied), 'attack')} {were} denied by the threat model.")
    if points == 1:
        utility = folder.utility
        accuracy = over_rounds(
            utility[utility["metric"] == "accuracy"], utility_measure("accuracy"), "value"
        )
        if accuracy:
            first, *more = [f"{100 * one.mean:.0f} %" for one in accuracy.values()]
            went = f"went from {first} to {more[-1]}" if more else f"was {first}"
            parts.append(f"Meanwhile accuracy {went}.")
        parts += [f"Privacy spent: {text}." for text in _spent(utility)]
    return " ".join(parts)


def _spent(utility: "pd.DataFrame") -> list[str]:
    """The privacy that each defense has spent, such as `epsilon = 3.1 at delta = 1e-05`."""
    last, found = {name: one.mean for name, one in last_utility(utility).items()}, []
    for name, value in last.items():
        if (part := budget(name)) in ("epsilon", "epsilon_released"):
            delta = last.get(name.removesuffix(str(part)) + "delta", math.nan)
            spent = "infinite" if math.isinf(value) else f"{value:.3g}"
            found.append(f"{name} = {spent} at delta = {delta:.3g}")
    return found


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _pairs(table: object) -> list[tuple[str, str]]:
    """Keys and values of a table, as text."""
    if not isinstance(table, dict):
        return []
    return [(str(key), shown(value)) for key, value in table.items()]


def shown(value: object) -> str:
    """A setting as text, shortened to 300 characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 300 else text[:299] + "…"


def _named(tables: object) -> list[tuple[str, str]]:
    """Plugins of a scenario: (name, settings)."""
    found = []
    for table in tables if isinstance(tables, list) else []:
        pairs = dict(_pairs(table))
        name = pairs.pop("name", "?")
        found.append((name, ", ".join(f"{key} = {value}" for key, value in pairs.items())))
    return found
