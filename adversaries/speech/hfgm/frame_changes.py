"""Gradients of an utterance, and of changes of its single frames (HFGM)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from adversaries.speech.hfgm.changed_frames import ChangedFrames
from adversaries.speech.padded_utterances import ALIKE, padded
from fedsim import VictimModel
from fedsim.gradients import ctc_head_gradient, head_passes

VALUES = 2**26
"""The largest number of values of head inputs that are held at a time."""

CTC = 1e-2
"""Relative tolerance between the closed-form gradient and that of autograd. In float32, CTC over a
thousand frames differs by 1e-3; another loss has a different gradient."""

LARGE = 2**22
"""Values of the largest weight from which torch's own LSTM is faster on a CPU than that of oneDNN,
which also computes the gradients of its weights."""

FEW = 4
"""Number of utterances in a pass from which oneDNN's LSTM is faster whatever its size."""


@dataclass(eq=False)
class FrameChanges(ABC):
    """Gradients of one utterance with a known transcript, and of changes of its frames.

    Attributes:
        model: A private copy in evaluation mode, on its device.
        target: Labels, (L,) int64.
        names: Parameters whose gradients are computed.
        lr: Learning rate of the client's local steps.
        steps: Number of local steps on this utterance, whose mean gradient is computed.
        way: How gradients are computed, for the diagnostics.
        frames: The utterance, (T, F), once it is set.
    """

    model: VictimModel
    target: Tensor
    names: Sequence[str]
    lr: float = 0.0
    steps: int = 1
    way: str = field(init=False)
    frames: Tensor = field(init=False)

    @abstractmethod
    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Set the utterance to frames (T, F); returns its gradients (1, *shape) by name."""

    @abstractmethod
    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the utterance for K changes of one frame each.

        Args:
            at: Index of the changed frame, (K,) int64.
            moves: Vectors added to that frame, (K, F).

        Yields:
            Gradients (k, *shape) by name, of some of the changes at a time, in order.
        """


