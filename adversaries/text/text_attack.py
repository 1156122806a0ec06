"""Base class of attacks on text that need labels and lengths, known or tried."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import factorial, prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim import Knowledge, TextSpec, VictimModel
from fedsim.adversary import Adversary, Job, Source
from fedsim.errors import DataError
from fedsim.gradients import filled_sides, numerical_rank, rank_above, rounding
from fedsim.records import Observation, Tokens

MOST = 64
"""The largest number of combinations of unknown labels and lengths that are tried."""

RESERVED = 2
"""The largest number of position embeddings that models keep before that of the first token."""

NO_EMBEDDINGS = "the model takes no word embeddings, which this attack optimises"
"""Why models that take token ids alone cannot be attacked."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Labels and lengths of a batch, known or assumed.

    Attributes:
        labels: (B,) int64, or (B, L) with the tokens of masked words and -100 elsewhere.
        lengths: Number of tokens of each text with its special tokens, (B,) int64.
    """

    labels: Tensor
    lengths: Tensor


class TextAttack(Adversary):
    """Base class of attacks on text that need labels and lengths.

    The threat model grants them, or `unknown` = "enumerate" tries all labels, and for a single text
    the length given by the rank of the gradient. If the rank gives none, every length that the
    model accepts is tried. More than 64 combinations are refused. If labels of unequal texts come
    from another adversary, up to 64 orders of them are tried.
    """

    suits = (TextSpec,)
    needs = Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE

    labels_from: Source = "given"
    """Source of the labels: "given" (the threat model grants LABELS), or another adversary by
    name."""

    unknown: Literal["refuse", "enumerate"] = "refuse"
    """What happens without labels or lengths: the attack is denied ("refuse"), or runs for every
    combination ("enumerate")."""

    def requires(self) -> Knowledge:
        """Labels and lengths too, unless they are tried."""
        required = super().requires()
        if self.unknown == "refuse":
            return required | Knowledge.LENGTHS
        return required if self.labels_from != "given" else required & ~Knowledge.LABELS

    def cautions(self, model: VictimModel) -> list[str]:
        """The warnings of `labels_from`.

        Raises:
            DataError: The model cannot start from word embeddings.
        """
        if model.words is None or "embedding" not in model.points:
            raise DataError(f"{self.name}: {NO_EMBEDDINGS}")
        return super().cautions(model)

    def texts(self, seen: Observation) -> tuple[Tokens, Tensor]:
        """The vocabulary and word embeddings (V, d).

        Raises:
            ValueError: The inputs of the task are no text.
        """
        model = seen.know(Knowledge.MODEL)
        tokens, words = seen.spec.require(TextSpec).tokens, model.embedding
        if words is None or "embedding" not in model.points:
            raise ValueError(NO_EMBEDDINGS)
        return tokens, words

    def candidate_batches(self, seen: Observation, job: Job) -> list[Candidate]:
        """The candidates for a batch; a single one if labels and lengths are known.

        Raises:
            ValueError: There are too many candidates, or labels or lengths are out of range.
        """
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
            return [given] if Knowledge.LABELS in seen.granted else _orders(given, seen.lengths)
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
        least, rank = self._shortest(seen, tokens), _rank(seen, job)
        if least <= rank <= tokens.longest:
            return [torch.tensor([rank])]
        return [torch.tensor([length]) for length in range(least, tokens.longest + 1)]

    def _shortest(self, seen: Observation, tokens: Tokens) -> int:
        """The least length of a text, which reaches beyond the masked words that are granted."""
        if self.labels_from != "given" or seen.labels is None or seen.labels.ndim == 1:
            return _least(tokens)
        masked: list[int] = (seen.labels >= 0).any(dim=0).nonzero().flatten().tolist()
        return max([_least(tokens), *(place + 1 + len(tokens.suffix) for place in masked)])


def _orders(labels: Tensor, lengths: Sequence[int] | None) -> list[Tensor]:
    """The orders of labels (B,) beside granted lengths, which say nothing of whose they are.

    If there are more than `MOST`, only the order as it stands.
    """
    if labels.ndim > 1 or len({*(lengths or ())}) <= 1 or len({*labels.tolist()}) <= 1:
        return [labels]
    counts = Counter(labels.tolist())
    if factorial(len(labels)) // prod(map(factorial, counts.values())) > MOST:
        return [labels]
    return [torch.tensor(one) for one in _distinct_permutations(counts)]


def _distinct_permutations(counts: Counter[int]) -> Iterator[tuple[int, ...]]:
    """The distinct permutations of a multiset, given as counts, in lexicographic order."""
    if not counts:
        yield ()
    for value in sorted(counts):
        for rest in _distinct_permutations(counts - Counter([value])):
            yield value, *rest


def _least(tokens: Tokens) -> int:
    """The length of the shortest text: one token and the special tokens around it."""
    return len(tokens.prefix) + len(tokens.suffix) + 1


def padded(labels: Tensor, longest: int) -> Tensor:
    """Labels (B,) unchanged; labels of masked words padded with -100 to (B, longest)."""
    if labels.ndim == 1:
        return labels
    return functional.pad(labels, (0, longest - labels.shape[1]), value=-100)


def _rank(seen: Observation, job: Job) -> int:
    """Number of tokens, by position embeddings or the ranks of matrices; 0 if neither shows it.

    The largest rank of many layers is taken. Where noise fills a layer, its rank does not count,
    and where it fills them all, every length is tried instead.
    """
    model, gradient = seen.know(Knowledge.MODEL), seen.know(Knowledge.GRADIENT)
    if placed := _places(model, gradient):
        return placed
    ranks = [0]
    for name, value in gradient.items():
        if value.ndim == 2 and name != model.words and not name.startswith(f"{seen.head}."):
            values, least = torch.linalg.svdvals(value.to(job.device).double()), rounding(value)
            sides, rank = filled_sides(value), rank_above(values, absolute=least)
            clear = rank < min(sides) - 1 and rank == numerical_rank(values, sides, least)
            ranks.append(rank if clear else 0)
    return max(ranks)


def _places(model: VictimModel, gradient: Mapping[str, Tensor]) -> int:
    """Number of tokens, from the gradient of the position embeddings; 0 if it does not show it.

    Rows behind those of the last token are zero, whatever was rounded and in several local steps,
    too. Embeddings of relative positions do not begin with the first row, and an update from which
    entries were left out is zero elsewhere, too: neither is counted.
    """
    if model.words is None:
        return 0
    width = model.module.get_parameter(model.words).shape[1]
    for name, layer in model.module.named_modules():
        value = gradient.get(own := f"{name}.weight")
        if not isinstance(layer, nn.Embedding) or value is None or own == model.words:
            continue
        rows = value.any(dim=1).nonzero().flatten()
        if value.shape[1] != width or not 1 < len(rows) < len(value):
            continue
        first, last = int(rows[0]), int(rows[-1])
        dense = int(value.count_nonzero()) > len(rows) * width / 2
        if first <= RESERVED and last - first + 1 == len(rows) and dense:
            return len(rows)
    return 0
