"""Gradients of an utterance and of what it becomes where single frames are changed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from adversaries.speech.hfgm.changed_frames import ChangedFrames
from fedsim.gradients import ctc_head_gradient, head_passes
from fedsim.victim import VictimModel

__all__ = ["FrameChanges", "HeadOnly", "Whole"]

VALUES = 2**26
"""Values of the head's inputs that are held at a time."""

ALIKE = 1e-4
"""How far what the shortcut says of an utterance may lie from the model's own logits."""

CTC = 1e-2
"""Share of its norm that a gradient in closed form may differ from autograd's by. In float32 that
of CTC over a thousand frames is off by 1e-3; another loss has another gradient altogether."""


class FrameChanges(ABC):
    """One utterance of a known transcript, and changes of it.

    model: a private copy in evaluation mode, on its device. target: (L,) int64. names: parameters
    whose gradients are asked for. lr, steps: of the client's local steps on this utterance; the
    gradient is their mean then.
    """

    way: str

    def __init__(
        self,
        model: VictimModel,
        target: Tensor,
        names: Sequence[str],
        *,
        lr: float = 0.0,
        steps: int = 1,
    ) -> None:
        self.model, self.target, self.names = model, target, names
        self.lr, self.steps = lr, steps

    @abstractmethod
    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Take frames (T, F) as the utterance; its gradients (1, *shape)."""

    @abstractmethod
    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the utterance for K changes of one frame each, some rows at a time.

        Args:
            moves: Vectors added to a frame, (K, F).
            at: Index of the changed frame, (K,) int64.
        """


class HeadOnly(FrameChanges):
    """The head's gradients, in closed form from what the model says of the frames."""

    incremental: ChangedFrames | None = None

    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """The first time it is looked whether the closed form, and the shortcut, are right."""
        first = not hasattr(self, "frames")
        self.frames = frames
        if first:
            self._look(frames)
        if self.incremental is not None:
            features, logits = self.incremental.base(frames)
            return self._gradients(features[None], logits[None])
        return self._gradients(*self._passes(frames[None]))

    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """In one pass, as far as memory goes."""
        most = max(1, VALUES // (len(self.frames) * self.width))
        for some, by in zip(torch.split(at, most), torch.split(moves, most), strict=True):
            if self.incremental is not None:
                yield self._gradients(*self.incremental(some, by))
            else:
                yield self._gradients(*self._passes(_added(self.frames, some, by)))

    def _look(self, frames: Tensor) -> None:
        self.model.module.requires_grad_(True)  # another utterance's look has turned it off
        with torch.enable_grad():
            told = self.model.gradient(frames[None], self.target[None], names=self.names)
        self.model.module.requires_grad_(False)
        features, logits = self._passes(frames[None])
        self.width = features.shape[2]
        ours = self._gradients(features, logits)
        for name, value in told.items():
            if float((ours[name][0] - value).norm()) > CTC * (float(value.norm()) or 1.0):
                raise ValueError(
                    f"the gradient of '{name}' is not what CTC on the head's outputs has: expected "
                    'a recogniser trained by CTC (model = "deepspeech"), or layers = "all"'
                )
        self.way = "whole"
        try:
            shortcut = ChangedFrames(self.model.module, frames.shape[1])
            close = torch.allclose(shortcut.base(frames)[1], logits[0], rtol=0, atol=ALIKE)
        except ValueError:
            return
        if close:
            self.incremental, self.way = shortcut, "incremental"

    @torch.no_grad()
    def _passes(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        return head_passes(self.model, frames, self.target)

    def _gradients(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        weight, bias = ctc_head_gradient(features, logits, self.target)
        both = {f"{self.model.head}.weight": weight, f"{self.model.head}.bias": bias}
        return {name: both[name] for name in self.names}


class Whole(FrameChanges):
    """Gradients of any parameters, and after any number of local steps, one change at a time."""

    way = "one by one"

    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """By autograd."""
        self.frames = frames
        return self._of(frames)

    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """One at a time."""
        for one in _added(self.frames, at, moves):
            yield self._of(one)

    def _of(self, frames: Tensor) -> dict[str, Tensor]:
        """The mean gradient over the local steps, which leave the model as it was."""
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
    """Utterances (K, T, F), in each of which one frame is changed."""
    found = frames.expand(len(at), -1, -1).clone()
    found[torch.arange(len(at), device=at.device), at] += moves
    return found
