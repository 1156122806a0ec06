"""A client trains as its algorithm says, from (seed, client, round) alone; defenses act on what
it sends."""

import itertools

import pytest
import torch
from flwr.app import (
    Message,
    MessageType,
    RecordDict,
)
from support.tiny import ask, config, initial, meaning, same, scenario, sent

from fedsim.engine.inline import InlineGrid

pytestmark = pytest.mark.usefixtures("rogues")


def by_hand(run, number, round, *, proximal_mu=0.0):
    """Weights after K steps of torch's SGD, the textbook loop."""
    settings, task = run.training, run.build_task()
    module = task.module().train()
    anchor = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    for batch in task.batches(
        number, round, batch_size=settings.batch_size, steps=settings.local_steps
    ):
        optimizer.zero_grad()
        loss = task.loss(module, batch.inputs, batch.labels)
        for name, parameter in module.named_parameters():
            loss = loss + proximal_mu / 2 * (parameter - anchor[name]).square().sum()
        loss.backward()
        optimizer.step()
    return {name: p.detach() for name, p in module.named_parameters()}


# --- what a client sends ----------------------------------------------------------------------


def test_fedsgd_sends_exactly_the_gradient_of_its_batch():
    run = scenario()
    reply = ask(InlineGrid(6), run, 4, round=9)
    task = run.build_task()
    module = task.module().train()
    (batch,) = task.batches(4, 9, batch_size=4, steps=1)
    loss = task.loss(module, batch.inputs, batch.labels)
    gradient = torch.autograd.grad(loss, list(module.parameters()))
    names = [name for name, _ in module.named_parameters()]
    assert same(sent(reply), dict(zip(names, gradient, strict=True)))
    assert meaning(reply)["kind"] == "gradient"
    assert reply.content["metrics"]["train_loss"] == pytest.approx(float(loss.detach()))
    assert reply.content["metrics"]["num-examples"] == 4


