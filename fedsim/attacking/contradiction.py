"""An attack that matches the gradient and recovers none of the examples that a client revealed."""

from collections.abc import Iterable, Mapping

from fedsim.attacking.consistency import FITS
from fedsim.metric import Metric
from fedsim.records import Reconstruction

CONTENT = frozenset({"inputs", "tokens", "token_counts", "text"})
"""Fields of a claim that are scored against the true inputs."""

BOTH = "it matches the gradient up to rounding and recovers none of the revealed examples"


def contradiction(
    claimed: Reconstruction,
    values: Mapping[str, float | None],
    measured: Iterable[Metric],
    checked: str,
) -> str:
    """Say what a matched gradient with a failed score means; "" where it is not both.

    Args:
        claimed: The adversary's reconstruction, whose `outcomes` say whether it matched.
        values: The scores by metric.
        measured: The metrics, of which those count that say of each example whether it is right.
        checked: What the consistency check says; "" if the truth is derived and not revealed.
    """
    scores = [
        values.get(one.name)
        for one in measured
        if one.shown.kind == "yes/no" and not CONTENT.isdisjoint(one.fields)
    ]
    failed = bool(scores) and all(one == 0 for one in scores)
    if not checked or not failed or "matched" not in (claimed.outcomes or ()):
        return ""
    if checked == FITS:
        return f"another input has this gradient: {BOTH}, which explain the update"
    if checked.startswith("misfit"):
        return f"contradiction: {BOTH}, which do not explain the update ({checked})"
    return f"contradiction, or another input has this gradient: {BOTH} ({checked})"
