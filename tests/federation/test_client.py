"""A client trains as its algorithm says, from (seed, client, round) alone; defenses act on what
it sends."""

import itertools
import re

import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from support.rogues import Counting, Trainer
from support.tiny import ask, config, initial, meaning, same, scenario, sent

from defenses import GaussianNoise, Sign
from fedsim import Update
from fedsim.engine.inline import InlineGrid
from fedsim.errors import PluginError
from fedsim.federation import client
from fedsim.federation.client import defend
from fedsim.seeds import torch_generator

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


# --- defend, in someone's own Flower project --------------------------------------------------

BEFORE = {"w": torch.tensor([1.0, 2.0, 3.0]), "count": torch.tensor(3)}
AFTER = {"w": torch.tensor([1.5, 1.0, 3.0]), "count": torch.tensor(4)}


def foreign(*mods) -> ClientApp:
    """A client that always sends AFTER."""
    app = ClientApp()

    @app.train(mods=list(mods))
    @app.evaluate(mods=list(mods))
    def reply(message, context):
        content = {"its-own": ArrayRecord(AFTER), "m": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def asked(app, *, grid=None, round=1, kind=MessageType.TRAIN):
    content = RecordDict({"a": ArrayRecord(BEFORE), "c": ConfigRecord({"server-round": round})})
    (reply,) = (grid or InlineGrid(2, app)).send_and_receive([Message(content, 1001, kind)])
    return reply


def test_defend_changes_the_delta_of_the_weights_under_their_own_key():
    reply = asked(foreign(defend(Sign(scale=0.25))))
    after = reply.content["its-own"].to_torch_state_dict()
    assert after["w"].tolist() == [1.25, 1.75, 3.0]
    assert after["count"].dtype == torch.int64
    assert int(after["count"]) == 4


def test_defend_without_noise_changes_no_bit():
    for defenses in ([], [GaussianNoise(sigma=0)]):
        after = asked(foreign(defend(*defenses))).content["its-own"].to_torch_state_dict()
        assert same(dict(after), AFTER)


def test_defend_draws_by_seed_client_and_round():
    def noise(seed, round):
        app = foreign(defend(GaussianNoise(sigma=1), seed=seed))
        return sent(asked(app, round=round))["w"]

    assert torch.equal(noise(0, 1), noise(0, 1))
    assert not torch.equal(noise(0, 1), noise(1, 1))
    assert not torch.equal(noise(0, 1), noise(0, 2))


def test_noise_that_nobody_gave_a_seed_for_cannot_be_subtracted():
    received, sent_without = BEFORE["w"], AFTER["w"]
    guesses = []
    for seed in (None, 0):
        app = foreign(defend(GaussianNoise(sigma=1), seed=seed))
        noisy = sent(asked(app))["w"]
        rng = torch_generator(0, "defense.0.gaussian-noise", 1, 1)
        change = GaussianNoise(sigma=1).protect(zeros(received), rng, {})
        guesses.append(noisy - change.tensors["w"])
    assert torch.allclose(guesses[1], sent_without, atol=1e-6), "whoever knows a seed can"
    assert not torch.allclose(guesses[0], sent_without, atol=0.1)


def test_noise_without_a_seed_is_new_in_every_reply():
    app = foreign(defend(GaussianNoise(sigma=1)))
    first, again = (sent(asked(app))["w"] for _ in range(2))
    assert not torch.allclose(first, again, atol=0.1)


def zeros(like):
    return Update(tensors={"w": torch.zeros_like(like)}, kind="delta")


@pytest.mark.parametrize(
    ("received", "said"),
    [
        ({"v": torch.ones(3)}, "nothing was received"),
        ({"w": torch.ones(2)}, r"\(2,\) was received"),
    ],
)
def test_defend_says_which_array_does_not_fit_what_was_received(received, said):
    content = RecordDict({"a": ArrayRecord(received), "c": ConfigRecord({"server-round": 1})})
    grid = InlineGrid(2, foreign(defend(Sign())))
    (reply,) = grid.send_and_receive([Message(content, 1001, MessageType.TRAIN)])
    assert reply.has_error()
    assert re.search(rf"array 'w' has shape \(3,\), and {said}", reply.error.reason)


def test_a_defense_that_empties_its_state_has_none_the_next_time():
    class Once(Sign):
        def protect(self, update, rng, state):
            seen.append(dict(state))
            if state:
                state.clear()
            else:
                state["kept"] = torch.ones(1)
            return update

    seen = []
    grid = InlineGrid(2, foreign(defend(Once())))
    for round in (1, 2, 3):
        asked(None, grid=grid, round=round)
    assert [bool(state) for state in seen] == [False, True, False]


def test_defend_keeps_a_defenses_state_on_the_client():
    grid = InlineGrid(2, foreign(defend(Counting())))
    values = [float(sent(asked(None, grid=grid, round=r))["w"][2]) for r in (1, 2, 3)]
    assert values == [3.0, 4.0, 5.0]


def test_defend_leaves_evaluation_and_errors_alone():
    app = foreign(defend(Sign()))
    assert same(sent(asked(app, kind=MessageType.EVALUATE)), AFTER)

    failing = ClientApp()

    @failing.train(mods=[defend(Sign())])
    def train(message, context):
        return Message(Error(code=7, reason="no data"), reply_to=message)

    assert asked(failing).error.reason == "no data"


def test_a_defense_that_trains_is_refused_by_defend():
    with pytest.raises(PluginError, match="'trainer' changes local training"):
        defend(Sign(), Trainer())


def test_defend_says_what_it_cannot_protect():
    app = ClientApp()

    @app.train(mods=[defend(Sign())])
    def train(message, context):
        arrays = {"a": ArrayRecord(AFTER), "b": ArrayRecord(AFTER)}
        return Message(RecordDict(arrays), reply_to=message)

    reply = asked(app)
    assert reply.has_error()
    assert "one ArrayRecord" in reply.error.reason


def test_protect_without_defenses_is_the_very_same_update():
    from fedsim.records import Update

    update = Update(tensors={"w": torch.ones(2)}, kind="weights")
    assert client.protect(update, {}, [], (0, 1, 0), RecordDict()) is update
