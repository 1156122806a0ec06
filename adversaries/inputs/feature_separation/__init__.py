"""Feature separation: the features of every example of a batch, from the head's gradient alone."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversaries.inputs.feature_separation.head_equations import (
    HeadEquations,
    Separation,
    nearby,
)
from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction, Requirement, VictimModel
from fedsim.adversary import Source
from fedsim.gradients import HeadGradient, claim_labels, rank_of, tied


class FeatureSeparation(Adversary):
    """Exact feature vectors of a whole batch, for fewer examples than classes.

    With cross-entropy over a softmax, the gradient of the head is dW = E' H. H (B, d) holds the
    inputs of the head, one feature vector for each example, and E = (softmax(H W' + b) - Y) / B.
    The server knows dW, W and b. The rows of H lie in the row space of dW, which has B dimensions
    if B < C and B <= d, so that C (B + 1) equations remain for B^2 unknowns once the labels are
    known. A fixed point solves them if labels are distinct; for repeated labels Levenberg-Marquardt
    follows (`HeadEquations`).

    It does not matter what network computes the features: it may be of any depth, with batch
    normalisation in training mode, for images, texts or tables. Features identify people and
    things, and find them again among known pictures; of perceptrons they give the inputs
    (`exact-batch`).

    The solution checks itself. `residual`, by which the equations are missed, is at the level of
    rounding (1e-7 for float32) if the features are right, and 1e-2 or more if two examples were
    merged or a label is wrong. Examples of the same label that are much alike can be mixed with a
    small residual, too; then `doubt`, the error of the features that least squares let expect with
    this residual, is large. Nothing is claimed above `tolerance` and `most_doubt`. Labels that
    `labels_from` gets wrong are corrected: by the counts that the gradient of the bias shows, then
    one at a time, by the residual.

    `features` are float32 (B, d), in the order of `labels`. `diagnostics` holds residual, doubt,
    the number of examples (`rank`), and the number of label multisets that were tried.
    """

    name = "feature-separation"
    keywords = ("analytic", "exact recovery", "features", "embeddings", "label repetition")
    needs = Knowledge.HEAD_GRADIENT | Knowledge.MODEL
    recovers = frozenset({"features", "labels", "label_counts", "label_set"})
    cites = "this project"
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

    most_doubt: float = Field(default=2e-3, gt=0)
    """The largest expected relative error of an example's features in a claim."""

    steps: int = Field(default=100, ge=0)
    """The largest number of steps of Levenberg-Marquardt from one start; 0: the fixed point alone,
    which merges examples of the same label."""

    corrections: int = Field(default=8, ge=0)
    """The largest number of label multisets that are tried beside that of `labels_from`: those that
    the bias's gradient shows, then those that differ from it in one label and fit best."""

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of heads that have another loss than cross-entropy over classes."""
        if hasattr(model.module, "blank"):
            return ["the model is trained with CTC: its head's gradient is not E' H with known E"]
        return super().cautions(model)

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim the features and the labels of all examples.

        Raises:
            ValueError: There are too many examples, fewer independent ones than examples, or no
                solution fits; it says what was found and what to use instead.
        """
        best: Separation | None = None
        for number, found in self.separations(seen, job):
            tried, best = number, min(best or found, found, key=lambda one: one.residual)
            if self._sure(best):
                notes = {"residual": best.residual, "rank": len(best.labels)}
                notes |= {"doubt": best.doubt, "label_multisets": tried}
                return claim_labels(
                    best.labels.cpu(), features=best.features.float().cpu(), diagnostics=notes
                )
        assert best is not None  # noqa: S101 - there is a start
        raise ValueError(self._unfit(best.residual, best.doubt, tried))

    def _sure(self, found: Separation) -> bool:
        return found.residual < self.tolerance and not found.doubt > self.most_doubt

    def separations(self, seen: Observation, job: Job) -> Iterator[tuple[int, Separation]]:
        """Solutions, each with the number of label multisets so far, the likeliest labels first.

        Other labels than those of `labels_from` are tried if none of its solutions fits.

        Raises:
            ValueError: There are too many examples, or fewer independent ones than examples; the
                head is tied to another layer, or its gradient holds NaN or Inf.
        """
        head, model = HeadGradient.of(seen), seen.know(Knowledge.MODEL)
        if twins := tied(model):
            raise ValueError(
                f"the head's weight is also {', '.join(twins)}: its gradient is the sum of both "
                "layers', and no features follow. Use dlg or inverting-gradients"
            )
        if head.bias is not None and not head.bias.isfinite().all():
            raise ValueError(f"the gradient of '{seen.head}.bias' holds NaN or Inf")
        parameters = model.parameters()
        weight, bias = parameters[f"{seen.head}.weight"], parameters.get(f"{seen.head}.bias")
        if weight.shape != head.weight.shape:
            raise ValueError(
                f"the head '{seen.head}' has a weight {tuple(weight.shape)}, and its gradient is "
                f"{tuple(head.weight.shape)}"
            )
        size = self._size(seen, head.weight)
        equations = HeadEquations(
            _exactly(head.weight, job.device),
            None if head.bias is None else _exactly(head.bias, job.device),
            _exactly(weight, job.device),
            None if bias is None else _exactly(bias, job.device),
            size,
        )
        labels = self._labels(seen, head, size, job).to(job.device)
        fits = False
        for found in equations.solutions(labels, job.rng, self.steps):
            fits |= found.residual < self.tolerance
            yield 1, found
        if fits or self.source("labels_from") == "given":
            return
        tried, shown, known = 1, equations.counted(None), [labels]
        while shown is not None and not any(torch.equal(shown, one) for one in known):
            known, tried = [*known, shown], tried + 1
            for found in equations.solutions(shown, job.rng, self.steps):
                fits |= found.residual < self.tolerance
                yield tried, found
            if fits or tried > self.corrections:
                return
            shown = equations.counted(shown)
        likely = head.weight.norm(dim=1).argsort(descending=True)[: 2 * size].tolist()
        others = sorted(nearby(labels, likely), key=equations.misfit)
        for other in others[: self.corrections + 1 - tried]:
            tried += 1
            for found in equations.solutions(other, job.rng, self.steps):
                fits |= found.residual < self.tolerance
                yield tried, found
            if fits:
                return

    def _unfit(self, residual: float, doubt: float, tried: int) -> str:
        if residual < self.tolerance:
            return (
                f"features that fit are not unique: the equations of the head are missed by "
                f"{residual:.2g} of the gradient, and with that an error of {doubt:.2g} of the "
                f"features is expected, above most_doubt = {self.most_doubt:g}. Examples of the "
                "same label are too much alike. exact-batch may still find the inputs"
            )
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
            labels = seen.know(Knowledge.LABELS).flatten()
        else:
            claimed = self.parts()["labels_from"].reconstruct(seen, job)
            known = claimed.labels
            if known is None:
                known = torch.tensor(sorted(claimed.label_set or ()), dtype=torch.int64)
            labels = known[:size]
        if self.source("labels_from") == "given" and len(labels) != size:
            raise ValueError(
                f"{len(labels)} labels are granted, and the head's gradient shows {size} examples"
            )
        sums = head.weight.sum(dim=1) if head.bias is None else head.bias
        rest = sums.double().cpu() + torch.bincount(labels, minlength=len(sums)) / size
        while len(labels) < size:
            label = int(rest.argmin())
            rest[label] += 1 / size
            labels = torch.cat([labels, torch.tensor([label])])
        found: Tensor = labels.sort().values
        return found


def _exactly(value: Tensor, device: torch.device | str) -> Tensor:
    """A tensor in float64, where the attack computes."""
    return value.detach().to(device).double()
