"""The verdict on an adversary: from all its leakage metrics, against the better of two guesses.

- A metric *beats chance* if its scores beat those of a random guess on the same victims. It *leaks*
  if they also beat those of a guess from public data, where the task has one.
- Clients and probes are independent of each other; the rounds of one are not.
- Each metric is tested over all attacks and by round; the smaller p-value counts, times two, and
  that of a round times the number of rounds. An attack that succeeds late is not averaged away.
- Holm's correction over all metrics of all verdicts that are read together, those of a page, keeps
  the probability of any false finding among them at 5 %.
- Without a finding, the verdict says how much can have been missed, as an upper bound.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from fedsim.report.evidence import COLUMNS, Evidence, evidence_of
from fedsim.report.intervals import FEWEST, Estimate
from fedsim.report.significance import LEVEL, holm, rate_below
from fedsim.report.wording import apart, guesses, missed, percent, units, whom
from fedsim.runs.reading import UNCOUNTED, Measures

if TYPE_CHECKING:
    import pandas as pd

READ = ["metric", "client", "victim", *COLUMNS]
"""The columns of the findings that a verdict rests on."""

FEW = 10
"""Verdicts on fewer victims say so: in nine, a rate of 28 % can be missed."""

SUITED = 5
"""Clients or probes from which on a guess that never changes does not suit all: each by one half,
all by 3 %."""

CHANGED = 0.2
"""Change of the level between rounds that is reported, as a share of its distance to a guess."""

Kind = Literal["leaks", "guessed", "nothing", "unclear", "unknown", "denied"]

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of one adversary.

    Attributes:
        kind: `leaks`; `guessed` (better than chance, and not shown to be better than a guess from
            public data); `nothing` (no success in any victim); `unclear` (not above chance, or too
            few); `unknown` (no attack ended, or no metric has a chance level); `denied`.
        badge: The same in a few words.
        metric: The strongest metric, or the one that the bound is of; "" if there is none.
        level: The mean of that metric with its interval, over seeds if there are three.
        rounds: The means in the first and the last attacked round, and in a round between them that
            leaks more, if the level changes; otherwise empty.
        figure: The title and the mean of the metric, or its means by round.
        sentence: What the verdict rests on; "" if there is no metric.
        victims: The number of attacks that ended.
        failed: The number of attacks that failed or ran out of time. They count as a guess.
        readings: A few words on each metric.
    """

    kind: Kind
    badge: str
    readings: Mapping[str, str]
    victims: int = 0
    failed: int = 0
    metric: str = ""
    level: Estimate | None = None
    rounds: Mapping[float, Estimate] = field(default_factory=dict)
    figure: str = ""
    sentence: str = ""


def verdicts_of(rows: "pd.DataFrame", measures: Measures) -> dict[tuple[str, str], Verdict]:
    """The verdicts on all adversaries of a run, by sweep point and label."""
    each = rows.groupby(["point", "label"], sort=False)
    return judge({(str(point), str(label)): part for (point, label), part in each}, measures)


def judge(each: Mapping[Key, "pd.DataFrame"], measures: Measures) -> dict[Key, Verdict]:
    """The verdicts that are read together, corrected for the number of all their metrics.

    Args:
        each: The rows of one adversary at one sweep point, by any key.
        measures: How metrics are read.
    """
    each = {key: rows[READ] for key, rows in each.items()}  # to filter all columns takes long
    tested = {key: _tested(rows, measures) for key, rows in each.items()}
    every = [(key, one) for key, found in tested.items() for one in found]
    beats = holm({(key, one.metric): one.beats for key, one in every if one.beats is not None})
    leaks = holm({(key, one.metric): one.leaks for key, one in every if one.leaks is not None})
    beating = {pair for pair, p in beats.items() if p <= LEVEL}
    leaking = {pair for pair, p in leaks.items() if p <= LEVEL} & beating
    return {
        key: _verdict(
            rows,
            measures,
            tested[key],
            [one for one in tested[key] if (key, one.metric) in beating],
            [one for one in tested[key] if (key, one.metric) in leaking],
        )
        for key, rows in each.items()
    }


def _tested(rows: "pd.DataFrame", measures: Measures) -> list[Evidence]:
    """The leakage metrics of one adversary that can be tested: main ones first, then by rank."""
    every = ((str(metric), part) for metric, part in rows.groupby("metric", sort=False))
    found = (
        evidence_of(metric, measures[metric], part)
        for metric, part in every
        if measures[metric].leaks
    )
    return sorted(filter(None, found), key=lambda one: (one.how.detail, one.how.rank))


def correction(verdicts: Collection[Verdict]) -> str:
    """A sentence on the correction of verdicts that are read together; "" without a tested one."""
    number = sum(one.metric != "" for one in verdicts)
    if not number:
        return ""
    which = "the verdict" if number == 1 else f"any of the {number} verdicts"
    return (
        f"The probability that {which} says “leaks” of an attack that guesses at random is at most "
        "5 % (Holm's correction over all measures)."
    )


