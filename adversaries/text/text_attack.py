"""What is known of the texts behind a gradient, or can be tried: labels and lengths."""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from adversaries.text.row_space import LOST
from fedsim.adversary import Adversary, Job, Source
from fedsim.gradients import rank_above
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Tokens
from fedsim.spec import TextSpec

__all__ = ["Candidate", "TextAttack", "padded"]

MOST = 64
"""Combinations of labels and lengths that are tried at most where they are not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """What is known, or assumed, of a batch.

    labels: (B,) int64, or (B, L) of masked words, -100 elsewhere. lengths: (B,)
    int64, tokens of each text with what frames it.
    """

    labels: Tensor
    lengths: Tensor


class TextAttack(Adversary):
    """An attack on texts that has to know labels and lengths.

    They must be granted, or with `unknown` = "enumerate" all labels are tried, and of a single text
    the length that the rank of the gradient tells. Where it tells none, that is every length the
    model takes; over `MOST` combinations are refused.
    """

    suits = (TextSpec,)
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE

    labels_from: Source = "given"
    """ "given" (the threat model grants LABELS), or another adversary by name."""

    unknown: Literal["refuse", "enumerate"] = "refuse"
    """What of labels and lengths that are not granted: try all of them (as many attacks), or
    be denied."""

    def requires(self) -> Knowledge:
        """Labels and lengths too, unless they are to be tried."""
        required = super().requires()
        if self.unknown == "refuse":
            return required | Knowledge.LENGTHS
        return required if self.labels_from != "given" else required & ~Knowledge.LABELS

    def texts(self, seen: Observation) -> tuple[Tokens, Tensor]:
        """Tokens and word embeddings (V, d); raises `ValueError` where the task is none of text."""
        model = seen.know(Knowledge.MODEL)
        tokens, words = seen.spec.require(TextSpec).tokens, model.embedding
        if words is None or "embedding" not in model.points:
            raise ValueError("the model takes no word embeddings, which this attack optimises")
        return tokens, words

    def candidate_batches(self, seen: Observation, job: Job) -> list[Candidate]:
        """What the batch may be: one candidate where labels and lengths are known."""
        size = int(seen.know(Knowledge.BATCH_SIZE))
        tokens, _ = self.texts(seen)
        every = self._labels(seen, job, size), self._lengths(seen, job, tokens, size)
        if (count := len(every[0]) * len(every[1])) > MOST:
            raise ValueError(
                f"{count} combinations of labels and lengths are too many to try (over {MOST}): "
                "grant LABELS or LENGTHS"
            )
        found, least = [], _least(tokens)
        for labels, lengths in product(*every):
            if int(lengths.min()) < least or int(lengths.max()) > tokens.longest:
                raise ValueError(
                    f"texts of {lengths.tolist()} tokens; expected {least} to {tokens.longest}, "
                    "those around a text included"
                )
            if labels.ndim == 1 and not (
                int(labels.min()) >= 0 and int(labels.max()) < seen.spec.classes
            ):
                raise ValueError(f"labels {labels.tolist()}; expected 0 to {seen.spec.classes - 1}")
            found.append(Candidate(labels, lengths))
        return found

    def _labels(self, seen: Observation, job: Job, size: int) -> list[Tensor]:
        if self.labels_from != "given" or Knowledge.LABELS in seen.granted:
            given = self.labels(seen, job)
            assert given is not None  # noqa: S101 - `labels_from` names a source
            return [given]
        if seen.spec.classes**size > MOST:
            raise ValueError(
                f"{seen.spec.classes} labels of {size} texts are too many to try (over {MOST}): "
                "grant LABELS, or name an attack on labels in labels_from"
            )
        every = range(seen.spec.classes)
        return [torch.tensor(one) for one in product(every, repeat=size)]

    def _lengths(self, seen: Observation, job: Job, tokens: Tokens, size: int) -> list[Tensor]:
        if Knowledge.LENGTHS in seen.granted:
            return [torch.tensor([int(length) for length in seen.know(Knowledge.LENGTHS)])]
        if size > 1:
            raise ValueError(
                f"the lengths of {size} texts are not known, and {self.name} tries those of a "
                "single one: grant LENGTHS"
            )
        least, rank = _least(tokens), _rank(seen, job)
        if least <= rank <= tokens.longest:
            return [torch.tensor([rank])]
        return [torch.tensor([length]) for length in range(least, tokens.longest + 1)]


def _least(tokens: Tokens) -> int:
    """The length of the shortest text: one token and the special tokens around it."""
    return len(tokens.prefix) + len(tokens.suffix) + 1


def padded(labels: Tensor, longest: int) -> Tensor:
    """Labels (B,) as they are; those of masked words (B, longest), -100 beyond."""
    if labels.ndim == 1:
        return labels
    return functional.pad(labels, (0, longest - labels.shape[1]), value=-100)


def _rank(seen: Observation, job: Job) -> int:
    """How many tokens a gradient's matrices say there are; 0 where they are full of noise."""
    model, gradient = seen.know(Knowledge.MODEL), seen.know(Knowledge.GRADIENT)
    ranks = [0]
    for name, value in gradient.items():
        if value.ndim == 2 and name != model.words and not name.startswith(f"{seen.head}."):
            values = torch.linalg.svdvals(value.to(job.device).double())
            rank = rank_above(values, relative=LOST)
            ranks.append(0 if rank >= min(value.shape) else rank)
    return max(ranks)
