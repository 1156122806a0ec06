"""What leaked, in numbers: a claim against the truth, and beside it what a guess would score.

Images are scored in units of their range, so that pixels lie in [0, 1]. Claimed pixels are clipped
to the range first (every adversary knows it). Claims are matched one-to-one to originals so that
the total MSE is least (Hungarian); an original without a claim, and a claim that holds NaN or Inf,
count as the image farthest from the original. Of more claims than originals only the first count,
so that claiming much does not pay.

A task with other examples adds a metric with `register`.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsim.errors import PluginError
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.seeds import torch_generator

__all__ = ["METRICS", "Metric", "applicable", "baselines", "match", "register"]

Score = Callable[[Reconstruction, Truth, Spec], float]


class Guess(Protocol):
    """`Task.guess`: a claim by somebody who saw no update."""

    def __call__(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction: ...


DRAWS = 8
"""Random guesses that a baseline without a closed form is the mean of."""

RECOVERED = 1e-3
"""An image whose MSE is below this looks like the original to a reader."""

PSNR_CAP = 100.0
"""Decibels of an exact match, whose MSE of 0 would give infinity."""

SSIM_SIDE = 5
"""Images with a shorter side leave no room for SSIM's window."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One way to score a claim.

    fields: the fields of `Reconstruction` it can be read from, the first that is there.
    compute: claim, truth, spec -> value. chance: the expected value of a uniformly random guess
    from truth and spec, where there is a closed form. suits: whether it makes sense for a task.
    """

    name: str
    summary: str
    fields: tuple[str, ...]
    higher_is_better: bool
    compute: Score
    chance: Callable[[Truth, Spec], float] | None = None
    suits: Callable[[Spec], bool] = lambda _: True

    def score(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """The value; raises `PluginError` for a claim without any of the fields it reads."""
        if all(getattr(claimed, field) is None for field in self.fields):
            raise PluginError(
                f"'{self.name}' needs {' or '.join(self.fields)}, and the adversary returned none "
                "of them: fill the field, or take it out of `recovers`"
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
) -> tuple[float, float | None]:
    """What a random guess and a guess from public data would score on the same victim.

    guess: `Task.guess`. seed: one a victim; the guesses are the same for every metric. The second
    number is None where the task has no informed guess (it raises `NotImplementedError`).
    """

    def mean(informed: bool) -> float:
        total = 0.0
        for draw in range(DRAWS):
            claimed = guess(truth, torch_generator(seed, "guess", draw), informed=informed)
            total += metric.score(claimed, truth, spec)
        return total / DRAWS

    random = metric.chance(truth, spec) if metric.chance is not None else mean(False)
    try:
        return random, mean(True)
    except NotImplementedError:
        return random, None


# --- labels ---------------------------------------------------------------------------------


def claimed_counts(claimed: Reconstruction) -> Counter[int]:
    """How often each label is claimed: `label_counts`, else the labels an example."""
    if claimed.label_counts is not None:
        return Counter({k: n for k, n in claimed.label_counts.items() if n > 0})
    return Counter([] if claimed.labels is None else claimed.labels.flatten().tolist())


def true_counts(truth: Truth) -> Counter[int]:
    """How often each label occurs among the victim's examples."""
    if truth.labels is None:
        raise ValueError("this task's truth has no labels, so no label metric applies")
    return Counter(truth.labels.flatten().tolist())


