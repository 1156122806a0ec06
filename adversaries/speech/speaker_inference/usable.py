"""Which utterances an encoder can take."""

import torch
from torch import Tensor

from adversaries.speech.speaker_inference.voiceprints import Utterances
from fedsim import Knowledge
from fedsim.records import UNKNOWN, Observation


def public_utterances(seen: Observation, shortest: int) -> Utterances:
    """The auxiliary utterances that are long enough; raises `ValueError` if there are none."""
    public = seen.know(Knowledge.AUXILIARY)
    speakers = public.attributes.get("speaker")
    if not speakers:
        raise ValueError(
            "the auxiliary data do not contain speakers: some utterances of the task's speakers "
            "have to be public (task.auxiliary_utterances)"
        )
    lengths = [public.inputs.shape[1]] * len(public) if public.lengths is None else public.lengths
    usable = [
        (str(name), frames[: int(length)].cpu().float())
        for name, frames, length in zip(speakers, public.inputs, lengths, strict=True)
        if int(length) >= shortest and name != UNKNOWN
    ]
    if not usable:
        raise ValueError(
            f"none of the {len(public)} public utterances has {shortest} frames, which the "
            "encoder's stages take: give it fewer stages (widths), or the task a smaller "
            "features.stride"
        )
    return usable


def unfit(frames: Tensor, features: int, shortest: int) -> str:
    """Why an utterance cannot be encoded; "" if it can."""
    if frames.ndim != 2 or frames.shape[1] != features:
        return f"shape {tuple(frames.shape)}, expected (frames, {features})"
    if len(frames) < shortest:
        return f"{len(frames)} frames, expected {shortest} at least"
    return "" if bool(torch.isfinite(frames).all()) else "NaN or Inf among its frames"
