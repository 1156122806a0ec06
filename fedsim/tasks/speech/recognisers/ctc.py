"""Recognisers trained with CTC on characters: DeepSpeech, and models of the user's own.

HFGM attacks DeepSpeech (Hannun et al., 2014). Transcripts are decoded by the best path or by beam
search. Beam search is flashlight's, called through torchaudio. It is compiled, has no dependencies,
and has wheels for Python 3.11 and 3.12. (pyctcdecode, the other decoder in wide use, is pinned
below numpy 2.)
"""

import functools
import importlib
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.gradients import BLANK, ctc_loss
from fedsim.tasks.models.factory import Factory
from fedsim.tasks.speech.recognisers.recogniser import Recogniser, run_lstm

CLIP = 20.0
"""The largest output of the clipped ReLUs."""

FRAMES = 8
"""The number of frames of the example that the head of a user's model is found with."""


def windows(frames: Tensor, context: int) -> Tensor:
    """Concatenate every frame with its neighbours, oldest first.

    Args:
        frames: Frames of shape (B, T, F).
        context: The number of neighbours on each side; zeros stand for those before the first frame
            and after the last.

    Returns:
        Windows of shape (B, T, (2 context + 1) F).
    """
    padded = functional.pad(frames, (0, 0, context, context))
    return padded.unfold(1, 2 * context + 1, 1).transpose(2, 3).flatten(2)


class DeepSpeechNetwork(nn.Module):
    """The network of DeepSpeech.

    Attributes:
        dense: Three fully connected layers on windows of frames.
        recurrent: An LSTM.
        joint: One more fully connected layer.
        head: The projection to characters.
        blank: CTC's blank label. Attacks recognise by this attribute that a model is trained with
            CTC.
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
        """Compute logits of shape (B, T, C); beyond an utterance's length they are meaningless.

        Args:
            inputs: Frames, float32 of shape (B, T, features).
            lengths: The number of frames of each utterance, int64 of shape (B,); None if all are
                full.
        """
        if lengths is None:
            lengths = torch.full((len(inputs),), inputs.shape[1], device="cpu")  # as packing needs
        hidden = self.dense(windows(inputs, self.context))
        hidden = run_lstm(self.recurrent, hidden, lengths, inputs.shape[1])
        return cast(Tensor, self.head(self.joint(hidden)))


def mean_ctc_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """CTC loss: -log p(transcript), mean over utterances and not divided by transcript lengths.

    It is twice differentiable in the inputs and the weights.

    Args:
        module: The model.
        inputs: Frames, float32 of shape (B, T, features), padded with 0.
        target: Characters, int64 of shape (B, L), padded with -100.
        lengths: The number of frames of each utterance, int64 of shape (B,); None if all are full.
        at: Always "input".

    Raises:
        DataError: A transcript needs more frames than its utterance has.
        ValueError: The labels are soft, which CTC does not support.
    """
    if target.is_floating_point():
        raise ValueError("CTC takes hard labels (B, L) int64, padded with -100; found smooth ones")
    if lengths is not None:
        lengths = torch.as_tensor(lengths)
    return ctc_loss(module(inputs, lengths), target, lengths).mean()


def best_path(log_probs: Tensor) -> Tensor:
    """Decode by the most probable label of every frame (best-path decoding).

    Repeated labels are merged and blanks are removed.

    Args:
        log_probs: Log-probabilities, or any scores, of shape (T, C).

    Returns:
        The labels, int64 of shape (L,).
    """
    path: Tensor = torch.unique_consecutive(log_probs.argmax(dim=1))
    return path[path != BLANK]


def best_of_beam(log_probs: Tensor, width: int) -> Tensor:
    """Decode by beam search without a language model (Graves and Jaitly, ICML 2014, section 3.2).

    The probability of a label sequence is summed over its alignments. The search is exact if the
    beam is at least twice as wide as there are prefixes.

    Args:
        log_probs: Log-probabilities of shape (T, C).
        width: The number of hypotheses kept from frame to frame.

    Returns:
        The most probable labels, int64 of shape (L,). They are empty if there are no frames, or if
        no hypothesis is left because the model has diverged.

    Raises:
        DataError: flashlight-text is not installed.
    """
    found: list[Any] = []
    if len(log_probs):
        decode = beam_decoder(log_probs.shape[1], width)
        (found,) = decode(log_probs.float().cpu().contiguous()[None])
    labels = found[0].tokens if found else torch.zeros(0)
    return labels.to(log_probs.device, torch.int64)


@functools.lru_cache(maxsize=8)
def beam_decoder(classes: int, width: int) -> Any:
    """Make torchaudio's beam-search decoder of emissions of shape (B, T, classes).

    Args:
        classes: The number of labels.
        width: The number of hypotheses kept from frame to frame.

    Raises:
        DataError: flashlight-text is not installed.
    """
    libraries.torchaudio()
    try:
        make = importlib.import_module("torchaudio.models.decoder").ctc_decoder
    except (ImportError, RuntimeError) as error:
        raise DataError(
            f"task.model.beam = {width} needs torchaudio and flashlight-text: "
            f"{libraries.installing('beam')}; or leave it at 1, which needs neither "
            f"({libraries.brief(error)})"
        ) from error
    names = [str(label) for label in range(classes)]
    # The blank is also the label of silence; another label would be added at both ends.
    return make(
        lexicon=None,
        tokens=names,
        blank_token=names[BLANK],
        sil_token=names[BLANK],
        beam_size=width,
        log_add=True,
    )


def frame_scores(module: nn.Module, inputs: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """The log-probabilities of each utterance's characters, (T, C), without those of padding."""
    scores = module(inputs, lengths).log_softmax(dim=2)
    counts = [scores.shape[1]] * len(scores) if lengths is None else lengths.tolist()
    return [one[:count] for one, count in zip(scores, counts, strict=True)]


