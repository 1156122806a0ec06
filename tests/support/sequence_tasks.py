"""What tests of the tasks text and speech share: a small federation, and what both must hold to."""

from collections.abc import Collection
from typing import Any

import pytest
import torch
from support.tiny import ask

from fedsim.defense import MeanGradient
from fedsim.engine.inline import InlineGrid
from fedsim.engine.preflight import preflight
from fedsim.knowledge import Knowledge
from fedsim.records import Batch, Interception, Observation, Update
from fedsim.scenario import Scenario
from fedsim.task import Task
from fedsim.threat import ThreatModel
from fedsim.training.local import batch_loss, local_training

CLIP = 0.05
DP_SGD = {"name": "dp-sgd", "clip": CLIP, "noise_multiplier": 0.0}
"""Clips and adds no noise."""


def of_four(task: dict[str, Any], batch_size: int, /, **changes: Any) -> Scenario:
    """Four clients, two a round, FedSGD; tables are merged with these. task: with its name."""
    training = {"rounds": 1, "clients": 4, "clients_per_round": 2, "lr": 0.1}
    training |= {"algorithm": "fedsgd", "batch_size": batch_size, **changes.pop("training", {})}
    return Scenario.parse(
        {
            "name": task["name"],
            "seed": 3,
            "task": {**task, **changes.pop("task", {})},
            "training": training,
            "adversaries": [{"name": "bias-signs"}],
            "engine": {"workers": 1},
            **changes,
        }
    )


def sent_and_computed(
    run: Scenario, client: int, names: Collection[str] | None = None
) -> tuple[Any, dict[str, torch.Tensor]]:
    """A client's reply under FedSGD, and the gradient of its padded batch by parameter name.

    names: of the parameters that are trained; None: all.
    """
    reply = ask(InlineGrid(4), run, client)
    task = run.build_task()
    module = task.module().train()
    (batch,) = task.batches(client, 1, batch_size=run.training.batch_size, steps=1)
    loss = task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)
    chosen = {k: p for k, p in module.named_parameters() if names is None or k in names}
    gradient = torch.autograd.grad(loss, list(chosen.values()))
    return reply, dict(zip(chosen, gradient, strict=True))


def observed(task: Task, *grants: str) -> Observation:
    """What a threat model shows of client 0's update of three examples in round 1."""
    arrays = task.arrays(task.module())
    caught = Interception(1, (0,), arrays, Update(arrays, "gradient", num_examples=3))
    truth = task.truth([0], 1, batch_size=3, steps=1)
    return ThreatModel(Knowledge.parse(grants), task).observe(caught, truth=truth)


def clips_one_by_one(run: Scenario, task: Task) -> None:
    """Asserts that dp-sgd clips every example's gradient by itself. run: with `DP_SGD` alone."""
    preflight(run)
    module, (batch,) = task.module(), task.batches(1, 0, batch_size=3, steps=1)
    training = local_training(run, task, module, [batch], torch.Generator(), run.build_defenses())
    ours, loss = training.gradient(module, batch)
    expected, losses = dict.fromkeys(ours, 0.0), []
    for i in range(3):
        alone = Batch(batch.inputs[i : i + 1], batch.labels[i : i + 1], batch.lengths[i : i + 1])
        plain = MeanGradient(lambda m, b: batch_loss(task.loss, m, b), task.trained(module))
        gradient, value = plain(module, alone)
        norm = torch.stack([g.norm() for g in gradient.values()]).norm()
        assert norm > CLIP
        losses.append(value)
        for name, g in gradient.items():
            expected[name] = expected[name] + g * CLIP / norm / 3
    assert loss == pytest.approx(sum(losses) / 3)
    for name, value in ours.items():
        torch.testing.assert_close(value, expected[name], atol=1e-7, rtol=1e-4)
