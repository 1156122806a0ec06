"""What a verdict says of the attacks behind it: whom they attacked, what can have been missed."""

import math
from collections import Counter
from collections.abc import Sequence

from fedsim.report.evidence import Evidence, Score
from fedsim.report.significance import most, rate_below

SUM = "sum of clients"
"""A victim of secure aggregation, in words."""


def missed(one: Evidence) -> str:
    """The level of a metric, and the largest one that fits the scores with 95 % confidence."""
    how, n, ends = one.how, len(one.ended), dict[str, float]()
    text = f"{how.title} {how.show(one.level.mean)} over {whom(one)}"
    if one.hits is not None:
        ends[f" on {units(one)}" if one.repeated else ""] = rate_below(n, one.hits)
        if one.repeated and one.units > 1 and not one.hits:
            ends[" on others"] = rate_below(one.units)
        ends = {whose: 1 - end if how.lower else end for whose, end in ends.items()}
        if how.kind == "yes/no":
            ended = " that ended" if n < len(one.scores) else ""
            text = f"{how.title}: {sum(one.ended):g} of {n}{ended}"
    else:
        sign = -1 if how.lower else 1
        gains = [sign * (each.counted - each.chance) for each in one.scores]
        if (bound := most(gains, one.clusters)) is not None:
            ends[""] = min(max(one.chance + sign * bound, how.range[0]), how.range[1])
    perfect = how.show(0.0 if how.lower else how.range[1])
    bounds = [f"{how.show(end)}{whose}" for whose, end in ends.items() if how.show(end) != perfect]
    word = f"{'rate ' if how.kind == 'yes/no' else ''}{'above' if how.lower else 'below'}"
    return f"{text}, {word} {', '.join(bounds)} (95 %)" if bounds else text


def guesses(one: Evidence) -> str:
    """What the two guesses score."""
    prior = f"prior guess {one.how.show(one.prior)}"
    prior = "no prior guess known" if math.isnan(one.prior) else prior
    return f"chance {one.how.show(one.chance)}, {prior}"


def _sorts(one: Evidence) -> dict[str, list[Score]]:
    """The attacks on clients' updates, on sums of them and on probes, as far as there are any."""
    sorts: dict[str, list[Score]] = {"client": [], SUM: [], "probe": []}
    for each in one.scores:
        sorts["probe" if each.probe else SUM if "+" in str(each.unit) else "client"].append(each)
    return {noun: own for noun, own in sorts.items() if own}


def whom(one: Evidence) -> str:
    """Whom a metric rests on, such as `40 attacks on 2 clients (3 failed)`."""
    sorts, parts = _sorts(one), []
    for noun, own in sorts.items():
        apart = {(each.seed, each.unit) for each in own}
        if len(apart) < len(own):
            parts.append(f"{_count(len(own), 'attack')} on {_named(own, noun)}")
        else:
            parts.append(_count(len(own), "victim" if [*sorts] == ["client"] else noun))
    broken = Counter(each.status for each in one.scores if not each.ended)
    ways = {"failed": "failed", "timeout": "out of time"}
    lost = ", ".join(f"{broken[status]} {way}" for status, way in ways.items() if broken[status])
    return " and ".join(parts) + (f" ({lost})" if lost else "")


def units(one: Evidence) -> str:
    """The attacked clients and probes, such as `these 2 clients`."""
    return " and ".join(_named(own, noun, "these ") for noun, own in _sorts(one).items())


def _named(own: Sequence[Score], noun: str, these: str = "") -> str:
    """Clients or probes in words: `one client`, or `2 clients` after `these`."""
    number = len({each.unit for each in own})
    return f"one {noun}" if number == 1 else f"{these}{_count(number, noun)}"


def apart(one: Evidence) -> list[str]:
    """The means of clients' updates and of probes, if there are both."""
    names = {"client": "clients' updates", SUM: "sums of updates", "probe": "probes"}
    found = []
    for noun, own in _sorts(one).items():
        mean = sum(each.counted for each in own) / len(own)
        found.append(f"{names[noun]} {one.how.show(mean)}")
    return [", ".join(found)] if len(found) > 1 else []


def _count(number: int, noun: str) -> str:
    if number != 1:
        noun = f"sums{noun.removeprefix('sum')}" if noun == SUM else f"{noun}s"
    return f"{number} {noun}"


def percent(rate: float) -> str:
    """A rate, such as `11.3 %`."""
    return f"{100 * rate:.3g} %"
