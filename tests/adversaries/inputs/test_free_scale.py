"""dlg on models whose gradient is the same at every scale of the inputs."""

import dataclasses

import pytest
import torch
from support.normalised import SPEC, case, without

from adversaries import DLG
from adversaries.inputs.input_matching import known_statistics
from fedsim import testing
from fedsim.gradients import Match, Problem, settle_scale
from fedsim.metrics import METRICS

SIGMOIDS = {"name": "convnet", "widths": [16, 16], "activation": "sigmoid"}
RESNET = {"name": "resnet20", "activation": "sigmoid", "strides": False}


def error(model, size, *, buffers):
    """Mean squared error of what dlg claims; how far it falls differs between processors."""
    seen, truth = case(model, size)
    attack = DLG(iterations=100, restarts=0, labels_from="given")
    found = attack.reconstruct(seen if buffers else without(seen), testing.job())
    return METRICS["mse"].score(found, truth, SPEC)


@pytest.mark.parametrize(("model", "size"), [(SIGMOIDS, 2), (RESNET, 1)])
def test_images_come_back_at_their_own_scale(model, size):
    assert error(model, size, buffers=True) < 1e-3


def test_the_brightest_pixel_is_taken_for_white_without_buffers():
    assert error(SIGMOIDS, 2, buffers=False) < 1e-3  # as it is in these two digits


def settled(model, *, factor, informed=False, **spec):
    """Inputs a factor too bright, after their scale was settled, and the truth."""
    seen, truth = case(model, 2)
    as_stated = dataclasses.replace(SPEC, **spec)
    problem = Problem(seen.model, [seen.gradient], as_stated, size=2, labels=[seen.labels])
    inputs = torch.stack(truth.inputs).double()
    match = Match(factor * inputs.flatten())
    settle_scale(problem, [match], [known_statistics(seen) if informed else {}])
    return match.point.view_as(inputs), inputs


def test_a_determined_scale_is_not_touched():
    found, truth = settled({"name": "lenet-sigmoid"}, factor=0.5)
    assert torch.equal(found, 0.5 * truth)


@pytest.mark.parametrize(
    ("input_range", "factor"), [((-1.0, 2.0), 2.0), ((0.0, 0.25), 0.25), (None, 30.0)]
)
def test_inputs_fill_their_range(input_range, factor):
    found, truth = settled(SIGMOIDS, factor=30.0, input_range=input_range)
    assert torch.allclose(found, factor * truth)


def test_the_batch_s_variance_comes_before_the_range():
    found, truth = settled(SIGMOIDS, factor=30.0, informed=True, input_range=(0.0, 0.25))
    assert torch.allclose(found, truth, atol=1e-4)
