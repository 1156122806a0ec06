"""inverting-gradients also matches the batch's statistics where BUFFERS gives them."""

import dataclasses

import pytest
import torch
from torch.nn import functional

from adversaries import InvertingGradients
from fedsim import testing
from fedsim.metrics import METRICS
from fedsim.records import Observation, Truth
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

SPEC = ImageSpec(classes=10, input_shape=(1, 12, 12))
CONVNET = {"name": "convnet", "widths": [16, 16]}


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


def attack(seen, **settings):
    settings = {"iterations": 60, "restarts": 0, "labels_from": "given", **settings}
    return InvertingGradients(**settings).reconstruct(seen, testing.job())


def same(one, other):
    return one.objective == other.objective and all(
        torch.equal(a, b) for a, b in zip(one.inputs, other.inputs, strict=True)
    )


def test_batch_statistics_bring_the_images_closer():
    seen, truth = case(CONVNET)
    informed, blind = attack(seen), attack(without(seen))
    errors = [METRICS["mse"].score(each, truth, SPEC) for each in (informed, blind)]
    assert errors[0] < 0.8 * errors[1]
    assert informed.diagnostics["batch_statistics"] == 2
    assert "batch_statistics" not in blind.diagnostics


def test_without_batch_norm_buffers_change_nothing():
    seen, _ = case({"name": "cnn"}, size=1)
    assert same(attack(seen, iterations=5), attack(without(seen), iterations=5))


@pytest.mark.parametrize(
    ("settings", "known"), [({"statistics": 0}, {}), ({}, {"exact": False, "steps": 2})]
)
def test_statistics_are_not_used_unless_they_are_those_of_one_step(settings, known):
    seen, _ = case(CONVNET, size=2)
    seen = dataclasses.replace(seen, **known)
    settings |= {"iterations": 3, "unroll": False}
    assert same(attack(seen, **settings), attack(without(seen), **settings))


def test_statistics_of_one_victim_are_used_beside_one_that_shows_none():
    seen, _ = case(CONVNET, size=2)
    one, two = (dataclasses.replace(seen, exact=False, steps=steps) for steps in (1, 2))
    adversary = InvertingGradients(
        iterations=5, restarts=0, labels_from="given", unroll=False, precision="float64"
    )
    claims = adversary.reconstruct_many([one, two], [testing.job(), testing.job()])
    for each, claimed in zip((one, two), claims, strict=True):
        assert same(claimed, adversary.reconstruct(each, testing.job()))
