"""How an attack's own search went: no truth is read, and no guess has such a thing."""

import math

from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction, Spec, Truth

__all__ = ["OPTIMISATION"]


class Divergence(Metric):
    """Share of an optimisation's starts that diverged; not defined where there was none."""

    name = "divergence"
    keywords = ("optimization", "optimisation", "convergence")
    fields = ("outcomes",)
    shown = Measure(
        "Divergence",
        "Share of the attack's starts that diverged.",
        "{share} of the starts diverged over {n} updates",
        kind="share",
        lower=True,
        detail=True,
        leaks=False,
        rank=340,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        outcomes = claimed.outcomes or ()
        return list(outcomes).count("diverged") / len(outcomes) if outcomes else math.nan


class GradientDistance(Metric):
    """The attack's own objective where it ended; not defined where it never was finite.

    For gradient matching the distance of the two gradients, in the attack's units.
    """

    name = "gradient_distance"
    keywords = ("optimization", "optimisation", "convergence", "gradient matching")
    fields = ("objective",)
    shown = Measure(
        "Gradient distance",
        "What the attack itself minimised, where it ended, in its own units.",
        "gradient distance {value} over {n} updates",
        lower=True,
        detail=True,
        leaks=False,
        rank=330,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        value = math.nan if claimed.objective is None else float(claimed.objective)
        return value if math.isfinite(value) else math.nan


OPTIMISATION = (Divergence, GradientDistance)
"""The metrics of a search."""
