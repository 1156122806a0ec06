"""The base class of speech recognisers: settings that build a model."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedsim.described import Described
from fedsim.records import Reduction
from fedsim.victim import Loss

PADDING = -100
"""The label that fills up the shorter targets of a batch; losses ignore it."""


class Recogniser(Described, ABC):
    """Settings of one kind of speech recogniser.

    A subclass is one architecture. Its fields are the model's settings, its class attributes say
    how the model is trained and attacked.
    """

    units: ClassVar[Literal["wordpieces", "characters"]]
    """What labels stand for: word pieces, whose sequences end with label 0, or characters, whose
    sequences do not contain label 0 (it is CTC's blank)."""
    points: ClassVar[tuple[str, ...]] = ("input",)
    """The points of the model that take inputs; attacks may start at any of them."""
    loss: ClassVar[Loss]
    """The training loss, called as `loss(module, inputs, target, *, lengths=None, at="input")`;
    returns a scalar. It must be a plain function that holds no reference to the task, because
    adversaries get it with the model."""
    reduction: ClassVar[Reduction]
    """What the loss is a mean over."""

    name: str
    """Name of the architecture in a scenario."""

    @abstractmethod
    def build(self, features: int, vocabulary: int) -> nn.Module:
        """Build a model, its weights drawn from torch's global generator.

        Args:
            features: The number of values in a frame.
            vocabulary: The number of labels, label 0 included.
        """

    def find_head(self, module: nn.Module, features: int, vocabulary: int) -> str:
        """Find the projection layer before the softmax over labels, by default `head`.

        Args:
            module: The model.
            features: The number of values in a frame.
            vocabulary: The number of labels, label 0 included.

        Returns:
            The layer's name.
        """
        return "head"

    @abstractmethod
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor | None, longest: int
    ) -> list[Tensor]:
        """Transcribe utterances.

        Args:
            module: The model.
            inputs: Frames, float32 of shape (B, T, features), padded with 0.
            lengths: The number of frames of each utterance, int64 of shape (B,); None if all are
                full.
            longest: The largest number of labels in a transcript.

        Returns:
            The labels of each utterance, B tensors int64 of shape (L,), without label 0.
        """


def run_lstm(lstm: nn.Module, inputs: Tensor, lengths: Tensor, total: int | None = None) -> Tensor:
    """Run an LSTM over sequences of different lengths.

    Args:
        lstm: The LSTM, batch first. Attacks differentiate twice, which cuDNN's does not support.
        inputs: Its inputs, of shape (B, T, d).
        lengths: The length of each sequence, int64 of shape (B,).
        total: The number of steps to return; None for the longest sequence's.

    Returns:
        Its outputs, of shape (B, total, hidden), zero beyond a sequence's end.
    """
    packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
    with torch.backends.cudnn.flags(enabled=False):
        packed, _ = lstm(packed)
    outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=total)
    return outputs
