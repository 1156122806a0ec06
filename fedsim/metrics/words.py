"""Metrics of transcripts: word error rate and exact matches.

Claimed transcripts are matched one-to-one to the originals so that the total number of word errors
is least (Hungarian algorithm). An original without a claim is compared with the empty transcript.
If there are more claims than originals, only the first ones count. Case and repeated spaces are
ignored.
"""

import math
from collections.abc import Sequence

from fedsim.metric import Measure, Metric
from fedsim.metrics.assignment import assigned
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import SpeechSpec


def plain(text: object) -> str:
    """A transcript in lower case, with one space between two words."""
    return " ".join(str(text).lower().split())


def word_errors(claimed: str, original: str) -> int:
    """The least number of words to substitute, delete and insert between two transcripts."""
    import jiwer

    if not original.split():
        return len(claimed.split())
    found = jiwer.process_words(original, claimed)
    return int(found.substitutions + found.deletions + found.insertions)


def worded(claimed: Reconstruction, truth: Truth, spec: Spec) -> list[tuple[str, str]]:
    """Pairs of a claimed transcript, "" if there is none, and its original, both `plain`.

    Claims are read from `text`, else from `sequences`, spelled with the pieces of the task.

    Raises:
        ValueError: The task has no transcripts.
    """
    if truth.text is None:
        raise ValueError("this task's truth has no transcripts, so no metric of words applies")
    texts: Sequence[object] | None = claimed.text
    if texts is None:
        texts = [spec.require(SpeechSpec).spell(one.tolist()) for one in claimed.sequences or ()]
    claims, originals = [[*map(plain, each)] for each in (texts, truth.text)]
    claims = claims[: len(originals)]
    # Without a claim every word of an original is wrong; the cost is relative to that.
    cost = [[word_errors(claim, one) - len(one.split()) for claim in claims] for one in originals]
    places = assigned(cost)
    return [
        (claims[place] if place >= 0 else "", one)
        for place, one in zip(places, originals, strict=True)
    ]


class _OfTranscripts(Metric):
    """A metric of tasks with transcripts."""

    fields = ("text", "sequences")

    def suits(self, spec: Spec) -> bool:
        """Tasks with transcripts."""
        return isinstance(spec, SpeechSpec)


class WordErrorRate(_OfTranscripts):
    """Words wrong in the transcripts; 0 is a copy."""

    name = "wer"
    keywords = ("transcript reconstruction", "speech recognition", "edit distance")
    shown = Measure(
        "Word error rate",
        phrase="word error rate {share} over {n} updates",
        kind="share",
        lower=True,
        rank=230,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Word errors divided by the words of the originals; NaN if these have no words.

        The rate exceeds 1 if there are more errors than words.
        """
        matched = worded(claimed, truth, spec)
        words = sum(len(original.split()) for _, original in matched)
        return sum(word_errors(*pair) for pair in matched) / words if words else math.nan


class TextExact(_OfTranscripts):
    """Transcripts recovered without a mistake."""

    name = "text_exact"
    keywords = ("exact match", "transcript reconstruction", "speech recognition")
    shown = Measure(
        "Transcripts right",
        phrase="every transcript of {hits} of {n} updates recovered",
        kind="yes/no",
        partly="{share} of the transcripts in {n} updates recovered",
        rank=220,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Share of the transcripts without a word error."""
        matched = worded(claimed, truth, spec)
        return sum(ours == original for ours, original in matched) / len(matched)
