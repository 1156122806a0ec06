"""Metrics of transcripts: words wrong, and transcripts right.

Claimed transcripts are matched one-to-one to the originals so that the fewest words are wrong in
all (Hungarian); an original without a claim counts as answered with nothing. Of more claims than
originals only the first count. Case and spaces do not.
"""

from collections.abc import Sequence

from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import SpeechSpec

__all__ = ["WORDS", "word_errors", "worded"]


def word_errors(claimed: str, original: str) -> int:
    """Words to substitute, delete and insert to get from one to the other, the fewest."""
    import jiwer

    if not original.split():
        return len(claimed.split())
    found = jiwer.process_words(original, claimed)
    return int(found.substitutions + found.deletions + found.insertions)


def worded(claimed: Reconstruction, truth: Truth, spec: Spec) -> list[str]:
    """For every true transcript the claimed one matched to it, "" where none is left.

    The claim's `text`, else its `sequences` in words. Raises `ValueError` where the task has no
    transcripts.
    """
    if truth.text is None:
        raise ValueError("this task's truth has no transcripts, so no metric of words applies")
    if claimed.text is not None:
        claims = [" ".join(str(text).lower().split()) for text in claimed.text]
    else:
        claims = [spec.require(SpeechSpec).spell(one.tolist()) for one in claimed.sequences or ()]
    return _matched(claims[: len(truth.text)], truth.text)


def _matched(claims: Sequence[str], originals: Sequence[str]) -> list[str]:
    from scipy.optimize import linear_sum_assignment

    found = [""] * len(originals)
    cost = [
        [word_errors(claim, one) - len(one.split()) for claim in claims] for one in originals
    ]  # what a claim saves over none: without it every word of the original is wrong
    if claims:
        for row, column in zip(*linear_sum_assignment(cost), strict=True):
            found[int(row)] = claims[int(column)]
    return found


class _OfTranscripts(Metric):
    """A metric of tasks with transcripts."""

    fields = ("text", "sequences")

    def suits(self, spec: Spec) -> bool:
        """Tasks with transcripts."""
        return isinstance(spec, SpeechSpec)


class WordErrorRate(_OfTranscripts):
    """Word error rate: words to substitute, delete and insert, divided by words there are.

    0 for an exact match, and above 1 where more is claimed than there is.
    """

    name = "wer"
    keywords = ("transcript reconstruction", "speech recognition", "edit distance")
    shown = Measure(
        "Word error rate",
        "Words wrong in the transcripts; 0 is a copy.",
        "word error rate {share} over {n} updates",
        kind="share",
        lower=True,
        rank=230,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        ours, originals = worded(claimed, truth, spec), truth.text or ()
        wrong = sum(word_errors(*pair) for pair in zip(ours, originals, strict=True))
        return wrong / sum(len(one.split()) for one in originals)


class TextExact(_OfTranscripts):
    """Share of the transcripts recovered without a mistake."""

    name = "text_exact"
    keywords = ("exact match", "transcript reconstruction", "speech recognition")
    shown = Measure(
        "Transcripts right",
        "Transcripts recovered without a mistake.",
        "every transcript of {hits} of {n} updates recovered",
        kind="yes/no",
        partly="{share} of the transcripts in {n} updates recovered",
        rank=220,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        ours, originals = worded(claimed, truth, spec), truth.text or ()
        right = sum(a.split() == b.split() for a, b in zip(ours, originals, strict=True))
        return right / len(originals)


WORDS = (WordErrorRate, TextExact)
"""The metrics of transcripts."""
