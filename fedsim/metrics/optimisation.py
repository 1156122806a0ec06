"""How an attack's own search went: no truth is read, and no guess has such a thing."""

import math

from fedsim.metrics.registry import Metric
from fedsim.records import Reconstruction, Spec, Truth

__all__ = ["OPTIMISATION"]


def _divergence(claimed: Reconstruction, _: Truth, __: Spec) -> float:
    outcomes = claimed.outcomes or ()
    return list(outcomes).count("diverged") / len(outcomes) if outcomes else math.nan


def _gradient_distance(claimed: Reconstruction, _: Truth, __: Spec) -> float:
    value = math.nan if claimed.objective is None else float(claimed.objective)
    return value if math.isfinite(value) else math.nan


OPTIMISATION = (
    Metric(
        "divergence",
        "share of an optimisation's starts that diverged; not defined where there was none",
        ("outcomes",),
        False,
        _divergence,
    ),
    Metric(
        "gradient_distance",
        "the attack's own objective where it ended (gradient matching: the distance of the two "
        "gradients, in the attack's units); not defined where it never was finite",
        ("objective",),
        False,
        _gradient_distance,
    ),
)
"""The metrics of a search."""
