"""One metric of an adversary, tested against a random guess and one from public data."""

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedsim.metric import Measure
from fedsim.report.intervals import FEWEST, Estimate, as_found, clusters_of, estimate
from fedsim.report.replication import averaged, over_rounds
from fedsim.report.significance import LEVEL, better

if TYPE_CHECKING:
    import pandas as pd


FEW = 10
"""Fewer victims in a round are tested only if all scores are 0 or 1, and by no t-test: at the small
levels that a correction for many rounds asks for, it is not reliable."""


COLUMNS = (
    "round", "seed", "unit", "probe", "counted", "baseline", "baseline_prior", "batch_size",
    "status",
)  # fmt: skip
"""The columns of the findings that a `Score` is made of, in its order."""

SIZE = re.compile(r"[0-9]{1,9}")
"""A batch size; tables may come from elsewhere."""

STRIKING = 0.5
"""Share of the way from a guess to a perfect score from which on one attack is reported alone."""


class Score(NamedTuple):
    """One attack, as one metric scores it and as it scores the two guesses (NaN: unknown).

    `unit` is the client or the probe that was attacked, `probe` the probe if it is one, and `size`
    the number of examples, 1 if it is not known.
    """

    round: float
    seed: str
    unit: str
    probe: str
    counted: float
    chance: float
    prior: float
    size: float
    status: str

    @property
    def ended(self) -> bool:
        """Whether the attack has a score of its own; otherwise it counts as a guess."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One metric of an adversary.

    Attributes:
        metric: Its name.
        how: How it is read.
        scores: The attacks that have a score and a chance level.
        level: The mean over them.
        chance: The mean score of a random guess.
        prior: That of a guess from public data; NaN if there is none.
        beats: The p-value against chance; None for too few attacks.
        leaks: The p-value against the better of the two guesses.
        by_round: The same for each round alone, corrected for the number of rounds.
        levels: The mean of each round.
    """

    metric: str
    how: Measure
    scores: Sequence[Score]
    level: Estimate
    chance: float
    prior: float
    beats: float | None
    leaks: float | None
    by_round: Mapping[float, float]
    levels: Mapping[float, Estimate]

    @property
    def guess(self) -> float:
        """The score of the better guess; NaN if guesses of both infinities have no mean."""
        known = [one for one in (self.chance, self.prior) if not math.isnan(one)]
        return (min if self.how.lower else max)(known, default=math.nan)

    @property
    def peaks(self) -> list[float]:
        """The rounds that leak on their own account."""
        return [at for at, p in self.by_round.items() if p <= LEVEL and at in self.levels]

    @property
    def strength(self) -> float:
        """How far the mean, or a round that leaks, is from the guess to a perfect score."""
        way = (0.0 if self.how.lower else self.how.range[1]) - self.guess
        if not math.isfinite(way) or not way:
            return 0.0
        means = [self.level.mean, *(self.levels[at].mean for at in self.peaks)]
        return max((mean - self.guess) / way for mean in means)

    @property
    def ended(self) -> list[float]:
        """The scores of the attacks that ended."""
        return [one.counted for one in self.scores if one.ended]

    @property
    def units(self) -> int:
        """The number of clients or probes, those of each seed apart."""
        return len({(one.seed, one.unit) for one in self.scores})

    @property
    def repeated(self) -> bool:
        """Whether a client or probe was attacked more than once."""
        return self.units < len(self.scores)

    @property
    def clusters(self) -> Sequence[Hashable]:
        """What counts as one observation, for each score."""
        return clusters_of(*zip(*((one.seed, one.unit) for one in self.scores), strict=True))

    @property
    def striking(self) -> float | None:
        """The best score, if it is at least half of the way from the guess to a perfect one.

        Of numbers alone: a share may be far from a guess by chance, in a batch of few examples.
        """
        perfect = 0.0 if self.how.lower else self.how.range[1]
        if self.how.kind != "number" or not self.ended or not math.isfinite(perfect):
            return None
        best = min(self.ended) if self.how.lower else max(self.ended)
        way = perfect - self.guess
        return best if way and (best - self.guess) / way >= STRIKING else None

    @property
    def always_better(self) -> bool:
        """Whether each attack that ended is better than a random guess on the same victim."""
        ended = [one for one in self.scores if one.ended]
        if self.how.lower:
            return all(one.counted < one.chance for one in ended)
        return all(one.counted > one.chance for one in ended)

    @property
    def without_success(self) -> bool:
        """Whether the metric is met or not met by a victim, and no victim met it even in part."""
        failure = 1.0 if self.how.lower else 0.0
        return self.how.kind == "yes/no" and all(one == failure for one in self.ended)

    @property
    def hits(self) -> int | None:
        """The number of attacks that succeeded; None if a score is neither 0 nor 1."""
        if self.how.kind == "number" or not {0.0, 1.0}.issuperset(self.ended):
            return None
        return sum(one == (0.0 if self.how.lower else 1.0) for one in self.ended)

    @property
    def worse(self) -> bool:
        """Whether a random guess beats the scores; not known of a metric that is met or not met."""
        if self.how.kind == "yes/no":
            return False
        ours, chance, seeds, units = zip(
            *((one.counted, one.chance, one.seed, one.unit) for one in self.scores), strict=True
        )
        p = better(chance, ours, seeds, self.how, units=units)
        return p is not None and p <= LEVEL