@pytest.mark.parametrize(
    "training",
    [
        {"local_steps": 1},
        {"local_steps": 5},
        {"local_steps": 4, "momentum": 0.9},
        {"local_steps": 4, "momentum": 0.5, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_fedavg_equals_a_hand_written_loop(training):
    run = scenario(training={"algorithm": "fedavg", **training})
    reply = ask(InlineGrid(6), run, 1)
    assert same(sent(reply), by_hand(run, 1, 1))
    told = meaning(reply)
    assert (told["kind"], told["steps"]) == ("weights", run.training.local_steps)
    assert told["num_examples"] == 4 * run.training.local_steps
    assert told["momentum"] == run.training.momentum


def test_the_proximal_term_that_fedprox_sends_is_honoured():
    run = scenario(training={"algorithm": "fedavg", "local_steps": 4, "lr": 0.5})
    reply = sent(ask(InlineGrid(6), run, 1, **{"proximal-mu": 1.5}))
    expected = by_hand(run, 1, 1, proximal_mu=1.5)
    plain = by_hand(run, 1, 1)
    for name, value in expected.items():
        torch.testing.assert_close(reply[name], value, rtol=1e-5, atol=1e-6)
    assert not same(reply, plain)


def test_an_update_depends_on_seed_client_and_round_alone():
    run = scenario(training={"algorithm": "fedavg", "local_steps": 2})
    alone = sent(ask(InlineGrid(6), run, 2, round=3))
    busy = InlineGrid(6)
    for number, round in [(5, 1), (2, 1), (0, 2), (2, 2), (1, 3)]:
        torch.manual_seed(number)
        ask(busy, run, number, round=round)
    assert same(sent(ask(busy, run, 2, round=3)), alone)
    torch.rand(10)
    assert same(sent(ask(busy, run, 2, round=3)), alone)
    other_round, other_client = ask(busy, run, 2, round=4), ask(busy, run, 3, round=3)
    other_seed = ask(InlineGrid(6), run.model_copy(update={"seed": 4}), 2, round=3)
    for other in (other_round, other_client, other_seed):
        assert not same(sent(other), alone)


def test_clients_leave_the_global_generators_alone():
    run = scenario(task={"model": "resnet20"})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ask(InlineGrid(6), run, 0)
    assert torch.equal(torch.rand(3), expected)


def test_buffers_travel_and_are_named():
    run = scenario(task={"model": "resnet20"})
    arrays = initial(run)
    reply = ask(InlineGrid(6), run, 0, arrays=arrays)
    buffers = meaning(reply)["buffers"]
    assert buffers
    assert all(name.endswith(("running_mean", "running_var")) for name in buffers)
    assert list(sent(reply)) == list(arrays)  # Flower's clipping mods compare the order
    before, after = arrays.to_torch_state_dict(), sent(reply)
    assert all(not torch.equal(before[name], after[name]) for name in buffers)


def test_running_statistics_come_from_what_was_sent_not_from_the_client_before():
    run = scenario(task={"model": "resnet20"})
    grid = InlineGrid(6)
    first = sent(ask(grid, run, 0))
    ask(grid, run, 1)
    assert same(sent(ask(grid, run, 0)), first)


def test_a_client_evaluates_the_global_model_on_its_own_examples():
    run, grid = scenario(), InlineGrid(6)
    content = RecordDict({"arrays": initial(run), "config": config(run, **{"server-round": 1})})
    (reply,) = grid.send_and_receive([Message(content, 1002, MessageType.EVALUATE)])
    task = run.build_task()
    expected = task.evaluate(task.module(), 2)
    metrics = reply.content["metrics"]
    assert metrics["num-examples"] == expected["num_examples"] == task.num_examples(2)
    assert metrics["loss"] == pytest.approx(expected["loss"])


def test_a_node_says_which_client_it_is():
    (reply,) = InlineGrid(3).send_and_receive([Message(RecordDict(), 1002, MessageType.QUERY)])
    assert reply.content["client"]["client"] == 2


# --- defenses in a scenario -------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
@pytest.mark.parametrize(
    "defenses", [[], [{"name": "gaussian-noise", "sigma": 0}]], ids=["none", "sigma 0"]
)
def test_no_noise_leaves_the_reply_bit_identical(algorithm, defenses):
    training = {"algorithm": algorithm, "lr": 0.123}
    plain = ask(InlineGrid(6), scenario(training=training), 0)
    quiet = ask(InlineGrid(6), scenario(training=training, defenses=defenses), 0)
    assert same(sent(quiet), sent(plain))
    assert meaning(quiet) == meaning(plain)


def test_defenses_work_on_the_gradient_or_on_the_delta():
    sign = [{"name": "sign", "scale": 0.5}]
    gradient = sent(ask(InlineGrid(6), scenario(defenses=sign), 0))
    assert {abs(v) for value in gradient.values() for v in value.unique().tolist()} <= {0.0, 0.5}
    run = scenario(defenses=sign, training={"algorithm": "fedavg", "local_steps": 3})
    before, after = initial(run).to_torch_state_dict(), sent(ask(InlineGrid(6), run, 0))
    plain = by_hand(run, 0, 1)
    for name, value in after.items():
        expected = 0.5 * (plain[name] - before[name]).sign()
        torch.testing.assert_close(value - before[name], expected, rtol=0, atol=1e-6)


def test_defenses_run_in_the_order_they_are_listed():
    noise = {"name": "gaussian-noise", "sigma": 1.0}
    mask = {"name": "gradient-mask", "rate": 0.5}
    masked_last = sent(ask(InlineGrid(6), scenario(defenses=[noise, mask]), 0))
    assert all(int((v == 0).sum()) == v.numel() // 2 for v in masked_last.values())
    noisy_last = sent(ask(InlineGrid(6), scenario(defenses=[mask, noise]), 0))
    assert all(v.all() for v in noisy_last.values())


def test_noise_differs_between_clients_and_rounds_and_repeats_under_a_seed():
    run, grid = scenario(defenses=[{"name": "gaussian-noise", "sigma": 10.0}]), InlineGrid(6)
    draws = [sent(ask(grid, run, c, round=r))["head.bias"] for c, r in [(0, 1), (0, 2), (1, 1)]]
    assert not any(torch.allclose(a, b) for a, b in itertools.pairwise(draws))
    assert torch.equal(sent(ask(InlineGrid(6), run, 0))["head.bias"], draws[0])


def test_a_defense_keeps_its_state_on_its_client_across_rounds():
    run, grid = scenario(defenses=[{"name": "counting"}]), InlineGrid(6)
    plain = [sent(ask(InlineGrid(6), scenario(), 0, round=r))["head.bias"] for r in (1, 2, 3)]
    counted = [sent(ask(grid, run, 0, round=r))["head.bias"] for r in (1, 2, 3)]
    for round, (one, other) in enumerate(zip(counted, plain, strict=True)):
        torch.testing.assert_close(one, other + round)
    torch.testing.assert_close(
        sent(ask(grid, run, 1, round=3))["head.bias"],
        sent(ask(InlineGrid(6), scenario(), 1, round=3))["head.bias"],
    )


def test_two_defenses_of_a_kind_keep_states_apart():
    run, grid = scenario(defenses=[{"name": "counting"}, {"name": "counting"}]), InlineGrid(6)
    ask(grid, run, 0)
    twice = sent(ask(grid, run, 0, round=2))["head.bias"]
    plain = sent(ask(InlineGrid(6), scenario(), 0, round=2))["head.bias"]
    torch.testing.assert_close(twice, plain + 2)


def test_prepare_takes_part_in_the_training():
    doubled = sent(ask(InlineGrid(6), scenario(defenses=[{"name": "trainer"}]), 0))
    plain = sent(ask(InlineGrid(6), scenario(), 0))
    assert same(doubled, {name: 2 * value for name, value in plain.items()})
