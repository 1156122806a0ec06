"""inverting-gradients also matches the batch's statistics where BUFFERS gives them."""

import dataclasses

import pytest
import torch
from support.normalised import SPEC, case, without

from adversaries import InvertingGradients
from fedsim import testing
from fedsim.metrics import METRICS

CONVNET = {"name": "convnet", "widths": [16, 16]}


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
