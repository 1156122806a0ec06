"""Feature separation: the features of every example of a batch, from the head's gradient alone."""

from math import isnan

from pydantic import Field

from adversaries.inputs.feature_separation.head_separation import HeadSeparation
from adversaries.inputs.feature_separation.separation import Separation
from fedsim import Job, Observation, Reconstruction
from fedsim.gradients import claim_labels

SURE = 1e-6
"""Residual below which features are right where no expected error is known."""


class FeatureSeparation(HeadSeparation):
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
    rounding (1e-7 for float32) if the features are right, and mostly 1e-2 or more if two examples
    were merged or a label is wrong. Where noise or 16 bits hide how many examples there are, much
    alike ones of one label may be merged with less: `BATCH_SIZE` prevents that. Examples of the
    same label that are much alike can be mixed with a small residual, too; then `expected_error`,
    the standard error that least squares give the features with this residual, is large. Nothing is
    claimed above `tolerance` and `most_expected_error`. Labels that `labels_from` gets wrong are
    corrected: by the counts that the gradient of the bias shows, then one at a time, by the
    residual.

    Clients may clip the gradient of each example (DP-SGD without noise), or smooth their labels.
    The factor of each example, or the smoothing, then is another unknown (`ExtendedEquations`),
    which the gradient of the bias shows. It is recognised by the residual.

    `features` are float32 (B, d), in the order of `labels`. `diagnostics` holds `residual`,
    `expected_error`, the number of examples (`rank`), and the number of label multisets that were
    tried, and if that was unknown, the `least_factor` of an example or the `label_smoothing`.
    """

    name = "feature-separation"
    keywords = ("analytic", "exact recovery", "features", "embeddings", "label repetition")
    cites = "this project"

    most_expected_error: float = Field(default=2e-3, gt=0)
    """The largest expected relative error of an example's features in a claim."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim the features and the labels of all examples.

        Raises:
            ValueError: There are too many examples, fewer independent ones than examples, or no
                solution fits; it says what was found and what to use instead.
        """
        best: Separation | None = None
        for number, found in self.separations(seen, job):
            tried, best = number, min(best or found, found, key=lambda one: one.residual)
            if not best.residual < self.tolerance:
                continue
            expected = best.expected_error
            if self._unique(best.residual, expected):
                notes = {"residual": best.residual, "rank": len(best.labels)}
                notes |= {"expected_error": expected, "label_multisets": tried}
                notes |= best.equations.notes(best)
                return claim_labels(
                    best.labels.cpu(), features=best.features.float().cpu(), diagnostics=notes
                )
        assert best is not None  # noqa: S101 - there is a start
        if not best.residual < self.tolerance:
            raise ValueError(self._misses(best.residual, tried))
        if isnan(expected):
            raise ValueError(
                f"{len(best.labels)} examples, whose expected error is not computed, and the "
                f"equations of the head are missed by {best.residual:.2g} of the gradient, above "
                f"{SURE:g}: examples of the same label may be mixed"
            )
        raise ValueError(
            f"features that fit are not unique: the equations of the head are missed by "
            f"{best.residual:.2g} of the gradient, and with that an error of "
            f"{expected:.2g} of the features is expected, above most_expected_error = "
            f"{self.most_expected_error:g}. Examples of the same label are too much alike. "
            "exact-batch may still find the inputs"
        )

    def _unique(self, residual: float, expected: float) -> bool:
        """Whether other features would fit the equations clearly worse."""
        return residual < SURE if isnan(expected) else expected <= self.most_expected_error
