"""Files that show original and claimed transcripts, and the level that frames are restored to."""

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

PUBLIC = 16
"""The largest number of utterances that a level is estimated from."""


def public_level(recordings: Recordings, auxiliary: Tensor, features: Features) -> Level:
    """Estimate the level of public utterances.

    Args:
        recordings: The data set.
        auxiliary: Indices of the utterances that no client holds, int64. If there are none,
            synthetic voices are used instead.
        features: How sound becomes frames.
    """
    index = auxiliary[:PUBLIC].tolist()
    if index:
        sounds = [recordings[i].sound() for i in index]
        return estimate_level(features, sounds, f"{len(index)} utterances that no client holds")
    sentences = [text for text in public_text(SENTENCES, None) if len(text) < READABLE]
    sounds = [torch.from_numpy(speak(text, who)) for who, text in enumerate(sentences[:PUBLIC])]
    return estimate_level(features, sounds, f"{len(sounds)} synthetic voices")


def render_transcripts(claimed: Reconstruction, truth: Truth, spec: SpeechSpec) -> dict[str, bytes]:
    """Files that show original transcripts and what was claimed of each, one utterance a line.

    If only labels are claimed, their pieces stand in one line.

    Returns:
        The files by name; empty if neither transcripts nor labels are claimed.
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
