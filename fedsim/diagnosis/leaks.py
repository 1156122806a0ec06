"""When an attack counts as one that leaks: one threshold for all adversaries and metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedsim.report.diagnosis import ENDED
from fedsim.report.verdict import Verdict
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attack ended.

    Attributes:
        found: `leaks`, for a gain of at least `LEAKS`; below it `less` if the adversary leaks by
            the verdict of the page, otherwise `nothing`; `unscored` without a truth; or how it
            ended (`failed`, `timeout`, `denied`, `unverified`).
        gain: Its gain; 0 if it failed or timed out, None if it is not known.
        said: The same in words, completing a sentence that begins with the label.
    """

    found: str
    gain: float | None
    said: str


Key = tuple[str, str, str, str]
"""Point without its seed, seed, victim and label of an attack."""


def outcomes(
    findings: "pd.DataFrame", measures: Measures, verdicts: Mapping[tuple[str, str], Verdict]
) -> dict[Key, Outcome]:
    """How each attack of a run ended.

    Args:
        findings: Rows of `fedsim.report.folder.RunFolder`.
        measures: How their metrics are read.
        verdicts: The page's verdicts on them, by point and label.
    """
    known: dict[str, dict[str, None]] = {}
    for label, metric in zip(findings["named"], findings["metric"], strict=True):
        known.setdefault(label, {})[metric] = None
    deciding = {label: _deciding(metrics, measures) for label, metrics in known.items()}
    attacks: dict[Key, list[Mapping[Any, Any]]] = {}
    for row in findings.to_dict("records"):
        attacks.setdefault((row["point"], row["seed"], row["victim"], row["named"]), []).append(row)
    leaks = {key for key, verdict in verdicts.items() if verdict.kind == "leaks"}
    return {
        key: _outcome(rows, deciding[key[-1]], measures, leaks=(key[0], rows[0]["label"]) in leaks)
        for key, rows in attacks.items()
    }


def _deciding(metrics: Iterable[str], measures: Measures) -> list[str]:
    """The metrics that decide, one of inputs, labels and so on each; the first gives the gain."""
    first: dict[str, str] = {}
    for metric in (one for one in DECIDING if one in metrics):
        first.setdefault(measures[metric].what, metric)
    return [*first.values()]


def _outcome(
    rows: Sequence[Mapping[Any, Any]], deciding: Sequence[str], measures: Measures, *, leaks: bool
) -> Outcome:
    status, error = str(rows[0]["status"]), " ".join(str(rows[0]["error"]).split())
    if status != "ok":
        guessed = 0.0 if status in ("failed", "timeout") and deciding else None
        return Outcome(
            status, guessed, f"{ENDED.get(status, status)} ({error or 'no reason given'})"
        )
    scored, gained, words = {row["metric"]: row for row in rows}, math.nan, []
    for metric in (one for one in deciding if one in scored):
        row, how = scored[metric], measures[metric]
        each = gain(
            row["value"],
            row["baseline"],
            row["baseline_prior"],
            lower=how.lower,
            best=0.0 if how.lower else 1.0,
        )
        gained = each if metric == deciding[0] else gained
        if not math.isnan(row["value"]):
            value, chance = how.show(row["value"]), how.show(row["baseline"])
            words.append(f"{how.title} {value} (chance {chance})")
    if not words and rows[0]["truth"] in ("absent", "partial"):
        return Outcome("unscored", None, f"cannot be scored (truth {rows[0]['truth']})")
    said = f"scored {' and '.join(words)}" if words else "has no score that decides"
    if math.isnan(gained):
        return Outcome("unscored", None, said)
    below = "less" if leaks else "nothing"
    return Outcome("leaks" if gained >= LEAKS else below, gained, said)
