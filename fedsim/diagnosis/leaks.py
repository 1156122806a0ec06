"""When an attack counts as one that leaks: one threshold for all adversaries and metrics."""

import math
from typing import TYPE_CHECKING

from fedsim.runs.reading import Measures

if TYPE_CHECKING:
    import pandas as pd

LEAKS = 0.5
"""An attack leaks if its score is at least this share of the way from the better of two guesses
(a random one, and one from public data) to a perfect score."""

NOTHING_LEFT = 0.9
"""A score of a guess, of 1, from which on there is nothing to gain."""

DECIDING = (
    *("mse", "mae", "column_error", "column_match", "token_f1", "wer", "speaker_top1"),
    *("asr", "label_f1", "label_recall"),
)
"""Metrics that decide, the first that an adversary is scored by: inputs before labels."""


def gain(
    value: float, baseline: float, baseline_prior: float, *, lower: bool, best: float
) -> float:
    """The share of the way from the better guess to a perfect score.

    Args:
        value: Score of the attack.
        baseline: Score of a random guess; NaN if it is not known.
        baseline_prior: Score of a guess from public data; NaN if it is not known.
        lower: Whether a lower score is better.
        best: A perfect score.

    Returns:
        1 for a perfect score, 0 for that of the guess, below 0 for less, and NaN without a guess.
        0 too where the guess is nearly perfect, so that there is nothing to gain.
    """
    guesses = [one for one in (baseline, baseline_prior) if not math.isnan(one)]
    if not guesses or math.isnan(value):
        return math.nan
    guess = min(guesses) if lower else max(guesses)
    if guess == best or (not lower and guess >= NOTHING_LEFT * best):
        return 0.0
    return (value - guess) / (best - guess)


def gains(findings: "pd.DataFrame", measures: Measures) -> dict[tuple[str, str, str], float]:
    """The gain of each attack, by point, victim and label.

    Attacks that failed or timed out gained nothing; those denied or unverified are left out.

    Args:
        findings: Rows as `read_findings` returns them.
        measures: How their metrics are read.
    """
    found: dict[tuple[str, str, str], float] = {}
    scored: dict[str, set[str]] = {}
    for label, metric in zip(findings["label"], findings["metric"], strict=True):
        scored.setdefault(label, set()).add(metric)
    deciding = {
        label: next((one for one in DECIDING if one in metrics), "")
        for label, metrics in scored.items()
    }
    for row in findings.to_dict("records"):
        metric = str(row["metric"])
        if metric != deciding[row["label"]] or row["status"] in ("denied", "unverified"):
            continue
        how = measures[metric]
        score = 0.0
        if row["status"] == "ok":
            score = gain(
                row["value"],
                row["baseline"],
                row["baseline_prior"],
                lower=how.lower,
                best=0.0 if how.lower else 1.0,
            )
        if not math.isnan(score):
            found[str(row["point"]), str(row["victim"]), str(row["label"])] = score
    return found
