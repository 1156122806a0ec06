"""exact-batch over local steps, clipping by example and smoothed labels."""

import dataclasses

import pytest
import torch
from support.perceptrons import LABELS, SPEC, attacked, error, observed, perceptron
from torch import nn

from fedsim import testing
from fedsim.metrics import METRICS
from fedsim.records import Observation, Truth
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel


def stepped(
    model: VictimModel, labels: list[int], steps: int, lr: float, seed: int = 0
) -> tuple[Observation, Truth]:
    """The mean gradient of local steps, from float32 weights as a client sends them."""
    _, truth = observed(model, labels, seed=seed)
    module, size = model.copy().module, len(labels) // steps
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for part in torch.arange(len(labels)).split(size):
        optimizer.zero_grad()
        inputs = torch.stack([truth.inputs[i] for i in part.tolist()])
        cross_entropy(module, inputs, truth.labels[part]).backward()
        optimizer.step()
    update = {name: value.detach() for name, value in module.named_parameters()}
    seen = testing.observation(
        gradient={name: (before[name] - value) / (lr * steps) for name, value in update.items()},
        spec=SPEC,
        model=model,
        num_examples=len(labels),
        labels=truth.labels.sort().values,
        steps=steps,
        lr=lr,
    )
    return seen, truth


@pytest.mark.parametrize("lr", [0.01, 0.1])
@pytest.mark.parametrize("behind", [(nn.ReLU(),), (nn.Sigmoid(),), (nn.ReLU(), nn.ReLU())])
@pytest.mark.parametrize("steps", [2, 4])
def test_every_image_of_local_steps(steps, behind, lr):
    seen, truth = stepped(perceptron(*behind), [3, 8, 7, 5, 1, 0, 10, 4], steps, lr)
    claimed = attacked(seen)
    assert claimed.diagnostics["local_steps"] == steps
    assert error(claimed, truth) < 1e-6
    assert METRICS["label_exact"].score(claimed, truth, SPEC) == 1


@pytest.mark.parametrize(
    "labels", [[3, 3, 7, 5, 3, 1], [7, 7, 1, 4, 4, 1]], ids=["thrice", "pairs"]
)
@pytest.mark.parametrize("lr", [0.03, 0.3])
def test_every_image_of_local_steps_with_repeated_labels(lr, labels):
    seen, truth = stepped(perceptron(nn.ReLU()), labels, 2, lr)
    claimed = attacked(seen)
    assert claimed.diagnostics["local_steps"] == 2
    assert error(claimed, truth) < 1e-8


def test_local_steps_of_another_learning_rate_are_refused():
    seen, _ = stepped(perceptron(nn.ReLU()), [3, 8, 7, 5, 1, 0, 10, 4], 2, 0.3)
    with pytest.raises(ValueError, match="no features fit"):
        attacked(dataclasses.replace(seen, lr=0.15))


@pytest.mark.parametrize("labels", [[3, 8, 7, 5], LABELS], ids=["distinct", "repeated"])
def test_every_image_of_a_batch_clipped_by_example(labels):
    model = perceptron(nn.ReLU())
    seen, truth = observed(model, labels)
    each = [
        model.gradient(image[None], label[None])
        for image, label in zip(truth.inputs, truth.labels, strict=True)
    ]
    norms = [torch.stack([part.norm() for part in one.values()]).norm() for one in each]
    bound = sorted(norms)[1]
    clipped = {
        name: sum(
            one[name].detach() * (bound / norm).clamp(max=1)
            for one, norm in zip(each, norms, strict=True)
        )
        / len(labels)
        for name in seen.gradient
    }
    claimed = attacked(dataclasses.replace(seen, gradient=clipped))
    assert error(claimed, truth) < 1e-8
    assert claimed.diagnostics["least_factor"] == pytest.approx(float(bound / max(norms)), rel=1e-3)


@pytest.mark.parametrize("labels", [[3, 8, 7, 5], LABELS], ids=["distinct", "repeated"])
@pytest.mark.parametrize("smoothing", [0.01, 0.2])
def test_every_image_behind_smoothed_labels(smoothing, labels):
    model = perceptron(nn.ReLU())
    seen, truth = observed(model, labels)
    onehot = nn.functional.one_hot(truth.labels, 12).float()
    gradient = model.gradient(
        torch.stack(list(truth.inputs)), (1 - smoothing) * onehot + smoothing / 12
    )
    sent = {name: value.detach() for name, value in gradient.items()}
    claimed = attacked(dataclasses.replace(seen, gradient=sent))
    assert error(claimed, truth) < 1e-8
    assert claimed.diagnostics["label_smoothing"] == pytest.approx(smoothing, rel=1e-3)
