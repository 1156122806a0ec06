"""The verdict on an adversary: from all its leakage metrics, against the better of two guesses.

- A metric *beats chance* if its scores beat those of a random guess on the same victims. It *leaks*
  if they also beat those of a guess from public data, where the task has one.
- Each is tested over all attacks and by round; the smaller p-value counts, times two, and that of a
  round times the number of rounds. An attack that succeeds late is not averaged away.
- Holm's correction over the adversary's metrics keeps the probability of any false finding at 5 %.
- Without a finding, the verdict says how much can have been missed, as an upper bound.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedsim.report.evidence import Evidence, chance_of, evidence_of
from fedsim.report.intervals import FEWEST, Estimate
from fedsim.report.significance import LEVEL, better, holm, most, rate_below
from fedsim.runs.reading import Measures

if TYPE_CHECKING:
    import pandas as pd

FEW = 10
"""Verdicts on fewer victims say so: in nine, a rate of 28 % can be missed."""

CHANGED = 0.2
"""Change of the level between rounds that is reported, as a share of its distance to a guess."""

Kind = Literal["leaks", "guessed", "nothing", "unclear", "unknown", "denied"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of one adversary.

    Attributes:
        kind: `leaks`; `guessed` (better than chance, and no better than a guess from public data);
            `nothing` (no success in any victim); `unclear` (not above chance); `unknown` (no attack
            ended, or no metric has a chance level); `denied`.
        badge: The same in a few words.
        metric: The strongest metric, or the one that the bound is of; "" if there is none.
        level: The mean of that metric with its interval, over seeds if there are three.
        rounds: The means in the first and the last attacked round, and in a round between them that
            leaks more, if the level changes; otherwise empty.
        figure: The title and the mean of the metric, or its means by round.
        sentence: What the verdict rests on; "" if there is no metric.
        victims: The number of attacks that ended.
        readings: A few words on each metric.
    """

    kind: Kind
    badge: str
    readings: Mapping[str, str]
    victims: int = 0
    metric: str = ""
    level: Estimate | None = None
    rounds: Mapping[float, Estimate] = field(default_factory=dict)
    figure: str = ""
    sentence: str = ""


def verdicts_of(rows: "pd.DataFrame", measures: Measures) -> dict[tuple[str, str], Verdict]:
    """The verdicts on all adversaries of a run, by sweep point and label."""
    each = rows.groupby(["point", "label"], sort=False)
    return {(str(point), str(label)): verdict_of(part, measures) for (point, label), part in each}


def verdict_of(rows: "pd.DataFrame", measures: Measures) -> Verdict:
    """The verdict on the rows of one adversary at one sweep point."""
    attacks = rows.drop_duplicates(["seed", "round", "client", "victim"])
    victims = int((attacks["status"] == "ok").sum())
    readings, tested = dict.fromkeys(map(str, rows["metric"]), "not known"), list[Evidence]()
    if (attacks["status"] == "denied").all():
        return Verdict("denied", "denied", dict.fromkeys(readings, "denied"))
    for metric, part in rows.groupby("metric", sort=False):
        if not measures[str(metric)].leaks:
            readings[str(metric)] = "about the attack"
        elif one := evidence_of(str(metric), measures[str(metric)], part):
            tested.append(one)
    if not tested:
        why = "no metric with a chance level" if victims else "no attack ended"
        return Verdict("unknown", f"not known: {why}", readings, victims)
    tested.sort(key=lambda one: (one.how.detail, one.how.rank))
    beats = holm({one.metric: one.beats for one in tested if one.beats is not None})
    leaks = holm({one.metric: one.leaks for one in tested if one.leaks is not None})
    beating = [one for one in tested if beats.get(one.metric, 1.0) <= LEVEL]
    leaking = [one for one in beating if leaks.get(one.metric, 1.0) <= LEVEL]
    readings |= {one.metric: _reading(one, one in beating, one in leaking) for one in tested}
    if leaking:
        return _seen("leaks", "leaks", leaking, victims, readings)
    if beating:
        return _seen("guessed", "no better than a prior guess", beating, victims, readings)
    return _nothing(tested, victims, readings)


