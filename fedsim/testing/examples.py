"""Hand-made observations and jobs, and a small network with its gradient to attack."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.adversary import Job
from fedsim.knowledge import Knowledge
from fedsim.records import Batch, Observation, field_of
from fedsim.seeds import isolated, torch_generator
from fedsim.spec import ImageSpec, Spec
from fedsim.victim import VictimModel


def observation(
    *,
    gradient: Mapping[str, Tensor] | None = None,
    head: str = "head",
    classes: int | None = None,
    granted: Knowledge | None = None,
    model: VictimModel | None = None,
    spec: Spec | None = None,
    **known: Any,
) -> Observation:
    """Make an observation as a threat model would grant it, without a run.

    Args:
        gradient: Gradients by parameter name, mean over examples.
        head: The name of the last linear layer.
        classes: Number of classes; by default the rows of the head's weight, whose shape is
            (classes, features).
        granted: What the threat model grants; by default what the arguments imply.
        model: The model that the client started from.
        spec: What examples look like; by default a `Spec` with `classes`.
        **known: Any other field of `Observation`, such as labels, num_examples, steps, lr, buffers
            or auxiliary.

    Raises:
        ValueError: The number of classes is neither given nor implied.
    """
    gradient = dict(gradient or {})
    if spec is None:
        weight = gradient.get(f"{head}.weight")
        if classes is None and weight is None:
            raise ValueError(f"give classes=, spec=, or a gradient with '{head}.weight'")
        spec = Spec(classes=classes if classes is not None else int(weight.shape[0]))  # type: ignore[union-attr]
    if granted is None:
        granted = Knowledge(0)
        granted |= Knowledge.GRADIENT if gradient else Knowledge(0)
        granted |= Knowledge.MODEL if model is not None else Knowledge(0)
        for flag in Knowledge:
            if known.get(field_of(flag)) is not None:
                granted |= flag
    return Observation(
        granted=granted.closed(), spec=spec, head=head, gradient=gradient, model=model, **known
    )


def device_of_tests(otherwise: str = "cpu") -> str:
    """The device on which tests compute: that of the environment's FEDSIM_TEST_DEVICE.

    Args:
        otherwise: The device if the environment names none.
    """
    return os.environ.get("FEDSIM_TEST_DEVICE") or otherwise


def job(*, seed: int = 0, budget: int | None = None, **settings: Any) -> Job:
    """Make a job.

    Args:
        seed: Seeds the job's generator.
        budget: Iterations that the attack may take; None for no limit.
        **settings: Other fields of `Job`: device, deadline, cancelled, on_progress. The device is
            by default that of the environment's FEDSIM_TEST_DEVICE, or the CPU.
    """
    settings.setdefault("device", device_of_tests())
    return Job(torch_generator(seed, "test"), budget=budget, **settings)


SPEC = ImageSpec(classes=10, input_shape=(1, 6, 6))
"""What the examples of `network` and `batch` look like."""


def network(seed: int = 0) -> VictimModel:
    """Make a small sigmoid network with random weights: a convolution and a head with a bias."""
    with isolated(seed, "test", "network"):
        module = nn.Sequential()
        module.add_module("conv", nn.Conv2d(1, 3, 3, stride=2, padding=1))
        module.add_module("sigmoid", nn.Sigmoid())
        module.add_module("flatten", nn.Flatten())
        module.add_module("head", nn.Linear(27, SPEC.classes))

    def loss(module: nn.Module, inputs: Tensor, target: Tensor, **_: Any) -> Tensor:
        return nn.functional.cross_entropy(module(inputs), target)

    return VictimModel(module, head="head", loss=loss)


def batch(size: int = 1, seed: int = 0) -> Batch:
    """Draw random images of shape (size, 1, 6, 6) in [0, 1] with labels from 0 to 9."""
    rng = torch_generator(seed, "test", "batch")
    inputs = torch.rand(size, *SPEC.input_shape, generator=rng)
    return Batch(inputs, torch.randint(SPEC.classes, (size,), generator=rng))


def example(size: int = 1, seed: int = 0, model: VictimModel | None = None) -> Observation:
    """Observe the gradient of a model on `batch`, with everything granted that an image task has.

    Args:
        size: Number of examples.
        seed: Seeds the examples, and the default model.
        model: A model for the images of `SPEC`; by default `network(seed)`.
    """
    model, examples = model or network(seed), batch(size, seed)
    gradient = model.gradient(examples.inputs, examples.labels)
    return Observation(
        granted=~Knowledge(0),
        spec=SPEC,
        head=model.head,
        gradient={name: value.detach() for name, value in gradient.items()},
        model=model,
        labels=examples.labels.sort().values,
        num_examples=size,
        steps=1,
        lr=0.1,
        buffers={},
        auxiliary=batch(16, seed + 1),
        defenses=(),
        history=(),
    )
