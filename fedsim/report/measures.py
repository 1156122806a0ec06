"""The metrics in words: what each says, which way is better, how its values are shown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["MEASURES", "Measure", "budget", "measure"]


@dataclass(frozen=True, slots=True)
class Measure:
    """How to read one metric. kind: "yes/no" of an update, "share" of 0..1, or a "number".

    phrase: completes a sentence; {share}, {hits}, {value} and {n} are filled in. partly: the
    phrase instead, where a yes/no metric was met in part (some images of a batch, say).
    detail: on the page and in the findings, not in the table that a run prints. leaks: False for
    how an attack went, which chance has no level for. signed: a difference of two values. most:
    the largest value a number can have, where it has none below 0 either.
    """

    title: str
    words: str
    phrase: str
    kind: Literal["yes/no", "share", "number"] = "number"
    lower: bool = False
    unit: str = ""
    partly: str = ""
    detail: bool = False
    leaks: bool = True
    signed: bool = False
    most: float = math.inf

    @property
    def range(self) -> tuple[float, float]:
        """Where values can lie: shares up to 1, errors from 0 on (word error rates may pass 1)."""
        if self.signed:
            return -math.inf, math.inf
        if self.lower or self.most < math.inf:
            return 0.0, self.most
        return (-math.inf, math.inf) if self.kind == "number" else (0.0, 1.0)

    def show(self, value: float | None) -> str:
        """A value as a reader wants it: shares in per cent, numbers to three digits."""
        if value is None or math.isnan(value):
            return "–"
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        if self.kind != "number":
            return f"{100 * value:.3g} %" if abs(value) < 9.995 else f"{100 * value:.0f} %"
        return f"{value:.3g}{self.unit}"


# What leaks most stands first: an adversary's main metric is the first of these that it has.
MEASURES: Mapping[str, Measure] = {
    "recovered": Measure(
        "Recovered", "Examples recovered recognisably (mean squared error below 0.001).",
        "examples of {hits} of {n} updates recovered", "yes/no",
        partly="{share} of the examples in {n} updates recovered",
    ),
    "rouge1": Measure(
        "ROUGE-1", "Overlap of single words between recovered and true text.",
        "{share} of the words of {n} updates recovered", "share",
    ),
    "rouge2": Measure(
        "ROUGE-2", "Overlap of word pairs between recovered and true text.",
        "{share} of the word pairs of {n} updates recovered", "share",
    ),
    "rougeL": Measure(
        "ROUGE-L", "Words of recovered and true text in common, in the same order.",
        "{share} of the words of {n} updates recovered in order", "share",
    ),
    "token_exact": Measure(
        "Texts right", "Texts recovered token by token, without a mistake.",
        "every text of {hits} of {n} updates recovered", "yes/no",
        partly="{share} of the texts in {n} updates recovered",
    ),
    "token_f1": Measure(
        "Token F1", "Tokens recovered, in whatever order, and tokens wrongly claimed.",
        "token F1 {share} over {n} updates", "share",
    ),
    "token_set_f1": Measure(
        "Token set F1", "Tokens recovered and wrongly claimed, repetitions aside.",
        "token set F1 {share} over {n} updates", "share", detail=True,
    ),
    "token_edits": Measure(
        "Token edits", "Tokens to change, take out and put in, of those there are; 0 is a copy.",
        "{share} of the tokens to be mended over {n} updates", "share", lower=True, detail=True,
    ),
    "rouge1_authors": Measure(
        "ROUGE-1, authors", "ROUGE-1 with special tokens counted, as LAMP's authors take it.",
        "ROUGE-1 with special tokens {share} over {n} updates", "share", detail=True,
    ),
    "rouge2_authors": Measure(
        "ROUGE-2, authors", "ROUGE-2 with special tokens counted, as LAMP's authors take it.",
        "ROUGE-2 with special tokens {share} over {n} updates", "share", detail=True,
    ),
    "rougeL_authors": Measure(
        "ROUGE-L, authors", "ROUGE-L with special tokens counted, as LAMP's authors take it.",
        "ROUGE-L with special tokens {share} over {n} updates", "share", detail=True,
    ),
    "speaker_top1": Measure(
        "Speaker named", "Utterances whose speaker was the attacker's first guess.",
        "speakers of {hits} of {n} updates named", "yes/no",
        partly="speakers of {share} of the utterances in {n} updates named",
    ),
    "speaker_top5": Measure(
        "Speaker in five", "Utterances whose speaker was among the attacker's first five guesses.",
        "speakers of {hits} of {n} updates among the first five guesses", "yes/no",
        partly="speakers of {share} of the utterances in {n} updates among the first five guesses",
        detail=True,
    ),
    "speaker_mrr": Measure(
        "Speaker's rank", "Mean of 1 / the rank at which the speaker was guessed; 1: always first.",
        "mean reciprocal rank of the speaker {value} over {n} updates", detail=True, most=1.0,
    ),
    "mse": Measure(
        "Mean squared error", "Squared distance between recovered and true examples; 0 is a copy.",
        "mean squared error {value} over {n} updates", lower=True,
    ),
    "mae": Measure(
        "Mean absolute error", "Distance between recovered and true examples; 0 is a copy.",
        "mean absolute error {value} over {n} updates", lower=True,
    ),
    "mae_ends": Measure(
        "Error at the ends", "Mean absolute error of the first and the last quarter of the frames.",
        "mean absolute error {value} at the ends over {n} updates", lower=True, detail=True,
    ),
    "mae_middle": Measure(
        "Error in the middle", "Mean absolute error of the frames between those quarters.",
        "mean absolute error {value} in the middle over {n} updates", lower=True, detail=True,
    ),
    "psnr": Measure(
        "PSNR", "Peak signal-to-noise ratio of the recovered images; above 30 dB they look alike.",
        "peak signal-to-noise ratio {value} over {n} updates", unit=" dB",
    ),
    "ssim": Measure(
        "SSIM", "Structural similarity of recovered and true images; 1 is a copy.",
        "structural similarity {value} over {n} updates",
    ),
    "lpips": Measure(
        "LPIPS", "Perceived difference between recovered and true images; 0 is a copy.",
        "perceived difference {value} over {n} updates", lower=True,
    ),
    "text_exact": Measure(
        "Transcripts right", "Transcripts recovered without a mistake.",
        "every transcript of {hits} of {n} updates recovered", "yes/no",
        partly="{share} of the transcripts in {n} updates recovered",
    ),
    "wer": Measure(
        "Word error rate", "Words wrong in the transcripts; 0 is a copy.",
        "word error rate {share} over {n} updates", "share", lower=True,
    ),
    "asr": Measure(
        "Labels recovered", "Attack success rate: share of an update's labels that were named.",
        "{share} of the labels in {n} updates recovered", "share",
    ),
    "label_exact": Measure(
        "All labels right", "Updates whose labels were recovered completely, without a mistake.",
        "labels of {hits} of {n} updates recovered", "yes/no",
    ),
    "label_f1": Measure(
        "Label F1", "Balance of labels found and labels wrongly claimed; 100 % is all and no more.",
        "label F1 {share} over {n} updates", "share",
    ),
    "label_set_exact": Measure(
        "Label set right", "Updates whose set of labels was named without a mistake.",
        "label set of {hits} of {n} updates recovered", "yes/no", detail=True,
    ),
    "length_error": Measure(
        "Length error", "Distance of the claimed from the true number of labels.",
        "number of labels {value} off over {n} updates", lower=True, detail=True,
    ),
    "label_recall": Measure(
        "Label recall", "Share of the labels that occur which were named, repetitions aside.",
        "{share} of the labels that occur in {n} updates named", "share", detail=True,
    ),
    "label_precision": Measure(
        "Label precision", "Share of the labels named that do occur, repetitions aside.",
        "{share} of the labels named for {n} updates occur", "share", detail=True,
    ),
    "hellinger": Measure(
        "Hellinger distance",
        "Distance of the claimed and true shares of the labels; 0 is the same, 1 is disjoint.",
        "Hellinger distance of label shares {value} over {n} updates", lower=True, detail=True,
    ),
    "label_correlation": Measure(
        "Label correlation",
        "How well scores of the labels follow their true counts (Pearson's r, sign aside).",
        "label scores correlate {value} with the true counts over {n} updates", detail=True,
    ),
    "gradient_distance": Measure(
        "Gradient distance", "What the attack itself minimised, where it ended, in its own units.",
        "gradient distance {value} over {n} updates", lower=True, detail=True, leaks=False,
    ),
    "divergence": Measure(
        "Divergence", "Share of the attack's starts that diverged.",
        "{share} of the starts diverged over {n} updates", "share",
        lower=True, detail=True, leaks=False,
    ),
}  # fmt: skip


def budget(metric: str) -> str | None:
    """Which part of a privacy budget a column of utility.csv is: "epsilon", "delta" ...; or None.

    Where several defenses report, theirs stand before it: `client-dp.1 epsilon`.
    """
    part = metric.rpartition(" ")[2]
    return part if part in ("epsilon", "epsilon_released", "delta") else None


def measure(metric: str) -> Measure:
    """How to read a metric, whether or not fedsim knows it."""
    return MEASURES.get(metric) or Measure(
        metric or "no metric",
        "A metric that this report has no words for; higher is taken as better.",
        "value {value} over {n} updates",
    )
