"""Synthetic voices, a gradient of what they say, and who speaks by a small encoder."""

import torch
from torch.nn.utils.rnn import pad_sequence

from adversaries import SpeakerInference
from fedsim import testing
from fedsim.records import Batch, Reconstruction
from fedsim.seeds import isolated
from fedsim.spec import SpeechSpec
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.recognisers import PADDING, as_recogniser
from fedsim.tasks.speech.voices import RATE, speak
from fedsim.tasks.wordpieces import CHARACTERS
from fedsim.victim import VictimModel

SIZE, CONTEXT, CLASSES = 26, 4, 29
NAMES = tuple(f"voice{number}" for number in range(4))
SPEC = SpeechSpec(
    CLASSES, features=SIZE, sample_rate=RATE, pieces=CHARACTERS, attributes={"speaker": NAMES}
)
WORDS = (
    "seven old ships",
    "many a river",
    "the lamp was low",
    "our garden",
    "a red door",
    "nine cold days",
)
SMALL = {"widths": (8, 16), "embedding": 16, "steps": 4, "lr": 0.01, "longest": 40}
ENOUGH = 120
"""Training steps after which voices are told apart."""


def heard(text: str, number: int) -> torch.Tensor:
    """Frames (T, 26) of a text in a synthetic voice."""
    return Features(size=SIZE).of(torch.from_numpy(speak(text, number)))


def public(speakers=range(4), words=WORDS) -> Batch:
    """Every speaker's public utterances."""
    said = [(f"voice{number}", heard(text, number)) for number in speakers for text in words]
    frames = [one for _, one in said]
    return Batch(
        pad_sequence(frames, batch_first=True),
        torch.zeros(len(said), 1, dtype=torch.int64),
        torch.tensor([len(one) for one in frames]),
        {"speaker": tuple(name for name, _ in said)},
    )


def observed(*utterances, auxiliary, spec=SPEC):
    """The gradient of an untrained recogniser, and the public utterances."""
    kind = as_recogniser({"name": "deepspeech", "context": CONTEXT, "hidden": 160, "recurrent": 8})
    with isolated(0, "test"):
        module = kind.build(SIZE, CLASSES)
    model = VictimModel(module, head="head", loss=kind.loss)
    gradient = model.gradient(
        pad_sequence(list(utterances), batch_first=True),
        torch.tensor([[2, 3, 4, PADDING]] * len(utterances)),
        lengths=torch.tensor([len(one) for one in utterances]),
    )
    sent = {name: value.detach() for name, value in gradient.items()}
    return testing.observation(gradient=sent, spec=spec, auxiliary=auxiliary)


def attacked(seen, seed=0, **settings) -> Reconstruction:
    """What a small speaker-inference claims."""
    return SpeakerInference(**{**SMALL, **settings}).reconstruct(seen, testing.job(seed=seed))


def told(seen, *utterances, **settings):
    """Rankings of utterances by the voiceprints alone."""
    attack = SpeakerInference(**{**SMALL, **settings})
    return attack.rank(utterances, seen, testing.job())
