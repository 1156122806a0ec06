"""Strategies of fedsim: FedSGD's step, and clients that take part every round."""

import random

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file
from support.rogues import Historian
from support.tiny import rows, scenario

from fedsim.engine.inline import InlineGrid
from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.federation.strategies import FedSGD, Following

pytestmark = pytest.mark.usefixtures("rogues", "unreported")


# --- FedSGD -----------------------------------------------------------------------------------


def test_fedsgd_is_one_step_along_the_mean_gradient_weighted_by_examples():
    before = {"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([10.0])}
    gradients = [
        ({"w": torch.tensor([1.0, 0.0]), "mean": torch.tensor([1.0])}, 1),
        ({"w": torch.tensor([0.0, 4.0]), "mean": torch.tensor([5.0])}, 3),
    ]
    strategy = FedSGD(lr=0.5, buffers=["mean"])
    grid = InlineGrid(2)
    asked = strategy.configure_train(1, ArrayRecord(before), ConfigRecord(), grid)
    replies = [
        Message(
            RecordDict({"a": ArrayRecord(arrays), "m": MetricRecord({"num-examples": examples})}),
            reply_to=message,
        )
        for message, (arrays, examples) in zip(asked, gradients, strict=True)
    ]
    after, _ = strategy.aggregate_train(1, replies)
    assert after.to_torch_state_dict()["w"].tolist() == [1 - 0.5 * 0.25, 2 - 0.5 * 3]
    assert after.to_torch_state_dict()["mean"].tolist() == [4.0]


def test_fedsgd_without_replies_keeps_the_weights():
    strategy = FedSGD()
    strategy.configure_train(1, ArrayRecord({"w": torch.ones(1)}), ConfigRecord(), InlineGrid(2))
    assert strategy.aggregate_train(1, [])[0] is None


def test_one_round_of_fedsgd_equals_a_step_of_torch_on_all_batches(tmp_path):
    run = scenario(training={"rounds": 1, "clients_per_round": 6}, adversaries=[])
    simulate(run, tmp_path)
    task = run.build_task()
    module = task.module().train()
    optimizer = torch.optim.SGD(module.parameters(), lr=run.training.lr)
    batches = [task.batches(c, 1, batch_size=4, steps=1)[0] for c in range(6)]
    loss = task.loss(
        module, torch.cat([b.inputs for b in batches]), torch.cat([b.labels for b in batches])
    )
    loss.backward()
    optimizer.step()
    final = load_file(tmp_path / "checkpoint/global.safetensors")
    for name, value in module.named_parameters():
        torch.testing.assert_close(final[name], value.detach(), rtol=1e-5, atol=1e-6)


# --- following a victim -----------------------------------------------------------------------


def test_the_wrapper_answers_for_the_strategy_inside():
    wrapper = Following(FedAvg(min_train_nodes=7), [1])
    assert wrapper.min_train_nodes == 7
    with pytest.raises(AttributeError):
        _ = wrapper.no_such_thing


def test_a_followed_client_takes_part_every_round_and_the_number_stays():
    grid = InlineGrid(20)
    strategy = Following(
        FedAvg(fraction_train=0.2, fraction_evaluate=0.0, min_available_nodes=20), [3, 11]
    )
    taking_part = []
    for round in range(1, 21):
        random.seed(round)
        messages = strategy.configure_train(
            round, ArrayRecord({"w": torch.ones(1)}), ConfigRecord(), grid
        )
        taking_part.append([grid.clients[m.metadata.dst_node_id] for m in messages])
    assert all({3, 11} <= set(asked) for asked in taking_part)
    assert all(len(set(asked)) == len(asked) == 4 for asked in taking_part)
    others = {number for asked in taking_part for number in asked}
    assert len(others) > 10


def test_what_was_seen_of_a_followed_client_adds_up(tmp_path):
    run = scenario(
        training={"rounds": 4, "clients_per_round": 2},
        threat={"grants": ["HISTORY", "HEAD_GRADIENT"], "follow": [5], "victims": [5]},
        adversaries=[{"name": "historian"}],
    )
    Historian.lengths.clear()
    simulate(run, tmp_path)
    assert Historian.lengths == [0, 1, 2, 3]
    found = [row for row in rows(tmp_path) if row["metric"] == "asr"]
    assert [(row["round"], row["client"]) for row in found] == [(str(i), "5") for i in range(1, 5)]
    assert {row["inclusion"] for row in found} == {"1.0"}


def test_without_the_grant_history_stays_unseen(tmp_path):
    run = scenario(adversaries=[{"name": "historian"}], threat={"grants": "auxiliary"})
    Historian.lengths.clear()
    simulate(run, tmp_path)
    assert Historian.lengths == []
    assert {row["status"] for row in rows(tmp_path)} == {"denied"}


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("FedAvgM", "FedAvgM without momentum is FedAvg"),
        ({"name": "FedAvgM", "server_momentum": 0.5}, ""),
        ("FedTrimmedAvg", "beta = 0.2 of 4 clients is less than one"),
        ({"name": "FedTrimmedAvg", "beta": 0.25}, ""),
    ],
)
def test_a_strategy_that_averages_plainly_is_said(strategy, said):
    _, cautions = preflight(scenario(training={"algorithm": "fedavg", "strategy": strategy}))
    assert len(cautions) == bool(said)
    assert said in "".join(cautions)
