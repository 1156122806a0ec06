"""Small recognisers with attention, and the gradient of one utterance."""

import torch

from fedsim import testing
from fedsim.records import END, Observation, Spec
from fedsim.seeds import isolated
from fedsim.tasks.speech.recognisers import as_recogniser
from fedsim.victim import VictimModel

__all__ = ["PIECES", "generator", "recogniser", "utterance"]

PIECES, FEATURES = 30, 5
SIZES = {"encoder": 8, "attention": 6, "embedding": 10, "decoder": 20, "projection": 16}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def recogniser(seed: int = 0) -> VictimModel:
    """A small listen, attend and spell with random weights."""
    las = as_recogniser({"name": "las", **SIZES})
    with isolated(seed, "test"):
        module = las.build(FEATURES, PIECES)
    head = las.find_head(module, FEATURES, PIECES)
    return VictimModel(module, head=head, loss=las.loss, points=las.points)


def utterance(said: list[int], seed: int = 0, model: VictimModel | None = None) -> Observation:
    """The gradient of one utterance of random frames, the end left off, through the attention."""
    model, target = model or recogniser(seed), torch.tensor([[*said, END]])
    frames = torch.randn(1, 30, FEATURES, generator=generator(seed))
    gradient = model.gradient(frames, target)
    return testing.observation(
        gradient={name: value.detach() for name, value in gradient.items()},
        head=model.head,
        model=model,
        spec=Spec(classes=PIECES),
        labels=target,
        num_examples=1,
    )