class DeepSpeech(Recogniser):
    """DeepSpeech: characters by CTC, from an LSTM on windows of frames (Hannun et al., 2014).

    Three fully connected layers take a frame with its neighbours. An LSTM and one more fully
    connected layer follow. Activations of fully connected layers are clipped ReLUs; their weights
    start Xavier-uniform and their biases at zero. HFGM's model has 2,048 units in every layer and
    47 million weights; the defaults here are small enough for a CPU.
    """

    units = "characters"
    loss = staticmethod(mean_ctc_loss)
    reduction = "example"

    name: str = "deepspeech"
    context: int = Field(default=9, ge=0, le=50)
    """Number of neighbouring frames on each side that the first layer takes."""

    hidden: int = Field(default=128, ge=1)
    """Units of each fully connected layer; HFGM has 2,048."""

    recurrent: int = Field(default=128, ge=1)
    """Units of the LSTM in each direction; HFGM has 2,048."""

    bidirectional: bool = False
    """Whether the LSTM is bidirectional. HFGM's paper says so, its authors' code is not."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a fully connected unit is dropped in training."""

    beam: int = Field(default=1, ge=1, le=1024)
    """Number of hypotheses that transcription keeps; 1 takes the most probable label of every
    frame."""

    def build(self, features: int, vocabulary: int) -> DeepSpeechNetwork:
        """Build a model with Xavier-uniform fully connected layers.

        Args:
            features: The number of values in a frame.
            vocabulary: The number of characters, the blank included.

        Raises:
            DataError: Beam search is asked for and its decoder is not installed.
        """
        if self.beam > 1:
            beam_decoder(vocabulary, self.beam)
        return DeepSpeechNetwork(features, vocabulary, self)

    @torch.no_grad()
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor | None, longest: int
    ) -> list[Tensor]:
        """Transcribe by the best path or by beam search; see `Recogniser.transcribe`."""
        unpadded = frame_scores(module, inputs, lengths)
        if self.beam == 1:
            return [best_path(one)[:longest] for one in unpadded]
        return [best_of_beam(one, self.beam)[:longest] for one in unpadded]


class OwnRecogniser(Factory, Recogniser):
    """A recogniser that your own function makes, as `make(features=26, classes=29)`.

    It takes frames (B, T, features) float32, padded with 0, and the number of frames of each
    utterance, (B,) int64 or None if all are full. It returns logits (B, T, classes), as many as
    there are frames. It is trained with CTC on characters; class 0 is the blank.
    """

    model_config = Factory.model_config
    units = "characters"
    loss = staticmethod(mean_ctc_loss)
    reduction = "example"

    def build(self, features: int, vocabulary: int) -> nn.Module:
        """Call the function with the size of a frame and the number of characters."""
        module = self.make(features=features, classes=vocabulary)
        # Attacks read here that it uses CTC.
        if hasattr(module, "blank"):
            raise DataError(
                f"task.model: {self.name} has an attribute 'blank' of its own, under which fedsim "
                "keeps the class of the blank. Rename it"
            )
        module.blank = BLANK  # type: ignore[assignment]
        return module

    def find_head(self, module: nn.Module, features: int, vocabulary: int) -> str:
        """Find the head; it must have a weight of its own."""
        frames, lengths = torch.zeros(1, FRAMES, features), torch.tensor([FRAMES])
        takes = f"frames of shape {tuple(frames.shape)} and their number, {tuple(lengths.shape)}"
        return self.head_behind(
            module, lambda: module(frames, lengths), (1, FRAMES, vocabulary), takes
        )

    @torch.no_grad()
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor | None, longest: int
    ) -> list[Tensor]:
        """Transcribe by the most probable character of every frame."""
        return [best_path(one)[:longest] for one in frame_scores(module, inputs, lengths)]