class HeadOnly(FrameChanges):
    """The head's gradients under CTC, in closed form from its inputs and outputs."""

    incremental: ChangedFrames | None = None

    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Set the utterance; the first call checks the closed form against autograd.

        Raises:
            ValueError: The closed form is wrong, because the model is not trained with CTC.
        """
        first = not hasattr(self, "frames")
        self.frames = frames
        if first:
            self.look(frames)
        if self.incremental is not None:
            features, logits = self.incremental.base(frames)
            return self._gradients(features[None], logits[None])
        return self._gradients(*self._passes(frames[None]))

    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the changes, as many in one pass as memory allows."""
        most = max(1, VALUES // (len(self.frames) * self.width))
        for some, by in zip(torch.split(at, most), torch.split(moves, most), strict=True):
            if self.incremental is not None:
                yield self._gradients(*self.incremental(some, by))
            else:
                yield self._gradients(*self._passes(_added(self.frames, some, by)))

    def look(self, frames: Tensor) -> None:
        """Check the closed form against autograd, and see whether passes can be incremental.

        Raises:
            ValueError: The closed form is wrong, because the model is not trained with CTC.
        """
        self.model.module.requires_grad_(True)  # the check of another utterance has turned it off
        with torch.enable_grad():
            expected = self.model.gradient(frames[None], self.target[None], names=self.names)
        self.model.module.requires_grad_(False)
        features, logits = self._passes(frames[None])
        self.width = features.shape[2]
        ours = self._gradients(features, logits)
        for name, value in expected.items():
            if float((ours[name][0] - value).norm()) > CTC * (float(value.norm()) or 1.0):
                raise ValueError(
                    f"the gradient of '{name}' is not what CTC on the head's outputs has: expected "
                    'a recogniser trained by CTC (model = "deepspeech"), or layers = "all"'
                )
        self.way = "whole"
        try:
            shortcut = ChangedFrames(self.model.module, frames.shape[1])
            alike = self._agrees(shortcut, frames, logits[0])
        except Exception:  # own recognisers may use parts of these names in any other way
            return
        if alike:
            self.incremental, self.way = shortcut, "incremental"

    def _agrees(self, shortcut: ChangedFrames, frames: Tensor, logits: Tensor) -> bool:
        """Whether a shortcut gives the logits of an utterance, and of changes of three frames."""
        at = torch.tensor([0, len(frames) // 2, len(frames) - 1], device=frames.device)
        moves = torch.ones_like(frames[at])
        _, changed = self._passes(_added(frames, at, moves))
        base, found = shortcut.base(frames)[1], shortcut(at, moves)[1]
        return all(
            torch.allclose(one, other, rtol=0, atol=ALIKE)
            for one, other in ((base, logits), (found, changed))
        )

    @torch.no_grad()
    def _passes(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        return head_passes(self.model, frames, self.target)

    def _gradients(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        weight, bias = ctc_head_gradient(features, logits, self.target)
        both = {f"{self.model.head}.weight": weight, f"{self.model.head}.bias": bias}
        return {name: both[name] for name in self.names}


class Differentiable(HeadOnly):
    """The same, where the utterance's gradients can be differentiated by its `frames`."""

    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Set the utterance; its gradients keep their graph."""
        return move_together([self], [frames])[0]

    @torch.no_grad()
    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the changes; the incremental pass meets the utterance here first."""
        if self.incremental is not None:
            self.incremental.base(self.frames)
        yield from super().changed(at, moves)


def move_together(
    tried: Sequence[Differentiable], frames: Sequence[Tensor]
) -> list[dict[str, Tensor]]:
    """Set the utterances of several searches on one model, in one forward pass.

    Args:
        tried: One of each search, all with the same model.
        frames: Their utterances, (T, F) each.

    Returns:
        The gradients (1, *shape) by name of each, which keep their graph.
    """
    for one, own in zip(tried, frames, strict=True):
        if not hasattr(one, "frames"):
            one.look(own)
        one.frames = own.detach().requires_grad_()
    model = tried[0].model
    largest = max(weight.numel() for weight in model.module.parameters())
    plain = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None)
    with plain if largest >= LARGE and len(tried) < FEW else nullcontext(), torch.enable_grad():
        inputs, labels, lengths = padded(
            [one.frames for one in tried], [one.target for one in tried]
        )
        passes = head_passes(model, inputs, labels, lengths)
        weight, bias = ctc_head_gradient(*passes, labels, lengths, create_graph=True)
    both = {f"{model.head}.weight": weight, f"{model.head}.bias": bias}
    return [{name: both[name][at, None] for name in one.names} for at, one in enumerate(tried)]


class Whole(FrameChanges):
    """Gradients of any parameters, after any number of local steps, one change at a time."""

    way = "one by one"

    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Set the utterance; gradients by autograd."""
        self.frames = frames
        return self._of(frames)

    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the changes, one at a time."""
        for one in _added(self.frames, at, moves):
            yield self._of(one)

    def _of(self, frames: Tensor) -> dict[str, Tensor]:
        """The mean gradient over the local steps; the model's weights are restored afterwards."""
        wanted = self.names if self.steps == 1 else None
        weights = self.model.parameters()
        before = [value.detach().clone() for value in weights.values() if self.steps > 1]
        total = {name: torch.zeros_like(weights[name]) for name in self.names}
        for step in range(self.steps):
            gradient = self.model.gradient(frames[None], self.target[None], names=wanted)
            total = {name: sofar + gradient[name] for name, sofar in total.items()}
            if step + 1 < self.steps:
                with torch.no_grad():
                    for name, weight in weights.items():
                        weight.sub_(gradient[name], alpha=self.lr)
        with torch.no_grad():
            for weight, value in zip(weights.values(), before, strict=False):
                weight.copy_(value)
        return {name: value[None] / self.steps for name, value in total.items()}


def _added(frames: Tensor, at: Tensor, moves: Tensor) -> Tensor:
    """Utterances (K, T, F) with one changed frame each."""
    found = frames.expand(len(at), -1, -1).clone()
    found[torch.arange(len(at), device=at.device), at] += moves
    return found
