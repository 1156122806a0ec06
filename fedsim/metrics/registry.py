"""What a metric is, which there are, which apply, and what a guess would score."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import torch

from fedsim.errors import PluginError
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.seeds import torch_generator

__all__ = [
    "DRAWS",
    "METRICS",
    "Guess",
    "Metric",
    "Score",
    "applicable",
    "baselines",
    "register",
    "remembering",
]

Score = Callable[[Reconstruction, Truth, Spec], float]


class Guess(Protocol):
    """`Task.guess`: a claim by somebody who saw no update."""

    def __call__(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction: ...


DRAWS = 8
"""Random guesses that a baseline without a closed form is the mean of."""


REMEMBERED = 2**20
"""Bytes of inputs up to which a guess is kept for the next metric."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One way to score a claim.

    fields: the fields of `Reconstruction` it can be read from, the first that is there.
    compute: claim, truth, spec -> value; NaN where it is not defined on this victim. chance: the
    expected value of a uniformly random guess from truth and spec, where there is a closed form;
    otherwise guesses are drawn and scored, and where those lack its fields it has no chance level.
    suits: whether it makes sense for a task.
    """

    name: str
    summary: str
    fields: tuple[str, ...]
    higher_is_better: bool
    compute: Score
    chance: Callable[[Truth, Spec], float] | None = None
    suits: Callable[[Spec], bool] = lambda _: True

    def reads(self, claimed: Reconstruction) -> bool:
        """Whether the claim has a field that it can be read from."""
        return any(_filled(claimed, field) for field in self.fields)

    def score(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """The value; raises `PluginError` for a claim without any of the fields it reads."""
        if not self.reads(claimed):
            raise PluginError(
                f"'{self.name}' needs {' or '.join(self.fields)}, and the adversary returned none "
                "of them: fill the field, or take it out of `recovers` and `fills()`"
            )
        return self.compute(claimed, truth, spec)


METRICS: dict[str, Metric] = {}
"""The metrics by name, in the order they are reported."""


def register(metric: Metric) -> Metric:
    """Add a metric; raises `PluginError` when the name is taken."""
    if metric.name in METRICS:
        raise PluginError(f"there is a metric '{metric.name}' already")
    METRICS[metric.name] = metric
    return metric


def applicable(recovers: Collection[str], spec: Spec | None = None) -> list[Metric]:
    """The metrics for an adversary that fills these fields (on a task, where its spec is given)."""
    return [
        metric
        for metric in METRICS.values()
        if any(field in recovers for field in metric.fields)
        and (spec is None or metric.suits(spec))
    ]


def baselines(
    metric: Metric, truth: Truth, spec: Spec, guess: Guess, seed: int
) -> tuple[float | None, float | None]:
    """What a random guess and a guess from public data would score on the same victim.

    guess: `Task.guess`. seed: one a victim; the guesses are the same for every metric. None where
    a guess has nothing that the metric reads, and where the metric is not defined on this victim;
    the second also where the task has no informed guess (it raises `NotImplementedError`).
    """

    def mean(informed: bool) -> float | None:
        total = 0.0
        for draw in range(DRAWS):
            claimed = guess(truth, torch_generator(seed, "guess", draw), informed=informed)
            if not metric.reads(claimed):
                return None
            total += metric.score(claimed, truth, spec)
        return _defined(total / DRAWS)

    random = mean(False) if metric.chance is None else _defined(metric.chance(truth, spec))
    try:
        return random, mean(True)
    except NotImplementedError:
        return random, None


def remembering(guess: Guess) -> Guess:
    """The same guesses, each drawn once; for the metrics of one victim, which ask for the same.

    Guesses of more than `REMEMBERED` bytes of inputs are drawn anew each time.
    """
    known: dict[tuple[int, bool], Reconstruction] = {}

    def remembered(truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        key = (rng.initial_seed(), informed)
        if key in known:
            return known[key]
        claimed = guess(truth, rng, informed=informed)
        if sum({id(one): one.nbytes for one in claimed.inputs or ()}.values()) <= REMEMBERED:
            known[key] = claimed
        return claimed

    return remembered


def _filled(claimed: Reconstruction, field: str) -> bool:
    """Whether a claim has this field; attributes that are not claimed are an empty mapping."""
    value = getattr(claimed, field)
    return bool(value) if field == "attributes" else value is not None


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
