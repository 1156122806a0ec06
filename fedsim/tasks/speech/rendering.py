"""What a reader is shown of claimed transcripts, and the level at which frames are listened to."""

import torch
from torch import Tensor

from fedsim.metrics import worded
from fedsim.records import Reconstruction, Truth
from fedsim.spec import SpeechSpec
from fedsim.tasks.speech.data import READABLE
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.spectrograms import Level, estimate_level
from fedsim.tasks.speech.utterances import Recordings
from fedsim.tasks.speech.voices import speak
from fedsim.tasks.transcripts import SENTENCES, public_text

__all__ = ["public_level", "render_transcripts"]

PUBLIC = 16
"""Utterances that a level is taken from, at most."""


def public_level(recordings: Recordings, auxiliary: Tensor, features: Features) -> Level:
    """The level of utterances that no client holds (int64 indices), or else of embedded voices."""
    index = auxiliary[:PUBLIC].tolist()
    if index:
        sounds = [recordings[i].sound() for i in index]
        return estimate_level(features, sounds, f"{len(index)} utterances that no client holds")
    sentences = [text for text in public_text(SENTENCES, None) if len(text) < READABLE]
    spoken = [torch.from_numpy(speak(text, who)) for who, text in enumerate(sentences[:PUBLIC])]
    return estimate_level(features, spoken, f"{len(spoken)} synthetic voices")


def render_transcripts(claimed: Reconstruction, truth: Truth, spec: SpeechSpec) -> dict[str, bytes]:
    """Transcripts and what is claimed of them, as two texts: `original` and `reconstruction`.

    A line an utterance, or, where only labels are claimed, their pieces in one line. No file where
    there is neither.
    """
    if truth.text is None:
        return {}
    lines = list[str]()
    if claimed.text is not None or claimed.sequences is not None:
        lines = worded(claimed, truth, spec)
    elif claimed.label_set is not None:
        known = [spec.pieces[k] for k in sorted(claimed.label_set) if 0 <= k < spec.classes]
        lines = [" ".join(known)]
    if not lines:
        return {}
    return {
        "original.txt": ("\n".join(truth.text) + "\n").encode(),
        "reconstruction.txt": ("\n".join(lines) + "\n").encode(errors="replace"),
    }
