"""The batches that `reveal` passes on, and which of them a model received."""

import hashlib
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsim.errors import ScenarioError

MOST_BYTES = 64 * 2**20
"""Bytes of examples that are kept of a client and round, and of batches that wait for their use."""

LABELS = ("labels", "label", "target", "y")
"""Keys of the labels in batches that are dictionaries."""

INPUTS = ("input_ids", "pixel_values", "input_values", "input_features", "x")
"""Names of a model's inputs, which come before others such as masks."""

MOST_PARTS = 2
"""Parts of a batch of which the last one is taken for its labels; of more, nobody can tell."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A batch as it was offered.

    Attributes:
        tensors: Its tensors other than the labels.
        labels: Its labels, any integers; None if they cannot be found. Floating-point labels 0 and
            1, as of a model with one logit, are integers here.
    """

    tensors: tuple[Tensor, ...]
    labels: Tensor | None

    @classmethod
    def of(cls, batch: Any, labels: int | str | None) -> "Parts":
        """Divide a batch into its labels and the rest.

        Args:
            batch: A pair, a longer tuple or list, a dictionary, or anything else, without labels.
            labels: Index or key of the labels; None: the last of two parts, or a key of `LABELS`.

        Raises:
            ScenarioError: The batch has no part of that index or key.
        """
        if isinstance(batch, Mapping):
            known = [key for key in LABELS if isinstance(batch.get(key), Tensor)]
            place, parts = labels if labels is not None else next(iter(known), None), dict(batch)
        elif isinstance(batch, tuple | list):
            parts = dict(enumerate(batch))
            usual = len(batch) - 1 if len(batch) == MOST_PARTS else None
            place = labels if labels is not None else usual
            place = place % len(batch) if isinstance(place, int) and batch else place
            if labels is None and len(batch) > MOST_PARTS:
                warnings.warn(
                    f"batches have {len(batch)} parts, and which of them are the labels cannot be "
                    "seen: name them by their index, such as reveal(loader, labels=1)",
                    stacklevel=4,
                )
        else:
            parts, place = {0: batch}, None
        if labels is not None and place not in parts:
            raise ScenarioError(f"reveal(labels={labels!r}): a batch has the parts {[*parts]}")
        found = _as_classes(parts.pop(place)) if place is not None else None
        known_labels = isinstance(found, Tensor) and not found.is_floating_point()
        others = [*parts.values(), *([] if known_labels else [found])]
        return cls(
            tuple(one for one in others if isinstance(one, Tensor)),
            found if known_labels else None,
        )

    def __len__(self) -> int:
        known = [*self.tensors, *([] if self.labels is None else [self.labels])]
        return len(known[0]) if known and known[0].dim() else 0

    @property
    def bytes(self) -> int:
        """The bytes of its tensors."""
        every = (*self.tensors, *([] if self.labels is None else [self.labels]))
        return sum(one.numel() * one.element_size() for one in every)

    def holds(self, received: Tensor) -> bool:
        """Whether one of its tensors has the values of what a model received, in any shape."""
        return any(
            one is received
            or (
                one.numel() == received.numel()
                and one.dtype == received.dtype
                and torch.equal(one.detach().cpu().reshape(-1), received.cpu().reshape(-1))
            )
            for one in self.tensors
        )


def _as_classes(labels: Any) -> Any:
    """Labels (B,) or (B, 1) of two classes as integers; anything else as it is."""
    real = isinstance(labels, Tensor) and labels.is_floating_point()
    if real and labels.dim() and labels[:1].numel() == 1:  # not of an example without a batch
        binary = bool(((labels == 0) | (labels == 1)).all())
        return labels.long() if binary else labels
    return labels