def evidence_of(metric: str, how: Measure, rows: "pd.DataFrame") -> Evidence | None:
    """Test a metric; None if no attack ended with a score and a chance level."""
    known = rows[rows["counted"].notna() & rows["baseline"].notna()]
    if not (known["status"] == "ok").any():
        return None
    columns = {name: known[name].tolist() for name in COLUMNS}
    columns["batch_size"] = [
        max(1, int(one)) if SIZE.fullmatch(one) else 1 for one in columns["batch_size"]
    ]
    scores = [*map(Score, *columns.values())]
    rounds: dict[float, list[Score]] = {}
    for one in scores:
        rounds.setdefault(one.round, []).append(one)
    alone = {at: _p(own, how, chance_of, FEW) for at, own in rounds.items()}
    beats = {at: p for at, p in alone.items() if p is not None}
    leaks = {at: max(p, _informed(rounds[at], how, FEW)) for at, p in beats.items()}
    together = _p(scores, how, chance_of)
    return Evidence(
        metric,
        how,
        scores,
        level=_mean(scores, lambda one: one.counted, how),
        chance=_mean(scores, chance_of, how).mean,
        prior=_mean(scores, prior_of, how).mean,
        beats=_either_way(together, beats, len(rounds)),
        leaks=_either_way(
            None if together is None else max(together, _informed(scores, how)),
            leaks,
            len(rounds),
        ),
        by_round={at: len(rounds) * p for at, p in leaks.items()},
        levels=over_rounds(averaged(rows), how),
    )


def chance_of(one: Score) -> float:
    """What a random guess scores on the same victim."""
    return one.chance


def prior_of(one: Score) -> float:
    """What a guess from public data scores on the same victim."""
    return one.prior


def _p(
    scores: Sequence[Score],
    how: Measure,
    guess: Callable[[Score], float],
    fewest: int = FEWEST,
) -> float | None:
    """The p-value against one guess; an attack that broke counts as that guess.

    A round alone (`fewest` is FEW) is tested over its victims, which are different clients or
    probes. With several seeds it has to beat the guess over those, too: victims of one seed share
    a network.
    """
    known = [one for one in scores if not math.isnan(guess(one))]
    if how.kind == "yes/no":
        known = [one for one in known if one.ended]
    if not known:
        return None
    guesses = [guess(one) if one.ended else one.counted for one in known]
    values, sizes = [one.counted for one in known], [one.size for one in known]
    seeds, units = [one.seed for one in known], [one.unit for one in known]
    over_seeds = better(values, guesses, seeds, how, units=units, sizes=sizes)
    if fewest < FEW:
        return over_seeds
    alone = better(values, guesses, [""] * len(known), how, sizes=sizes, fewest=fewest)
    return None if alone is None or over_seeds is None else max(alone, over_seeds)


def _informed(scores: Sequence[Score], how: Measure, fewest: int = FEWEST) -> float:
    """The p-value against a guess from public data: 0 without one, 1 if it cannot be tested."""
    if all(math.isnan(one.prior) for one in scores):
        return 0.0
    found = _p(scores, how, prior_of, fewest)
    return 1.0 if found is None else found


def _either_way(together: float | None, apart: Mapping[float, float], rounds: int) -> float | None:
    """The p-value over all attacks or, with several rounds, of the best round: the smaller one."""
    if rounds < 2 or not apart:
        return together
    return min(1.0, 2 * min(1.0 if together is None else together, rounds * min(apart.values())))


def _mean(scores: Sequence[Score], of: Callable[[Score], float], how: Measure) -> Estimate:
    known = [one for one in scores if not math.isnan(of(one))]
    values = [of(one) for one in known]
    units = [one.unit for one in known]
    return estimate(values, [one.seed for one in known], as_found(how, values), units)
