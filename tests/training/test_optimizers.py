"""A client steps by the optimizer that `training.optimizer` names, and its update says which."""

import dataclasses

import pytest
import torch
from support.tiny import ask, initial, meaning, same, scenario, sent

from adversaries import InvertingGradients
from fedsim.engine.inline import InlineGrid
from fedsim.engine.preflight import preflight
from fedsim.federation.server import read_update
from fedsim.records import Interception, Update
from fedsim.scenario.built import build
from fedsim.threat import to_gradient

TORCH = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def fedavg(**training):
    return scenario(training={"algorithm": "fedavg", **training})


@pytest.mark.parametrize("optimizer", TORCH)
def test_fedavg_equals_a_hand_written_loop_with_torchs_defaults_and_a_new_state(optimizer):
    run = fedavg(optimizer=optimizer, local_steps=3, lr=0.01, weight_decay=0.1)
    grid, task = InlineGrid(6), run.build_task()
    for round in (1, 2):  # from the same weights, so that any state kept would show
        module = task.module().train()
        steps = TORCH[optimizer](module.parameters(), lr=0.01, weight_decay=0.1)
        for batch in task.batches(1, round, batch_size=4, steps=3):
            steps.zero_grad()
            task.loss(module, batch.inputs, batch.labels).backward()
            steps.step()
        reply = ask(grid, run, 1, round=round)
        assert same(sent(reply), {name: p.detach() for name, p in module.named_parameters()})
        assert meaning(reply)["optimizer"] == optimizer


def test_what_adam_sends_is_never_an_exact_gradient_and_the_observation_says_adam():
    run = scenario(
        training={"algorithm": "fedavg", "optimizer": "adam"}, threat={"grants": "white-box"}
    )
    arrays = initial(run)
    reply = ask(InlineGrid(6), run, 0, arrays=arrays)
    update = read_update(reply, {"lr": 0.1}, run.training)
    assert update.optimizer == "adam"
    one = Interception(1, (0,), arrays.to_torch_state_dict(), update)
    seen = build(run).threat.observe(one)
    assert (seen.optimizer, seen.exact, seen.steps) == ("adam", False, 1)
    signs = {value.sign().unique().numel() for value in seen.gradient.values()}
    assert signs <= {1, 2, 3}
    blind = scenario(threat={"grants": ["GRADIENT"]})
    assert build(blind).threat.observe(one).optimizer is None


def test_only_decay_that_is_added_to_the_step_is_taken_off_the_gradient():
    before = {"w": torch.tensor([2.0])}
    for optimizer, expected in (("sgd", 3.0), ("adamw", 3.0), ("adam", 4.0)):
        update = Update(
            {"w": before["w"] - 0.1 * 4.0}, "weights", optimizer=optimizer, lr=0.1, weight_decay=0.5
        )
        gradient, exact = to_gradient(update, before, lr=0.1, steps=1)
        assert gradient["w"].item() == pytest.approx(expected, rel=1e-5)
        assert exact == (optimizer == "sgd")


def test_inverting_gradients_simulates_no_steps_of_another_optimizer():
    run = scenario(
        training={"algorithm": "fedavg", "local_steps": 2}, threat={"grants": "white-box"}
    )
    one = Interception(
        1,
        (0,),
        initial(run).to_torch_state_dict(),
        Update(initial(run).to_torch_state_dict(), "weights", lr=0.1, steps=2, num_examples=8),
    )
    seen = build(run).threat.observe(one)
    attack = InvertingGradients()
    assert attack.training(seen) == (2, 0.1)
    assert attack.training(dataclasses.replace(seen, optimizer="unknown")) == (2, 0.1)
    adam = dataclasses.replace(seen, optimizer="adam")
    assert attack.training(adam) == (1, 0.0)
    with pytest.raises(
        ValueError, match='simulates steps of SGD, and the client took "adam" steps'
    ):
        InvertingGradients(unroll=True).training(adam)


def test_a_check_warns_that_attacks_see_adams_steps_as_if_they_were_sgds():
    for optimizer, warned in (("adam", 1), ("sgd", 0)):
        _, cautions = preflight(fedavg(optimizer=optimizer))
        found = [text for text in cautions if text.startswith('training.optimizer = "adam"')]
        assert len(found) == warned


def test_dp_sgd_bounds_what_adam_steps_along():
    defended = {"name": "dp-sgd", "clip": 1e-6, "noise_multiplier": 0.0}
    runs = [
        scenario(
            training={"algorithm": "fedavg", "optimizer": "adam", "lr": 0.01}, defenses=defenses
        )
        for defenses in ([defended], [])
    ]
    clipped, plain = (sent(ask(InlineGrid(6), run, 0)) for run in runs)
    before = initial(runs[0]).to_torch_state_dict()
    moved = [
        sum(float((after[name] - before[name]).abs().sum()) for name in before)
        for after in (clipped, plain)
    ]
    assert 0 < moved[0] < moved[1]