@dataclass(slots=True, eq=False)
class Pass:
    """A forward pass of the model.

    Attributes:
        received: What the model received, (B, ...), on the CPU; None if nobody saw it.
        state: State of torch's generator before.
        training: Whether the model was in training mode.
        frozen: Names of its layers that were not.
        device: Where it computed.
        others: Names of further inputs.
        batch: The batch that it claims; None if it is not known.
        first: Whether no earlier pass had the same inputs.
    """

    received: Tensor | None
    state: Tensor
    training: bool
    frozen: tuple[str, ...]
    device: str = "cpu"
    others: frozenset[str] = frozenset()
    batch: Parts | None = None
    first: bool = True


class Offered:
    """Batches that a training function has asked for and not used yet, the oldest first.

    Those beyond `MOST_BYTES` are forgotten, the oldest first. A forward pass claims a batch, and a
    step uses it, if a backward pass has followed.

    Attributes:
        guessed: Whether a batch was taken for the next in line, with others waiting, because the
            model received none as it was offered: a loader may load ahead, or batches be skipped.
    """

    def __init__(self) -> None:
        self._waiting: deque[Parts] = deque()
        self._claims: dict[bytes, Parts] = {}
        self._in_line: dict[int, bool] = {}
        self._number, self._bytes, self._forgotten = 0, 0, False
        self._last: Parts | None = None
        self.guessed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, parts: Parts) -> None:
        """Note a batch that the training function has asked for."""
        self._waiting.append(parts)
        self._number += 1
        self._bytes += parts.bytes
        while self._bytes > MOST_BYTES and len(self._waiting) > 1:
            self._unclaim(self._take(0))
            self._forgotten = True

    def next(self) -> Parts:
        """Take the batch that has waited longest."""
        return self._take(0)

    def claim(self, received: Tensor, *, known: bool) -> tuple[Parts | None, bool]:
        """Find the batch that a model received.

        It is the one with these values; or, for a client that changed them (normalisation,
        augmentation), the next in line, or the one claimed last since the last step.

        Args:
            received: What the model received, (B, ...), on the CPU.
            known: Whether these values were used before, so that they are of no other batch.

        Returns:
            The batch, None if it is not known or not waiting; and whether this is the first claim
            of these values.
        """
        key, taken = _digest(received), {id(one) for one in self._claims.values()}
        free = [one for one in self._waiting if id(one) not in taken]
        found = next((one for one in free if one.holds(received)), None)
        if found is None:
            if known or key in self._claims:
                return self._claims.get(key), False
            if not self._waiting and self._number == 1:
                return self._last, True  # the only one there was, again
            claimed = [one for one in self._waiting if id(one) in self._in_line]
            found = next(iter(free or claimed[::-1]), None)
            if found is None or self._forgotten or len(found) != len(received):
                return None, True
            self._in_line.setdefault(id(found), len(free) > 1)
        self._claims[key] = found
        return found, True

    def use(self, parts: Parts | None) -> Tensor | None:
        """Take a claimed batch, and return its labels; None if it is not waiting any more."""
        place = next((at for at, one in enumerate(self._waiting) if one is parts), None)
        if parts is None or place is None:
            return parts.labels if parts is not None and parts is self._last else None
        if id(parts) in self._in_line:
            skipped = [at for at in range(place) if id(self._waiting[at]) in self._in_line]
            self.guessed |= self._in_line[id(parts)] or bool(skipped)
            for at in reversed(skipped):
                self._unclaim(self._take(at))
            place -= len(skipped)
        self._unclaim(parts)
        return self._take(place).labels

    def release(self) -> None:
        """Forget, after a step, which batches were claimed by values that they do not have."""
        for parts in [one for one in self._waiting if id(one) in self._in_line]:
            self._unclaim(parts)

    def _unclaim(self, parts: Parts) -> None:
        self._claims = {key: one for key, one in self._claims.items() if one is not parts}
        self._in_line.pop(id(parts), None)

    def _take(self, place: int) -> Parts:
        taken = self._waiting[place]
        del self._waiting[place]
        self._bytes -= taken.bytes
        self._last = taken if self._number == 1 else None
        return taken