def _reading(one: Evidence, beats: bool, leaks: bool) -> str:
    """A metric in a few words."""
    if beats:
        return "beats chance" if leaks else "beats chance, not a prior guess"
    if one.without_success:
        return f"nothing seen: below {_percent(rate_below(len(one.ended)))}"
    if one.beats is None:
        return "too few to tell"
    seeds = [each.seed for each in one.scores]
    counted, chance = [each.counted for each in one.scores], [*map(chance_of, one.scores)]
    worse = None if one.how.kind == "yes/no" else better(chance, counted, seeds, one.how)
    return "worse than chance" if worse is not None and worse <= LEVEL else "not above chance"


def _seen(
    kind: Kind, badge: str, found: Sequence[Evidence], victims: int, readings: Mapping[str, str]
) -> Verdict:
    """The verdict on an adversary that beats a guess, by its strongest metric."""
    one = max([one for one in found if not one.how.detail] or found, key=lambda one: one.strength)
    how, level = one.how, one.level.show(one.how)
    stops = _stops(one)
    by_round = " → ".join(how.show(mean.mean) for mean in stops.values())
    over = f"{one.level.seeds} seeds" if one.level.over_seeds else _victims(one.level.n)
    parts = [f"{how.title} {level} over {over}", _guesses(one)]
    if stops:
        parts += [
            "by round: "
            + ", ".join(f"{how.show(mean.mean)} at {at:g}" for at, mean in stops.items())
        ]
    return Verdict(
        kind,
        badge + (f", {_victims(victims)}" if victims < FEW else ""),
        readings,
        victims,
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


def _nothing(tested: Sequence[Evidence], victims: int, readings: Mapping[str, str]) -> Verdict:
    """The verdict on an adversary that beats no guess: how much can have been missed."""
    one = next((one for one in tested if one.without_success), tested[0])
    how, n, hits = one.how, len(one.ended), sum(one.ended)
    kind: Kind = "nothing" if one.without_success else "unclear"
    badge = f"not above chance in {_victims(victims)}"
    if how.kind == "yes/no" and {0.0, 1.0}.issuperset(one.ended):
        below = _percent(rate_below(n, int(hits)))
        bound = f"{how.title}: {hits:g} of {n}, rate below {below} (95 %)"
        if not hits:
            badge = f"nothing seen in {_victims(n)}: rate below {below}"
    else:
        bound = _missed(one)
    shown = [other for other in tested if other.striking is not None]
    if shown:
        kind, best = "unclear", min(shown, key=lambda other: other.how.rank)
        badge = f"not above chance on average in {_victims(victims)}"
        badge += f", but {best.how.title} {best.how.show(best.striking)} in one"
        bound += f"; best {best.how.title} {best.how.show(best.striking)}, {_guesses(best)}"
    if n < FEWEST:
        badge += ", too few to tell"
    elif n < FEW:
        badge += ", few victims"
    return Verdict(
        kind,
        badge,
        readings,
        victims,
        metric=one.metric,
        level=one.level,
        figure=f"{how.title} {how.show(one.level.mean)}",
        sentence="; ".join([bound, _guesses(one)]),
    )


def _missed(one: Evidence) -> str:
    """The level of a metric with the one-sided bound of its gain over chance."""
    sign, how = -1 if one.how.lower else 1, one.how
    if how.kind == "share" and {0.0, 1.0}.issuperset(one.ended):
        below = rate_below(len(one.ended), int(sum(one.ended)))  # equal values have no spread
        shown = f"{how.title} {how.show(one.level.mean)} over {_victims(len(one.ended))}"
        return shown if how.lower else f"{shown}, below {_percent(below)} (95 %)"
    seeds = [each.seed for each in one.scores]
    gains = [sign * (each.counted - each.chance) for each in one.scores]
    bound = most(gains, seeds if len({*seeds}) >= FEWEST else range(len(gains)))
    text = f"{how.title} {how.show(one.level.mean)} over {_victims(one.level.n)}"
    if bound is None:
        return text
    end = min(max(one.chance + sign * bound, how.range[0]), how.range[1])
    return f"{text}, {'above' if how.lower else 'below'} {how.show(end)} (95 %)"


def _guesses(one: Evidence) -> str:
    """What the two guesses score."""
    prior = "" if math.isnan(one.prior) else f", prior guess {one.how.show(one.prior)}"
    return f"chance {one.how.show(one.chance)}{prior}"


def _victims(n: int) -> str:
    return f"{n} victim{'' if n == 1 else 's'}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.3g} %"
