"""Averages of the findings of a run folder, compared with chance, and as sentences.

Averages are taken as follows (the report explains the same to its readers):

- an attack that failed or ran out of time counts as a random guess on the same victim, since an
  attacker whose attack breaks can still guess;
- if there is no level of chance (for measures of an attack's own search), it does not count;
- a denied attack did not take place: it is listed and not averaged;
- seeds are repetitions: the mean is one over the seeds' means, and so is the interval from three
  seeds on; with fewer, the interval is one over clients or probes that were attacked several times,
  else over attacks (`fedsim.report.intervals.estimate`);
- if a resumed run repeated an attack, its last attempt counts.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedsim.metric import Measure
from fedsim.report.intervals import Estimate, as_found, estimate
from fedsim.report.replication import attacks_of, change_of, paired, undefended
from fedsim.report.verdict import Verdict
from fedsim.runs.reading import STATUSES, UNCOUNTED, Measures

if TYPE_CHECKING:
    import pandas as pd


def summarise(
    rows: "pd.DataFrame", measures: Measures, verdicts: Mapping[tuple[str, str], Verdict]
) -> list[dict[str, Any]]:
    """Make a row for each sweep point, adversary label and metric; see `fedsim.report.summary`."""
    found = []
    bases = undefended(rows["point"].unique())
    by_point = {str(point): part for point, part in rows.groupby("point", sort=False)}
    for (point, label, metric), part in rows.groupby(["point", "label", "metric"], sort=False):
        how = measures[str(metric)]
        counts = {status: int((part["status"] == status).sum()) for status in STATUSES}
        counted = part[part["counted"].notna()]
        scored = part.loc[part["status"] == "ok", "value"].dropna().tolist()
        mean = _over_seeds(counted, "counted", how)
        ends = (min, max) if how.lower else (max, min)
        row: dict[str, Any] = {
            "point": str(point), "label": str(label), "adversary": str(part["adversary"].iloc[0]),
            "metric": str(metric), "attacks": len(part), **counts, "n": mean.n,
            "mean": _known(mean.mean), "low": mean.low, "high": mean.high,
            "baseline": _known(_over_seeds(counted, "baseline", how).mean),
            "baseline_prior": _known(_over_seeds(counted, "baseline_prior", how).mean),
            "best": ends[0](scored, default=None), "worst": ends[1](scored, default=None),
            "lower_is_better": how.lower, **_successes(part), "seeds": part["seed"].nunique(),
        }  # fmt: skip
        base = bases.get(str(point))
        pair = (by_point[str(point)], by_point[base]) if base in by_point else None
        row |= _difference(pair, str(label), str(metric), base, how)
        row["verdict"] = verdicts[str(point), str(label)].readings[str(metric)]
        why = next((" ".join(error.split()) for error in part["error"] if error), "")
        row["sentence"] = _sentence(row, how, scored, why)
        found.append(row)
    return found


def _over_seeds(part: "pd.DataFrame", column: str, how: Measure) -> Estimate:
    """The estimate of a column, without rows that lack it."""
    known = part[part[column].notna()]
    values, seeds, units = (known[name].tolist() for name in (column, "seed", "unit"))
    return estimate(values, seeds, as_found(how, values), units)


def _difference(
    pair: "tuple[pd.DataFrame, pd.DataFrame] | None",
    label: str,
    metric: str,
    base: str | None,
    how: Measure,
) -> dict[str, Any]:
    """The keys of a row about its difference from its point's baseline."""
    keys = ("difference", "difference_low", "difference_high")
    nothing = {"against": None, **dict.fromkeys(keys), "difference_shown": "", "pairs": 0}
    if pair is None:
        return nothing
    ours, other = (attacks_of(rows, label, metric) for rows in pair)
    found = paired(ours, other, how)
    if found is None:
        return nothing
    numbers = dict(zip(keys, (_known(found.mean), found.low, found.high), strict=True))
    shown = change_of(found, how)
    return {"against": base, **numbers, "difference_shown": shown, "pairs": found.n}


def _successes(part: "pd.DataFrame") -> dict[str, int | float | None]:
    """The number of attacks that recovered every example, and the iterations that those took.

    Iterations include failed starts, and those after the examples are recognisable. The values are
    None for metrics other than `recovered`; iterations are also None if they were not counted.
    """
    found: dict[str, int | float | None]
    found = dict.fromkeys(("successes", "iterations_median", "iterations_mean"))
    if (part["metric"] == "recovered").all():
        took = part.loc[(part["value"] == 1) & (part["status"] == "ok"), "iterations"]
        found["successes"] = len(took)
        if took.sum() > 0:
            found["iterations_median"] = float(took.median())
            found["iterations_mean"] = float(took.mean())
    return found


def _known(mean: float) -> float | None:
    return None if math.isnan(mean) else mean


def _ended(row: Mapping[str, Any]) -> list[str]:
    """The numbers of attacks that failed or ran out of time, as text."""
    ways = {"failed": "failed", "timeout": "ran out of time"}
    return [f"{row[status]} {way}" for status, way in ways.items() if row[status]]


def _sentence(row: Mapping[str, Any], how: Measure, scored: list[float], why: str) -> str:
    """A row as a sentence; `why` is the error of its first attack that has one."""
    if row["n"] == 0:
        if row["denied"] == row["attacks"]:
            return f"denied on all updates ({row['attacks']}){f': {why}' if why else ''}"
        attacked = f"{row['attacks']} update{'' if row['attacks'] == 1 else 's'} attacked"
        doubt = [f"{row['unverified']} unverified"] if row["unverified"] else []
        return "; ".join([", ".join([attacked, *_ended(row), *doubt]), "nothing to average"])
    parts = [how.say(row["mean"], scored, row["n"])]
    if row["baseline"] is not None:
        parts.append(f"chance {how.show(row['baseline'])}")
    if how.lower:
        parts[-1] += " (lower is better for the attacker)"
    if row["iterations_median"] is not None:
        successes = f"{row['successes']} success{'' if row['successes'] == 1 else 'es'}"
        median = f"{row['iterations_median']:g}"
        parts.append(f"iterations to success: median {median} over {successes}")
    if broken := _ended(row):
        parts.append(f"{' and '.join(broken)}, {'counted as a guess' if how.leaks else 'left out'}")
    for status in UNCOUNTED:
        parts += [f"{row[status]} {status}, not counted"] if row[status] else []
    return "; ".join(parts)
