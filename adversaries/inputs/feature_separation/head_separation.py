"""The base of attacks that solve the equations of a head's gradient for the features behind it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversaries.inputs.feature_separation.extended_equations import Beside, ExtendedEquations
from adversaries.inputs.feature_separation.head_equations import CLOSE, HeadEquations
from adversaries.inputs.feature_separation.reduced_head import ReducedHead
from adversaries.inputs.feature_separation.separation import Separation
from fedsim import Adversary, Job, Knowledge, Observation, Requirement, VictimModel
from fedsim.adversary import Source
from fedsim.gradients import HeadGradient, head_calls, rank_of, tied, two_logits
from fedsim.spec import ImageSpec, Spec, TabularSpec

PROBES = 8
"""Random inputs by which it is seen whether features can be negative."""

CTC = "the model is trained with CTC: its head's gradient is not E' H with known E"

FAR, NEAR = 0.25, 0.95
"""Shares of the plain equations' residual below which clipping or smoothing is assumed, and below
which it is tried after them."""

SEARCHED = 3
"""Label multisets that are tried from more than one start: those that fit best from one."""


class HeadSeparation(Adversary):
    """Base class: the features and labels of a batch that solve the head's equations.

    See `FeatureSeparation` for the equations, and `HeadEquations` for how they are solved.
    """

    needs = Knowledge.HEAD_GRADIENT | Knowledge.MODEL
    recovers = frozenset({"features", "labels", "label_counts", "label_set"})
    requirements: ClassVar[tuple[Requirement, ...]] = (
        Requirement("label_share", "there must be fewer examples than classes", most=0.95),
        Requirement("steps", "the equations are those of a single step", most=1),
        Requirement("optimizer", "steps of another optimizer have other ratios", only=("sgd",)),
        Requirement("imbalance", "noise hides which features fit", most=0.02),
    )

    labels_from: Source = "llg"
    """Where the labels come from, with their multiplicities: "given" (the threat model grants
    LABELS), or another adversary by name, such as "llg" (variant "llg+" with auxiliary data)."""

    tolerance: float = Field(default=1e-3, gt=0, lt=1)
    """The largest residual of a claim. Updates with noise or many roundings need a larger one."""

    steps: int = Field(default=100, ge=0)
    """The largest number of steps of Levenberg-Marquardt from one start; 0: the fixed point alone,
    which merges examples of the same label."""

    corrections: int = Field(default=8, ge=0)
    """The largest number of label multisets that are tried beside that of `labels_from`: those that
    the bias's gradient shows, then those that differ from it in one label and fit best."""

    def conditions(self) -> tuple[Requirement, ...]:
        """Signs that mislead `labels_from` matter only where no bias corrects the labels."""
        found = super().conditions()
        if not self.corrections:
            return found
        return tuple(
            replace(one, quantity="signs_without_bias") if one.quantity == "opposite_signs" else one
            for one in found
            if one.quantity != "row_noise"  # `imbalance` says as much, and of all signs
        )

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of heads that have another loss than cross-entropy over classes."""
        if hasattr(model.module, "blank"):
            return [CTC]
        if twins := tied(model):
            return [f"the head's weight is also {', '.join(twins)}: no features follow"]
        return super().cautions(model)

    def separations(
        self, seen: Observation, job: Job, *, alone: bool = True
    ) -> Iterator[tuple[int, Separation]]:
        """Solutions, each with the number of label multisets so far, the likeliest labels first.

        Other labels are tried if the solution from the first start does not fit, and then more
        starts with the labels that fit best.

        Args:
            seen: The observation.
            job: The attack's job.
            alone: Whether nothing but the head's equations shows that a solution is right.

        Raises:
            ValueError: There are too many examples, or fewer independent ones than examples; the
                head is tied to another layer, or its gradient holds NaN or Inf.
        """
        head, reduced = self.reduced(seen)
        equations, size = HeadEquations(reduced), reduced.size
        if alone and not reduced.overdetermined():
            raise ValueError(
                f"{size} examples and a head of {reduced.classes} classes without a bias have no "
                "more equations than unknowns, so that any labels fit: the attack needs a smaller "
                "training.batch_size"
            )
        beside: list[tuple[Beside, int]] = [("factors", size), ("smoothing", 1)]
        others = [
            ExtendedEquations(reduced, one) for one, more in beside if reduced.overdetermined(more)
        ]
        first = self._labels(seen, head, size, job).cpu()
        likely = head.weight.norm(dim=1).argsort(descending=True)[: 2 * size].tolist()
        multisets = islice(self._multisets(equations, first, likely), 1 + self.corrections)
        searches = list[tuple[float, Iterator[Separation]]]()
        for number, labels in enumerate(multisets, 1):
            for kind in _likely(equations, others, labels):
                starts = kind.solutions(labels, job.rng, self.steps)
                found = next(starts)
                yield number, found
                searches.append((found.residual, starts))
                if found.residual < self.tolerance:
                    break
            if found.residual < self.tolerance:
                break
        for _, starts in sorted(searches, key=itemgetter(0))[:SEARCHED]:
            fits = False
            for found in starts:
                fits |= found.residual < self.tolerance
                yield number, found
            if fits:
                return

    def reduced(self, seen: Observation) -> tuple[HeadGradient, ReducedHead]:
        """The head's gradient, and what the equations need of it.

        Raises:
            ValueError: As for `separations`.
        """
        model = seen.know(Knowledge.MODEL)
        if twins := tied(model):
            raise ValueError(
                f"the head's weight is also {', '.join(twins)}: its gradient is the sum of both "
                "layers', and no features follow. Use dlg or inverting-gradients"
            )
        if hasattr(model.module, "blank"):
            raise ValueError(CTC)
        head = HeadGradient.of(seen)
        if head.bias is not None and not head.bias.isfinite().all():
            raise ValueError(f"the gradient of '{seen.head}.bias' holds NaN or Inf")
        parameters = dict(model.module.named_parameters())  # a frozen bias counts, too
        weight, bias = parameters[f"{seen.head}.weight"], parameters.get(f"{seen.head}.bias")
        weight = two_logits(weight, seen.spec.classes)
        bias = None if bias is None else two_logits(bias, seen.spec.classes)
        if weight.shape != head.weight.shape:
            raise ValueError(
                f"the head '{seen.head}' has a weight {tuple(weight.shape)}, and its gradient is "
                f"{tuple(head.weight.shape)}"
            )
        reduced = ReducedHead.of(
            _in_float64(head.weight),
            None if head.bias is None else _in_float64(head.bias),
            _in_float64(weight),
            None if bias is None else _in_float64(bias),
            self._size(seen, head.weight),
            _nonnegative(model, seen.spec),
        )
        return head, reduced

    def _multisets(
        self, equations: HeadEquations, labels: Tensor, likely: list[int]
    ) -> Iterator[Tensor]:
        """Label multisets (B,), the likeliest first; `labels` alone if they are granted."""
        if self.source("labels_from") == "given":
            yield labels
            return
        known, shown = [labels], equations.labels_by_bias(None)
        while shown is not None and not any(torch.equal(shown, one) for one in known):
            known, shown = [*known, shown], equations.labels_by_bias(shown)
        known.sort(key=equations.fixed_point_residual)
        yield from known
        others = _with_one_changed(known[0], likely)
        yield from sorted(others, key=equations.fixed_point_residual)

    def _misses(self, residual: float, tried: int) -> str:
        """Why nothing is claimed if no solution has a residual below `tolerance`."""
        return (
            f"no features fit: the equations of the head are missed by {residual:.2g} of the "
            f"gradient, and tolerance = {self.tolerance:g}. The labels may be wrong (multisets "
            f'tried: {tried}; grant LABELS, labels_from = "given"), or the update has noise or '
            "several local steps. dlg matches gradients without such equations"
        )

    def _size(self, seen: Observation, weight: Tensor) -> int:
        """The number of examples, which the equations can have at most.

        Raises:
            ValueError: They have another one.
        """
        rank, classes = rank_of(weight), len(weight)
        size = seen.num_examples or rank
        if seen.spec.labels_are_tokens:  # of which nobody but the labels shows the number
            known = self.source("labels_from") == "given"
            size = len(_granted(seen)) if known else rank
        if size >= min(classes, weight.shape[1] + 1):
            raise ValueError(
                f"{size} examples and a head of {classes} classes and {weight.shape[1]} features: "
                "its gradient tells apart fewer examples than there are classes, and no more than "
                "features. Use inverting-gradients, or first-linear for the inputs of a first layer"
            )
        if rank < size:
            raise ValueError(
                f"the head's gradient has rank {rank}, and the update holds {size} examples: some "
                "are alike, are predicted so surely that they leave no trace, or noise hides them"
            )
        return size

    def _labels(self, seen: Observation, head: HeadGradient, size: int, job: Job) -> Tensor:
        """Labels (B,) int64, sorted: those of `labels_from`, filled up where it finds fewer."""
        if self.source("labels_from") == "given":
            labels = _granted(seen)
            if len(labels) != size:
                raise ValueError(
                    f"{len(labels)} labels are granted, and the head's gradient shows {size} "
                    "examples"
                )
        else:
            claimed = self.parts()["labels_from"].reconstruct(seen, job)
            known = claimed.labels
            if known is None:
                known = torch.tensor(sorted(claimed.label_set or ()), dtype=torch.int64)
            labels = known[:size]
        sums = head.weight.sum(dim=1) if head.bias is None else head.bias
        rest = sums.double().cpu() + torch.bincount(labels, minlength=len(sums)) / size
        while len(labels) < size:
            label = int(rest.argmin())
            rest[label] += 1 / size
            labels = torch.cat([labels, torch.tensor([label])])
        found: Tensor = labels.sort().values
        return found


def _likely(
    plain: HeadEquations, others: list[ExtendedEquations], labels: Tensor
) -> list[HeadEquations | ExtendedEquations]:
    """The equations to solve, by their fixed points: the plain ones, and others that fit better."""
    residual = plain.fixed_point_residual(labels)
    if residual < CLOSE or plain.head.sums is None or not others:
        return [plain]
    residuals = {one: one.fixed_point_residual(labels) for one in others}
    best = min(residuals, key=residuals.__getitem__)
    if residuals[best] < FAR * residual:
        return [best]
    return [plain, best] if residuals[best] < NEAR * residual else [plain]


def _granted(seen: Observation) -> Tensor:
    """The granted labels (B,), padding left out."""
    labels: Tensor = seen.know(Knowledge.LABELS).flatten()
    return labels[labels >= 0]


def _with_one_changed(labels: Tensor, others: list[int]) -> Iterator[Tensor]:
    """Label multisets that differ from one in a single label.

    Args:
        labels: int64 (B,).
        others: Labels that may replace another one, the likeliest first.
    """
    for new in others:
        for old in sorted({*labels.tolist()}):
            if new != old:
                changed = labels.clone()
                changed[(changed == old).nonzero()[0]] = new
                yield changed.sort().values


def _in_float64(value: Tensor) -> Tensor:
    """The values in float64, on the CPU: the steps of a solver this small cost a GPU more."""
    return value.detach().cpu().double()


def _nonnegative(model: VictimModel, spec: Spec) -> bool:
    """Whether no feature is negative on random inputs, as behind ReLU."""
    if spec.input_shape is None or not isinstance(spec, ImageSpec | TabularSpec):
        return False
    copy = model.copy()
    module = copy.module.eval()
    like = next(module.parameters())
    rng = torch.Generator().manual_seed(0)
    normal, uniform = (
        draw(PROBES, *spec.input_shape, generator=rng) for draw in (torch.randn, torch.rand)
    )
    low, high = spec.input_range or (0.0, 1.0)
    ends = torch.stack([torch.full(spec.input_shape, end) for end in (low, high)])
    probes = torch.cat([normal, low + (high - low) * uniform, ends]).to(like)
    with torch.no_grad(), head_calls(copy) as calls:
        module(probes)
    return all(bool((features >= 0).all()) for features, _ in calls)
