"""Metrics of claimed feature vectors, which are the inputs of a network's projection layer.

Claims are matched one-to-one to the true vectors so that the total relative error is least
(Hungarian algorithm). A vector without a claim, and a claim of another length or with NaN or Inf,
score as a vector of zeros. If there are more claims than vectors, only the first ones count.
"""

import torch
from torch import Tensor

from fedsim.metric import Measure, Metric
from fedsim.metrics.assignment import assigned
from fedsim.records import Reconstruction, Spec, Truth

EXACT = 1e-2
"""Relative error below which a feature vector counts as recovered."""

TINY = 1e-30
"""Norm of a vector of zeros, to divide by."""


def matched(claimed: Reconstruction, true: Tensor) -> Tensor:
    """Put claimed vectors in the order of the true ones that they are matched to.

    Args:
        claimed: The claim.
        true: The true vectors (N, d).

    Returns:
        Vectors (N, d) float64 on the CPU; NaN where nothing is matched.
    """
    true = true.detach().cpu().double()
    found, claims = torch.full_like(true, torch.nan), claimed.features
    if claims is None or claims.dim() != 2 or claims.shape[1] != true.shape[1]:
        return found
    usable = [one for one in claims.detach().cpu().double()[: len(true)] if one.isfinite().all()]
    if not usable:
        return found
    norms = true.norm(dim=1).clamp(min=TINY)
    cost = (torch.cdist(true, torch.stack(usable)) / norms[:, None]).clamp(max=1.0)
    for row, place in enumerate(assigned(cost.tolist())):
        if place >= 0:
            found[row] = usable[place]
    return found


def errors(claimed: Reconstruction, truth: Truth) -> Tensor:
    """The relative error of each true vector by the claim that is matched to it.

    Returns:
        Errors (N,) float64, 1 at most: what a vector of zeros has. NaN if the truth has none.
    """
    if truth.features is None:
        return torch.full((1,), torch.nan)
    true = truth.features.detach().cpu().double()
    missed = (matched(claimed, true) - true).norm(dim=1) / true.norm(dim=1).clamp(min=TINY)
    each: Tensor = missed.nan_to_num(nan=1.0).clamp(max=1.0)
    return each


class FeaturesRecovered(Metric):
    """Share of feature vectors recovered with a relative error below 0.01."""

    name = "features_recovered"
    fields = ("features",)
    keywords = ("features", "embeddings", "exact recovery")
    shown = Measure(
        "Features recovered",
        phrase="{share} of the feature vectors of {n} updates recovered",
        kind="share",
        rank=215,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """The share; NaN if the true features are not known."""
        found = errors(claimed, truth)
        return float("nan") if found.isnan().any() else float((found < EXACT).double().mean())

    def chance(self, truth: Truth, spec: Spec) -> float | None:
        """0: a guess is no feature vector."""
        return float("nan") if truth.features is None else 0.0


class FeatureError(Metric):
    """Relative error of feature vectors, matched to the true ones; 1 is that of zeros."""

    name = "feature_error"
    fields = ("features",)
    keywords = ("features", "embeddings", "relative error")
    shown = Measure(
        "Error of features",
        phrase="relative error of features {value} over {n} updates",
        lower=True,
        most=1.0,
        rank=216,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """The mean error; NaN if the true features are not known."""
        return float(errors(claimed, truth).mean())

    def chance(self, truth: Truth, spec: Spec) -> float | None:
        """1: the error of zeros."""
        return float("nan") if truth.features is None else 1.0


class FeatureRetrieval(Metric):
    """Share of examples that their recovered features find among public ones.

    The server computes the features of candidates: public examples and the victim's, all in one
    batch. An example is found if, of all candidates, it is the nearest to the recovered vector
    (Euclidean distance), and not a public example or another of the batch.
    """

    name = "feature_retrieval"
    fields = ("features",)
    keywords = ("features", "embeddings", "retrieval", "identification", "known pictures")
    shown = Measure(
        "Found by features",
        phrase="{share} of the examples of {n} updates found among public ones by their features",
        kind="share",
        rank=217,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """The share; NaN if there are no candidates."""
        if truth.features is None or truth.candidates is None:
            return float("nan")
        found = matched(claimed, truth.features)
        pool = truth.candidates.features.detach().cpu().double()
        own = torch.arange(len(pool) - len(found), len(pool))
        nearest = torch.cdist(found, pool).argmin(dim=1)
        return float(((nearest == own) & found.isfinite().all(dim=1)).double().mean())

    def chance(self, truth: Truth, spec: Spec) -> float | None:
        """One of all candidates."""
        pool = truth.candidates
        return float("nan") if pool is None else 1 / len(pool.features)
