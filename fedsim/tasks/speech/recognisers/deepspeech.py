"""DeepSpeech (Hannun et al., 2014): characters by CTC, the recogniser that HFGM attacks."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedsim.gradients import BLANK, ctc_loss
from fedsim.records import Reduction
from fedsim.tasks.speech.recognisers.decoding import beam_decoder, best_of_beam, best_path
from fedsim.tasks.speech.recognisers.recogniser import Recogniser
from fedsim.victim import Loss

__all__ = ["DeepSpeech", "DeepSpeechNetwork", "windows"]

CLIP = 20.0
"""What the clipped ReLUs let through at most."""


def windows(frames: Tensor, context: int) -> Tensor:
    """Every frame of (B, T, F) between its neighbours, (B, T, (2 context + 1) F), oldest first.

    Zeros stand for what is before the first frame and behind the last.
    """
    padded = functional.pad(frames, (0, 0, context, context))
    return padded.unfold(1, 2 * context + 1, 1).transpose(2, 3).flatten(2)


class DeepSpeechNetwork(nn.Module):
    """The model: `dense`, three layers a frame; `recurrent`, an LSTM; `joint` and the `head`.

    blank: CTC's label of a frame that says nothing; a model that has one is trained with CTC.
    """

    def __init__(self, features: int, vocabulary: int, settings: "DeepSpeech") -> None:
        super().__init__()
        self.context, self.blank = settings.context, BLANK
        hidden, width = settings.hidden, features * (2 * settings.context + 1)

        def layer(inputs: int) -> list[nn.Module]:
            return [nn.Linear(inputs, hidden), nn.Hardtanh(0, CLIP), nn.Dropout(settings.dropout)]

        self.dense = nn.Sequential(*layer(width), *layer(hidden), *layer(hidden))
        self.recurrent = nn.LSTM(
            hidden, settings.recurrent, batch_first=True, bidirectional=settings.bidirectional
        )
        self.joint = nn.Sequential(*layer(settings.recurrent * (1 + settings.bidirectional)))
        self.head = nn.Linear(hidden, vocabulary)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Logits (B, T, C) of frames (B, T, features); of no meaning beyond lengths (B,)."""
        if lengths is None:
            lengths = torch.full((len(inputs),), inputs.shape[1])
        heard = self.dense(windows(inputs, self.context))
        packed = pack_padded_sequence(heard, lengths.cpu(), batch_first=True, enforce_sorted=False)
        # cuDNN's LSTM cannot be differentiated twice, which attacks ask for.
        with torch.backends.cudnn.flags(enabled=False):
            packed, _ = self.recurrent(packed)
        heard, _ = pad_packed_sequence(packed, batch_first=True, total_length=inputs.shape[1])
        logits: Tensor = self.head(self.joint(heard))
        return logits


def mean_ctc_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """CTC, the mean over the utterances of -log p(transcript), not divided by its length.

    inputs: (B, T, features) float32 padded with 0, with lengths (B,) int64 in frames (None: all
    are full). target: (B, L) int64 characters, padded with -100. Twice differentiable in inputs and
    weights. Raises `DataError` for a transcript that takes more frames than there are, and
    `ValueError` for smooth labels, which CTC has no use for.
    """
    if target.is_floating_point():
        raise ValueError("CTC takes hard labels (B, L) int64, padded with -100; found smooth ones")
    if lengths is not None:
        lengths = torch.as_tensor(lengths)
    return ctc_loss(module(inputs, lengths), target, lengths).mean()


class DeepSpeech(Recogniser):
    """DeepSpeech: characters, by CTC on an LSTM over windows of frames.

    Three fully connected layers see a frame between its neighbours, an LSTM and one more layer
    follow; all but the LSTM are clipped ReLUs. HFGM's model has 2,048 units everywhere, 47 million
    weights; the defaults here are small, for a CPU. Fully connected weights start Xavier-uniform,
    their biases at zero.
    """

    units: ClassVar[Literal["wordpieces", "characters"]] = "characters"
    head: ClassVar[str] = "head"
    loss: ClassVar[Loss] = staticmethod(mean_ctc_loss)
    reduction: ClassVar[Reduction] = "example"

    name: str = "deepspeech"
    context: int = Field(default=9, ge=0, le=50)
    """Frames on each side that the first layer sees."""

    hidden: int = Field(default=128, ge=1)
    """Units of each fully connected layer; HFGM has 2,048."""

    recurrent: int = Field(default=128, ge=1)
    """Units of the LSTM, in each direction; HFGM has 2,048."""

    bidirectional: bool = False
    """An LSTM each way; HFGM's text says so, its authors' code not."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the fully connected units that are dropped while training."""

    beam: int = Field(default=1, ge=1, le=1024)
    """Hypotheses kept while transcribing; 1: the likeliest label of every frame."""

    def build(self, features: int, vocabulary: int) -> DeepSpeechNetwork:
        """A new model with Xavier-uniform fully connected layers.

        Raises `DataError` where a beam is asked for and its decoder is not installed.
        """
        if self.beam > 1:
            beam_decoder(vocabulary, self.beam)
        return DeepSpeechNetwork(features, vocabulary, self)

    @torch.no_grad()
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor | None, longest: int
    ) -> list[Tensor]:
        """What the model hears: the likeliest path, or the likeliest of a beam."""
        scores = module(inputs, lengths).log_softmax(dim=2)
        frames = cast(
            Sequence[int],
            [scores.shape[1]] * len(scores) if lengths is None else lengths.tolist(),
        )
        heard = [one[:count] for one, count in zip(scores, frames, strict=True)]
        if self.beam == 1:
            return [best_path(one)[:longest] for one in heard]
        return [best_of_beam(one, self.beam)[:longest] for one in heard]
