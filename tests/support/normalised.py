"""Digits behind the gradient of a model with batch normalisation, with and without its buffers."""

import dataclasses

import torch
from torch.nn import functional

from fedsim import testing
from fedsim.records import Observation, Truth
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

SPEC = ImageSpec(classes=10, input_shape=(1, 12, 12))


def case(model: dict[str, object], size: int = 4) -> tuple[Observation, Truth]:
    """Digits behind one gradient, and the buffers that their client sends."""
    from sklearn.datasets import load_digits

    data = load_digits()
    small = torch.tensor(data.images[:size] / 16, dtype=torch.float32)[:, None]
    images = functional.interpolate(small, (12, 12), mode="bilinear", align_corners=False)
    labels = torch.tensor(data.target[:size])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = as_architecture(model).build((1, 12, 12), 10).train()
    victim = VictimModel(module, head="head", loss=cross_entropy)
    client = victim.copy()
    gradient = client.gradient(images, labels)
    buffers = {n: b for n, b in client.module.named_buffers() if b.is_floating_point()}
    seen = testing.observation(
        gradient={name: value.detach() for name, value in gradient.items()},
        spec=SPEC,
        model=victim,
        num_examples=size,
        labels=labels,
        steps=1,
        buffers=buffers,
    )
    return seen, Truth(inputs=list(images), labels=labels)


def without(seen: Observation) -> Observation:
    return dataclasses.replace(seen, buffers=None)