def _verdict(
    rows: "pd.DataFrame",
    measures: Measures,
    tested: Sequence[Evidence],
    beating: Sequence[Evidence],
    leaking: Sequence[Evidence],
) -> Verdict:
    """The verdict on one adversary, of whose tested metrics some beat chance and some leak."""
    statuses = rows.drop_duplicates(["seed", "round", "client", "victim"])["status"]
    victims, failed = int((statuses == "ok").sum()), int((~statuses.isin(["ok", *UNCOUNTED])).sum())
    metrics = [*dict.fromkeys(map(str, rows["metric"]))]
    if (statuses == "denied").all():
        return Verdict("denied", "denied", dict.fromkeys(metrics, "denied"))
    readings = {one: "not known" if measures[one].leaks else "about the attack" for one in metrics}
    if not tested:
        why = "no metric with a chance level" if victims else "no attack ended"
        return Verdict("unknown", f"not known: {why}", readings, victims, failed)
    readings |= {one.metric: _reading(one, one in beating, one in leaking) for one in tested}
    if leaking:
        found = _seen("leaks", "leaks", leaking, readings)
    elif beating:
        above = any(one.strength > 0 for one in beating)  # which may be luck
        badge = "not shown to beat a prior guess" if above else "no better than a prior guess"
        found = _seen("guessed", badge, beating, readings)
    else:
        found = _nothing(tested, readings)
    return replace(found, victims=victims, failed=failed)


def _reading(one: Evidence, beats: bool, leaks: bool) -> str:
    """A metric in a few words."""
    if beats and not leaks:
        return f"beats chance, {'perhaps' if one.strength > 0 else 'not'} a prior guess"
    if beats:
        return "beats chance"
    if one.without_success:
        below = "" if one.repeated else f": below {percent(rate_below(len(one.ended)))}"
        return f"nothing seen{below}"
    if one.beats is None or one.always_better:
        return "too few to tell"
    return "worse than chance" if one.worse else "not above chance"


def _seen(
    kind: Kind, badge: str, found: Sequence[Evidence], readings: Mapping[str, str]
) -> Verdict:
    """The verdict on an adversary that beats a guess, by its strongest metric."""
    one = max([one for one in found if not one.how.detail] or found, key=lambda one: one.strength)
    how, level = one.how, one.level.show(one.how)
    stops = _stops(one)
    by_round = " → ".join(how.show(mean.mean) for mean in stops.values())
    over = f"{one.level.seeds} seeds, " if one.level.over_seeds else ""
    parts = [f"{how.title} {level} over {over}{whom(one)}", *apart(one), guesses(one)]
    if stops:
        parts += [
            "by round: "
            + ", ".join(f"{how.show(mean.mean)} at {at:g}" for at, mean in stops.items())
        ]
    if one.repeated and one.units < SUITED:
        parts.append(f"a guess that never changes may suit {units(one)}")
    return Verdict(
        kind,
        badge + (f", {whom(one)}" if one.units < FEW or len(one.ended) < len(one.scores) else ""),
        readings,
        metric=one.metric,
        level=one.level,
        rounds=stops,
        figure=f"{how.title} {by_round if {*stops} & {*one.peaks} else how.show(one.level.mean)}",
        sentence="; ".join(parts),
    )


def _stops(one: Evidence) -> dict[float, Estimate]:
    """The first and the last round, and one between that leaks more, if the level changes."""
    scale = max((abs(each.mean - one.guess) for each in one.levels.values()), default=0.0) or 1.0
    at = {number: abs(each.mean - one.guess) / scale for number, each in one.levels.items()}
    ends = [*at][:: max(1, len(at) - 1)] if len(at) > 1 else []
    top = max(one.peaks, key=lambda number: at[number], default=None)
    if ends and top is not None and at[top] > max(at[end] for end in ends) + CHANGED:
        ends.insert(1, top)
    moved = [at[end] for end in ends]
    return {e: one.levels[e] for e in ends} if ends and max(moved) - min(moved) >= CHANGED else {}


def _nothing(tested: Sequence[Evidence], readings: Mapping[str, str]) -> Verdict:
    """The verdict on an adversary that beats no guess: how much can have been missed."""
    silent = next((one for one in tested if one.without_success), None)
    better = [one for one in tested if one.always_better]
    one = (better or [silent or tested[0]])[0]
    how, n = one.how, len(one.ended)
    shown = [other for other in tested if other.striking is not None]
    parts = [missed(one), *apart(one)]
    if silent and silent is not one:
        parts.append(missed(silent))
    if shown:
        best = min(shown, key=lambda other: other.how.rank)
        seen = f"{best.how.title} {best.how.show(best.striking)} at best"
        parts.append(f"{seen}, {guesses(best)}")
    kind: Kind = "unclear"
    if better:
        badge = f"above chance in {whom(one)}" + (f", with {seen}" if shown else "")
    elif shown:
        badge = f"not above chance in {whom(one)}, but {seen}"
    elif silent:
        kind, badge = "nothing", f"nothing seen in {whom(one)}"
        badge += "" if one.repeated else f": rate below {percent(rate_below(n))}"
    else:
        badge = f"not above chance in {whom(one)}"
    if better or n < FEWEST:
        badge += ", too few to tell"
    elif n < FEW:
        badge += ", few victims"
    return Verdict(
        kind,
        badge,
        readings,
        metric=one.metric,
        level=one.level,
        figure=f"{how.title} {how.show(one.level.mean)}",
        sentence="; ".join([*parts, guesses(one)]),
    )
