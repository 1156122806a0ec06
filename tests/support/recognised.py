"""Small recognisers with CTC and gradients of synthetic voices, for tests of attacks on speech."""

import torch

from fedsim import testing
from fedsim.seeds import isolated
from fedsim.spec import SpeechSpec
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.recognisers import PADDING, as_recogniser
from fedsim.tasks.speech.voices import RATE, speak
from fedsim.tasks.wordpieces import CHARACTERS
from fedsim.victim import VictimModel

FEATURES, CONTEXT, CLASSES = 8, 2, 29
SPEC = SpeechSpec(CLASSES, features=FEATURES, sample_rate=RATE, pieces=CHARACTERS)
SAID = torch.tensor([2, 3, 4])
"""The labels of "abc"."""


def voice(number: int, frames: int):
    """A word in a synthetic voice, normalised frames (T, 8), so many of them."""
    sound = torch.from_numpy(speak("borrows", number))
    return Features(size=FEATURES).of(sound[: 320 * (frames - 1) + 160])


def recogniser(hidden: int = 64, seed: int = 0, **changes):
    """A DeepSpeech as its client trains it, Xavier-uniform."""
    settings = {
        "name": "deepspeech",
        "context": CONTEXT,
        "hidden": hidden,
        "recurrent": hidden // 2,
    }
    kind = as_recogniser({**settings, **changes})
    with isolated(seed, "test"):
        module = kind.build(FEATURES, CLASSES)
    return VictimModel(module.train(), head="head", loss=kind.loss)


def batch(*utterances):
    """Utterances (T, 8) padded, the target "abc" for each, and lengths."""
    inputs = torch.nn.utils.rnn.pad_sequence(list(utterances), batch_first=True)
    target = torch.tensor([[*SAID.tolist(), PADDING]] * len(utterances))
    return inputs, target, torch.tensor([len(one) for one in utterances])


def gradient_of(model, *utterances):
    """Mean over utterances (T, 8), "abc" each, of a training step."""
    inputs, target, lengths = batch(*utterances)
    with isolated(0, "training"):
        found = model.gradient(inputs, target, lengths=lengths)
    return {name: value.detach() for name, value in found.items()}


def observed(model, *utterances, **changes):
    """What a threat model that grants all but auxiliary data shows of one step."""
    known = {
        "gradient": gradient_of(model, *utterances),
        "model": model,
        "spec": SPEC,
        "labels": SAID.expand(len(utterances), -1),
        "lengths": [len(one) for one in utterances],
        "num_examples": len(utterances),
        "steps": 1,
        "lr": 0.1,
    }
    return testing.observation(**{**known, **changes})