class Used:
    """The batches that were used, equal inputs once, up to `MOST_BYTES`.

    Attributes:
        sizes: Number of examples of each.
        tensors: `inputs.K`, `labels.K` and `rng.K` of the K-th, as `fedsim.runs.truth` reads them.
        same: The place of an earlier batch with equal inputs, by place.
        partial: Whether inputs are missing.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.tensors: dict[str, Tensor] = {}
        self.same: dict[int, int] = {}
        self.partial = False
        self._places: dict[bytes, int] = {}
        self._state: Tensor | None = None
        self._bytes = 0

    def place_of(self, received: Tensor, since: int = 0) -> int | None:
        """The first place, from `since` on, of a batch with the same inputs."""
        first = self._places.get(_digest(received))
        if first is None:
            return None
        places = (one for one in range(since, len(self.sizes)) if self.same.get(one, one) == first)
        return next(places, None)

    def add(self, inputs: Tensor | None, labels: Tensor | None, state: Tensor) -> None:
        """Note a batch.

        Args:
            inputs: What the model received, (B, ...), on the CPU; None if nobody saw it.
            labels: Its labels (B,), (B, 1) or any other integers; None if they are not known.
            state: State of torch's generator before the model received it.
        """
        place = len(self.sizes)
        known = inputs if inputs is not None else labels
        self.sizes.append(len(known) if known is not None and known.dim() else 0)
        if self._state is None or not torch.equal(state, self._state):
            self.tensors[f"rng.{place}"] = self._state = state
        if labels is not None and labels.dim() and self._fits(labels):
            self.tensors[f"labels.{place}"] = labels.detach().cpu().long().clone()
        if inputs is None:
            self.partial = True
            return
        first = self._places.setdefault(_digest(inputs), place)
        if first != place:
            self.same[place] = first
        elif self._fits(inputs):
            self.tensors[f"inputs.{place}"] = inputs
        else:
            self.partial = True

    def labels(self, place: int) -> Tensor | None:
        """The labels of the batch at a place, if they are known."""
        return self.tensors.get(f"labels.{place}")

    def without_labels(self) -> None:
        """Forget all labels, which were not those of their inputs, or may not have been."""
        self.tensors = {k: v for k, v in self.tensors.items() if not k.startswith("labels.")}

    def _fits(self, values: Tensor) -> bool:
        size = values.numel() * values.element_size()
        fits = self._bytes + size <= MOST_BYTES
        self._bytes += size if fits else 0
        return fits


def _digest(values: Tensor) -> bytes:
    plain = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    found = hashlib.blake2b(str(tuple(values.shape)).encode(), digest_size=16)
    found.update(plain.numpy().tobytes())
    return found.digest()


def outputs_in(output: Any) -> Iterator[Tensor]:
    """The tensors in what a module returned: one, or those of a tuple, dictionary or record."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | tuple | list):
        for one in output.values() if isinstance(output, Mapping) else output:
            yield from outputs_in(one)
    else:
        found = getattr(output, "__dict__", {}).values()
        yield from (one for one in found if isinstance(one, Tensor))


def tensors_in(*groups: Any) -> Iterator[Tensor]:
    """The tensors among a module's arguments, `INPUTS` first, those named as labels left out."""
    for group in groups:
        named = [*group.items()] if isinstance(group, Mapping) else [(None, one) for one in group]
        named.sort(key=lambda pair: pair[0] not in INPUTS)
        yield from (one for key, one in named if isinstance(one, Tensor) and key not in LABELS)


def further_inputs(args: tuple[Any, ...], named: Mapping[str, Any]) -> set[str]:
    """Names of a module's tensors beside its input, labels and the mask that padding gives."""
    known = {*LABELS, *INPUTS, "attention_mask"}
    found = {key for key, one in named.items() if isinstance(one, Tensor) and key not in known}
    placed = [place for place, one in enumerate(args) if isinstance(one, Tensor)]
    first = 0 if any(key in INPUTS for key in named) else 1
    return found | {f"argument {place + 1}" for place in placed[first:]}
