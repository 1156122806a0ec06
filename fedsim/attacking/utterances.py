"""What is known of the utterances of another Flower project that trains with CTC."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.gradients import BLANK, ctc_loss
from fedsim.metrics.frames import framed
from fedsim.metrics.words import worded
from fedsim.records import Reconstruction, Truth
from fedsim.spec import BLANK_PIECE, WORD_START, SpeechSpec
from fedsim.tasks.partitioned import render_lines
from fedsim.tasks.speech.recognisers.recogniser import PADDING
from fedsim.tasks.speech.spectrograms import SHOWN, spectrogram_png


def speech_spec(features: int, classes: int) -> SpeechSpec:
    """Describe utterances whose spelling nobody knows: a label is written as its number.

    Args:
        features: Number of values of a frame.
        classes: Number of labels, the blank of CTC (label 0) included.
    """
    pieces = (BLANK_PIECE, *(f"{WORD_START}{label}" for label in range(1, classes)))
    return SpeechSpec(classes, features=features, sample_rate=0, pieces=pieces)


def with_blank(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Make a model with the attribute `blank`, by which attacks know that it uses CTC."""

    def made() -> nn.Module:
        module = make()
        if not hasattr(module, "blank"):
            module.blank = BLANK  # type: ignore[assignment]
        return module

    return made


def utterance_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """CTC loss of a model that takes frames alone, as `torch.nn.CTCLoss()` has it.

    -log p(labels) of each utterance is divided by its number of labels; the mean over utterances
    is taken. It is twice differentiable.

    Args:
        module: The model; of T frames it may return fewer logits, as with strides.
        inputs: Frames, float32 of shape (B, T, F).
        target: Labels, int64 of shape (B, S), padded with the blank or negative values.
        lengths: Numbers of frames (B,); None if all have T. A model that returns fewer logits is
            taken to shorten all utterances alike.
        at: Always "input".

    Raises:
        DataError: A target needs more frames than its utterance has.
    """
    counts = (target > BLANK).sum(dim=1).clamp(min=1)
    return (_losses(module, inputs, target, lengths) / counts.to(inputs.device)).mean()


def undivided_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """As `utterance_loss`, not divided by the numbers of labels."""
    return _losses(module, inputs, target, lengths).mean()


def _losses(module: nn.Module, inputs: Tensor, target: Tensor, lengths: Any) -> Tensor:
    logits = module(inputs)
    if lengths is not None:
        share = logits.shape[1] / inputs.shape[1]
        lengths = (torch.as_tensor(lengths) * share).ceil().long()
    return ctc_loss(logits, target.masked_fill(target == BLANK, PADDING), lengths)


def sequences_of(batches: Iterable[Tensor], classes: int) -> list[Tensor] | None:
    """The labels of each utterance, without padding.

    Args:
        batches: Labels of each batch, any integers of shape (B, S) or (B,).
        classes: Number of labels, the blank included.

    Returns:
        A tensor (L,) int64 for each utterance; None if some are not labels or there is none.
    """
    found = list[Tensor]()
    for batch in batches:
        for one in batch.reshape(len(batch), -1):
            labels = one[one > BLANK]
            if not len(labels) or int(labels.max()) >= classes:
                return None
            found.append(labels)
    return found or None


def shown_utterances(claimed: Reconstruction, truth: Truth, spec: SpeechSpec) -> dict[str, bytes]:
    """Original label sequences beside claimed ones, and frames as a picture.

    Returns:
        The files by name: a text with one utterance a line if labels are claimed, and pictures of
        up to four utterances, the original above, if frames are.
    """
    lines = list[str]()
    if claimed.text is not None or claimed.sequences is not None:
        lines = [ours for ours, _ in worded(claimed, truth, spec)]
    elif claimed.label_set is not None:
        lines = [spec.spell(sorted(claimed.label_set))]
    files = render_lines(truth.text, lines)
    pairs = zip(framed(claimed, truth), truth.inputs or (), strict=False)
    for number, (claim, true) in enumerate([*pairs][:SHOWN], 1):
        if claim is not None:
            original, ours = (one.detach().cpu().double() for one in (true, claim))
            files[f"reconstruction-{number}.png"] = spectrogram_png(original, ours)
    return files
