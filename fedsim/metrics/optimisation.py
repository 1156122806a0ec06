"""Metrics of an attack's own optimisation; they read no truth and have no chance level."""

import math

from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction, Spec, Truth


class Divergence(Metric):
    """Share of the attack's starts that diverged."""

    name = "divergence"
    keywords = ("optimization", "optimisation", "convergence")
    fields = ("outcomes",)
    shown = Measure(
        "Divergence",
        phrase="{share} of the starts diverged over {n} updates",
        kind="share",
        lower=True,
        most=1.0,
        detail=True,
        leaks=False,
        rank=340,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Diverged starts divided by all starts; NaN if there was none."""
        outcomes = claimed.outcomes or ()
        return list(outcomes).count("diverged") / len(outcomes) if outcomes else math.nan


class GradientDistance(Metric):
    """What the attack itself minimised, where it ended, in its own units.

    For gradient matching this is the distance between the dummy and the observed gradient.
    """

    name = "gradient_distance"
    keywords = ("optimization", "optimisation", "convergence", "gradient matching")
    fields = ("objective",)
    shown = Measure(
        "Gradient distance",
        phrase="gradient distance {value} over {n} updates",
        lower=True,
        detail=True,
        leaks=False,
        rank=330,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """`Reconstruction.objective`; NaN if it is missing or not finite."""
        value = math.nan if claimed.objective is None else float(claimed.objective)
        return value if math.isfinite(value) else math.nan