def _asr(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    """Overlap of the two multisets / labels emitted; see the summary for the denominator."""
    ours, true = claimed_counts(claimed), true_counts(truth)
    return (ours & true).total() / max(ours.total(), true.total())


def _asr_chance(truth: Truth, spec: Spec) -> float:
    """|D| labels uniform over n: sum over classes of E[min(Binomial(|D|, 1/n), count)] / |D|."""
    from scipy.stats import binom

    true = true_counts(truth)
    size = true.total()
    # E[min(X, c)] = sum_{k < c} P(X > k)
    overlap = sum(
        float(binom.sf(k, size, 1 / spec.classes)) for count in true.values() for k in range(count)
    )
    return overlap / size


def _label_f1(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    ours = claimed.label_set
    ours = frozenset(claimed_counts(claimed)) if ours is None else ours
    true = true_counts(truth).keys()
    return 2 * len(ours & true) / (len(ours) + len(true))


def _label_exact(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    return float(claimed_counts(claimed) == true_counts(truth))


def _label_exact_chance(truth: Truth, spec: Spec) -> float:
    """Probability of this multiset under |D| uniform draws: multinomial."""
    true = true_counts(truth)
    size = true.total()
    log = math.lgamma(size + 1) - sum(math.lgamma(n + 1) for n in true.values())
    return math.exp(log - size * math.log(spec.classes))


# --- images ---------------------------------------------------------------------------------


def match(claimed: Sequence[Tensor], originals: Tensor) -> list[int]:
    """For every original the index of the claim matched to it, or -1 where none is left.

    originals: (N, ...). Claims beyond the first N, of another shape, or with NaN or Inf match none.
    """
    from scipy.optimize import linear_sum_assignment

    usable = [
        index
        for index, claim in enumerate(claimed[: len(originals)])
        if claim.shape == originals.shape[1:] and bool(torch.isfinite(claim).all())
    ]
    matched = [-1] * len(originals)
    if usable:
        candidates = torch.stack([claimed[index] for index in usable])
        cost = [(candidates - one).square().flatten(1).mean(dim=1).tolist() for one in originals]
        for row, column in zip(*linear_sum_assignment(cost), strict=True):
            matched[int(row)] = usable[int(column)]
    return matched


def _pairs(claimed: Reconstruction, truth: Truth, spec: Spec) -> tuple[Tensor, Tensor]:
    """Claims lined up with the originals, both (N, ...) float64 on the CPU, pixels in [0, 1]."""
    if not truth.inputs:
        raise ValueError("this task's truth has no inputs, so no image metric applies")
    originals = torch.stack([image.detach().cpu().double() for image in truth.inputs])
    low, high = spec.input_range or (float(originals.min()), float(originals.max()))
    span = (high - low) or 1.0
    originals = (originals - low) / span
    # Infinities survive the clipping, so that they are not taken for extreme but honest pixels.
    claims = [(claim.detach().cpu().double() - low) / span for claim in claimed.inputs or ()]
    claims = [torch.where(claim.isinf(), claim, claim.clamp(0, 1)) for claim in claims]
    farthest = (originals < 0.5).double()
    ours = [
        claims[index] if index >= 0 else farthest[row]
        for row, index in enumerate(match(claims, originals))
    ]
    return torch.stack(ours), originals


def _errors(claimed: Reconstruction, truth: Truth, spec: Spec) -> Tensor:
    """MSE of each original's match, (N,)."""
    ours, originals = _pairs(claimed, truth, spec)
    return (ours - originals).square().flatten(1).mean(dim=1)


def _mse(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
    return float(_errors(claimed, truth, spec).mean())


def _psnr(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
    floor = 10 ** (-PSNR_CAP / 10)
    return float((-10 * _errors(claimed, truth, spec).clamp(min=floor).log10()).mean())


def _recovered(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
    return float((_errors(claimed, truth, spec) < RECOVERED).double().mean())


def _ssim(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
    from torchmetrics.functional.image import structural_similarity_index_measure

    ours, originals = _pairs(claimed, truth, spec)
    # The standard window (sigma 1.5) covers 11 pixels; smaller images get one of 5.
    sigma = 1.5 if min(originals.shape[-2:]) >= 11 else 0.5
    value = structural_similarity_index_measure(ours, originals, sigma=sigma, data_range=1.0)
    return float(value)  # type: ignore[arg-type]


def _is_fixed(spec: Spec) -> bool:
    return spec.input_shape is not None


def _is_image(spec: Spec) -> bool:
    shape = spec.input_shape
    return shape is not None and len(shape) == 3 and min(shape[1:]) >= SSIM_SIDE


_COUNTS = ("label_counts", "labels")
_SETS = ("label_set", "label_counts", "labels")

for _metric in (
    Metric(
        "asr",
        "attack success rate (LLG): labels right, with multiplicity, / labels emitted (at least "
        "as many as there are, so that claiming few does not pay)",
        _COUNTS,
        True,
        _asr,
        chance=_asr_chance,
    ),
    Metric("label_f1", "F1 of the set of labels that occur", _SETS, True, _label_f1),
    Metric(
        "label_exact",
        "1 if every label is right, with multiplicity, else 0",
        _COUNTS,
        True,
        _label_exact,
        chance=_label_exact_chance,
    ),
    Metric(
        "mse", "mean squared error, pixels in [0, 1]", ("inputs",), False, _mse, suits=_is_fixed
    ),
    Metric(
        "psnr", "peak signal-to-noise, dB, 100 if exact", ("inputs",), True, _psnr, suits=_is_fixed
    ),
    Metric("ssim", "structural similarity, 1 if exact", ("inputs",), True, _ssim, suits=_is_image),
    Metric(
        "recovered",
        "fraction of images with an MSE below 1e-3",
        ("inputs",),
        True,
        _recovered,
        suits=_is_fixed,
    ),
):
    register(_metric)
