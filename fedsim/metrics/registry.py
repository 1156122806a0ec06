"""The installed metrics, which of them apply to an adversary, and the scores of guesses."""

import contextlib
import functools
import importlib.metadata
import math
from collections.abc import Callable, Collection, Iterable
from typing import Protocol, cast

import torch
from torch import Tensor

from fedsim.errors import PluginError
from fedsim.libraries import asking
from fedsim.metric import FORMAT, Metric
from fedsim.metrics.fixed import fixed_claim, frequent_tokens, reads_labels, without_a_word
from fedsim.plugin import GROUPS
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.seeds import torch_generator

Score = Callable[[Reconstruction, Truth, Spec], float]
"""A function that scores a claim against the truth."""


class Guess(Protocol):
    """`Task.guess`: a claim made without an update, at random or from public data."""

    def __call__(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """Guess the victim's examples; `informed` asks for a guess from public data."""
        ...


DRAWS = 8
"""Random guesses that are averaged for a baseline without a closed form."""

COUNTED = 64
"""Texts from public data, at least, whose tokens are counted to find the most frequent ones."""

REMEMBERED = 2**20
"""Size in bytes up to which the inputs of a guess are kept for the next metric."""

BUILT_IN = "built-in"
"""The entry point of fedsim's own metrics, which stand first in every table."""


@functools.cache
def installed() -> dict[str, Metric]:
    """The installed metrics by name, in the order in which findings list them.

    Raises:
        PluginError: An entry point cannot be imported or names something else, or two metrics have
            the same name.
    """
    # A set: fedsim may be installed under an earlier name of the distribution, too.
    points = {*importlib.metadata.entry_points(group=GROUPS["metrics"])}
    found: dict[str, Metric] = {}
    for point in sorted(points, key=lambda point: (point.name != BUILT_IN, point.name)):
        try:
            loaded = point.load()
            classes = loaded if isinstance(loaded, Iterable) else [loaded]
            for metric in (cls() for cls in classes):
                _add(metric, found)
        except (Exception, SystemExit) as error:
            package = point.dist.name if point.dist else "an unknown package"
            raise PluginError(
                f"metrics '{point.name}' ({point.value} of {package}) cannot be used: "
                f"{type(error).__name__}: {error}. Every run scores with all metrics: repair or "
                "uninstall this package"
            ) from error
    return found


def described(more: Iterable[Metric] = ()) -> dict[str, dict[str, object]]:
    """The `Measure` of each metric by name, as in metrics.json, without defaults.

    Args:
        more: A scenario's own metrics, beside the installed ones.
    """
    shown = {name: metric.shown for name, metric in together(more).items()}
    return cast(dict[str, dict[str, object]], FORMAT.dump_python(shown, exclude_defaults=True))


def together(more: Iterable[Metric]) -> dict[str, Metric]:
    """The installed metrics and a scenario's own, by name.

    Raises:
        PluginError: Two metrics have the same name.
    """
    found = dict(installed())
    for metric in more:
        _add(metric, found)
    return found


def _add(metric: Metric, known: dict[str, Metric]) -> None:
    if not isinstance(metric, Metric):
        raise PluginError(f"{metric!r} is not a metric; derive its class from fedsim.metric.Metric")
    if wrong := metric.mistake():
        raise PluginError(f"metric '{metric.name}' cannot be used: {wrong}")
    if metric.name in known:
        raise PluginError(f"there is a metric '{metric.name}' already: rename this one")
    known[metric.name] = metric


def register(metric: Metric) -> Metric:
    """Add a metric in this process; a package names its metrics by an entry point instead.

    Raises:
        PluginError: The name is taken.
    """
    _add(metric, installed())
    return metric


def applicable(
    recovers: Collection[str], spec: Spec | None = None, more: Iterable[Metric] = ()
) -> list[Metric]:
    """The metrics for an adversary.

    Args:
        recovers: The fields of `Reconstruction` that the adversary fills.
        spec: What examples of the task look like; None for metrics of all tasks.
        more: A scenario's own metrics, beside the installed ones.
    """
    return [
        metric
        for metric in together(more).values()
        if any(field in recovers for field in metric.fields)
        and (spec is None or _suits(metric, spec))
    ]


def _suits(metric: Metric, spec: Spec) -> bool:
    with asking(metric.name, "suits"):
        return metric.suits(spec)


def baselines(
    metric: Metric, truth: Truth, spec: Spec, guess: Guess, seed: int
) -> tuple[float | None, float | None]:
    """Score a random guess and a guess from public data on the same victim.

    The second draws labels or texts by their frequency, or claims the same labels or words for
    every update where that scores better (`fedsim.metrics.fixed`).

    Args:
        metric: The metric.
        truth: The victim's examples.
        spec: What examples of the task look like.
        guess: `Task.guess`.
        seed: The victim's seed; guesses are the same for every metric.

    Returns:
        Both scores. None if the guess has none of the fields that the metric reads, or if the
        metric is not defined; the second also if the task has no guess from public data
        (`NotImplementedError`).
    """
    random = random_guess(metric, truth, spec, guess, seed)
    try:
        drawn, frequencies = _mean_guess(metric, truth, spec, guess, seed, informed=True)
    except NotImplementedError:
        drawn, frequencies = None, torch.ones(spec.classes)
    if "text" in metric.fields:
        found = [drawn, without_a_word(metric, truth, spec)]
        if drawn is not None:
            found.append(_frequent(metric, truth, spec, guess, seed))
        known = [one for one in found if one is not None]
        return random, (min if metric.shown.lower else max)(known, default=None)
    if frequencies is None or truth.labels is None or not reads_labels(metric):
        return random, drawn
    claim = fixed_claim(metric, spec, frequencies, int((truth.labels >= 0).sum()))
    return random, drawn if claim is None else _defined(metric.score(claim, truth, spec))


def random_guess(metric: Metric, truth: Truth, spec: Spec, guess: Guess, seed: int) -> float | None:
    """Score a random guess, in closed form if the metric has one; see `baselines`."""
    exact = metric.chance(truth, spec)
    if exact is None:
        return _mean_guess(metric, truth, spec, guess, seed, informed=False)[0]
    return _defined(float(exact))


def _mean_guess(
    metric: Metric, truth: Truth, spec: Spec, guess: Guess, seed: int, *, informed: bool
) -> tuple[float | None, Tensor | None]:
    """The mean score of guesses, and the frequencies of labels that they were drawn by."""
    total, frequencies = 0.0, None
    for draw in range(DRAWS):
        claimed = guess(truth, torch_generator(seed, "guess", draw, wide=False), informed=informed)
        frequencies = claimed.label_scores
        if not metric.reads(claimed):
            return None, frequencies
        total += metric.score(claimed, truth, spec)
    return _defined(total / DRAWS), frequencies


def _frequent(metric: Metric, truth: Truth, spec: Spec, guess: Guess, seed: int) -> float | None:
    """The score of the most frequent tokens, as far as guesses from public data tell them."""
    draws = max(DRAWS, math.ceil(COUNTED / max(1, len(truth.lengths or ()))))
    rngs = [torch_generator(seed, "guess", draw, wide=False) for draw in range(draws)]
    drawn = [guess(truth, rng, informed=True) for rng in rngs]
    with contextlib.suppress(Exception):  # a metric of one's own may read more of a text
        claimed = frequent_tokens(metric, spec, drawn)
        return None if claimed is None else _defined(metric.score(claimed, truth, spec))
    return None


def remembering(guess: Guess) -> Guess:
    """Cache guesses, so that the metrics of one victim share them.

    Guesses with more than `REMEMBERED` bytes of inputs are drawn anew each time.
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


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
