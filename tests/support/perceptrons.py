"""Perceptrons on small images, their batches, and what exact-batch makes of them."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from adversaries import ExactBatch
from fedsim import testing
from fedsim.metrics import METRICS
from fedsim.records import Observation, Reconstruction, Truth
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel

SPEC = ImageSpec(12, (1, 6, 6))
LABELS = [3, 3, 7, 7, 7, 1]


def perceptron(
    *behind: nn.Module, inputs: int = 36, classes: int = 12, width: int = 128
) -> VictimModel:
    """Hidden layers, each with the activation behind it, and a head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
        for number, activation in enumerate(behind):
            parts.append((f"layer{number}", nn.Linear(width if number else inputs, width)))
            parts.append((f"activation{number}", activation))
        parts.append(("head", nn.Linear(width, classes)))
        module = nn.Sequential(OrderedDict(parts))
    return VictimModel(module, head="head", loss=cross_entropy)


def observed(
    model: VictimModel, labels: list[int] = LABELS, spec: Any = SPEC, seed: int = 0
) -> tuple[Observation, Truth]:
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.rand(len(labels), *spec.input_shape, generator=rng)
    target = torch.tensor(labels)
    gradient = model.gradient(inputs, target)
    seen = testing.observation(
        gradient={name: value.detach() for name, value in gradient.items()},
        spec=spec,
        model=model,
        num_examples=len(labels),
        labels=target.sort().values,
    )
    return seen, Truth(inputs=list(inputs), labels=target)


def attacked(seen: Observation, labels_from: str = "given") -> Reconstruction:
    return ExactBatch(labels_from=labels_from).reconstruct(seen, testing.job())


def error(claimed: Reconstruction, truth: Truth, spec: Any = SPEC) -> float:
    return METRICS["mse"].score(claimed, truth, spec)


class Normalised(nn.Module):
    """A model that normalises its inputs first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner((images - 0.4) / 0.2)
