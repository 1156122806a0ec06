"""FedSGD with a server optimizer: the mean gradient takes the place of the clients' change."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from safetensors.torch import load_file
from support.tiny import rows, scenario, timeless

from fedsim.engine.inline import InlineGrid
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.federation.checkpoint import STATE
from fedsim.federation.fedsgd import RATES
from fedsim.federation.strategies import build_strategy

pytestmark = pytest.mark.usefixtures("unreported")

LR, BETA_1, BETA_2, TAU = 0.05, 0.9, 0.99, 1e-3


def run_of(strategy, **changes):
    training = {"strategy": strategy, "lr": LR, **changes.pop("training", {})}
    return scenario(training=training, **changes)


def stepped(strategy, gradients, lr=LR):
    """Weights after each round of server steps along these mean gradients, by definition.

    Kingma and Ba (2015) with the bias correction of Flower, which counts rounds from 1.
    """
    w, m, v, after = np.zeros(2), np.zeros(2), np.zeros(2), []
    for round, g in enumerate(gradients, 1):
        rate = lr
        if strategy == "FedAvgM":
            m = 0.5 * m + g if round > 1 else g
            w = w - rate * m
        else:
            beta = {"FedAdagrad": 0.0}.get(strategy, BETA_1)
            m = beta * m + (1 - beta) * g
            if strategy == "FedAdam":
                v = BETA_2 * v + (1 - BETA_2) * g**2
                rate *= np.sqrt(1 - BETA_2 ** (round + 1)) / (1 - BETA_1 ** (round + 1))
            elif strategy == "FedYogi":
                v = v - (1 - BETA_2) * g**2 * np.sign(v - g**2)
            else:
                v = v + g**2
            w = w - rate * m / (np.sqrt(v) + TAU)
        after.append(w)
    return after


@pytest.mark.parametrize("name", RATES)
def test_the_optimizer_steps_along_the_mean_gradient_and_buffers_are_averaged(name):
    table = {"name": name, **({"server_momentum": 0.5} if name == "FedAvgM" else {})}
    strategy = build_strategy(run_of(table, training={"clients": 2, "clients_per_round": 2}),
                              ["mean"])  # fmt: skip
    grid = InlineGrid(2)
    gradients = [np.array([1.0, -2.0]), np.array([3e-6, 4.0]), np.array([-1.0, 0.5])]
    arrays = {"w": torch.zeros(2), "mean": torch.tensor([10.0])}
    for round, (g, expected) in enumerate(zip(gradients, stepped(name, gradients), strict=True), 1):
        asked = strategy.configure_train(round, ArrayRecord(arrays), ConfigRecord(), grid)
        # Weighted by examples: 1 and 3 of 4.
        parts = [(torch.tensor(4 * g) * share, n) for share, n in ((0.25, 1), (0.25, 3))]
        replies = [
            Message(
                RecordDict(
                    {
                        "a": ArrayRecord({"w": part.float(), "mean": torch.tensor([float(n)])}),
                        "m": MetricRecord({"num-examples": n, "train_loss": float(n)}),
                    }
                ),
                reply_to=message,
            )
            for message, (part, n) in zip(asked, parts, strict=True)
        ]
        after, metrics = strategy.aggregate_train(round, replies)
        arrays = dict(after.to_torch_state_dict())
        assert arrays["w"].dtype == torch.float32
        assert arrays["w"].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
        assert arrays["mean"].tolist() == [2.5]
        assert metrics["train_loss"] == 2.5


def test_without_replies_the_weights_stay():
    strategy = build_strategy(run_of("FedAdam"))
    strategy.configure_train(1, ArrayRecord({"w": torch.ones(1)}), ConfigRecord(), InlineGrid(6))
    assert strategy.aggregate_train(1, [])[0] is None


def test_fedavgm_without_momentum_is_plain_fedsgd(tmp_path):
    for strategy, lr in (("FedAvgM", 1.0), ("FedAvgM", 0.3), ("FedSGD", 0.3), ("FedSGD", 1.0)):
        run = run_of(strategy, training={"lr": lr}, adversaries=[])
        simulate(run, tmp_path / f"{strategy}{lr}")
    for lr in (0.3, 1.0):
        ours, plain = (
            load_file(tmp_path / f"{name}{lr}/checkpoint/global.safetensors")
            for name in ("FedAvgM", "FedSGD")
        )
        for name, value in plain.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)


NORMALISED = {"model": {"name": "convnet", "widths": [8, 8]}}
"""A small network with batch normalisation, whose statistics are buffers."""


@pytest.mark.parametrize(
    "strategy", ["FedAdagrad", "FedAdam", {"name": "FedAvgM", "server_momentum": 0.9}, "FedYogi"]
)
def test_an_interrupted_run_goes_on_with_the_optimizers_state(tmp_path, strategy):
    run = run_of(
        strategy, training={"rounds": 3, "lr_schedule": "cosine"}, task=NORMALISED,
        adversaries=[],
    )  # fmt: skip
    assert resumed_after(run, tmp_path) == [2]


WORDS = {
    "FedAvgM": {"server_momentum": 0.9},
    "FedProx": {"proximal_mu": 0.5},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
}
"""Settings with which a strategy does what it is for."""


@pytest.mark.parametrize("name", sorted({*STATE} - {"FedSGD"}))
def test_every_strategy_goes_on_after_a_kill_as_if_nothing_had_been(tmp_path, name):
    training = {"algorithm": "fedavg", "local_steps": 2, "rounds": 3, "clients_per_round": 6}
    strategy = {"name": name, **WORDS.get(name, {})}
    run = run_of(strategy, training=training, task=NORMALISED, adversaries=[])
    assert resumed_after(run, tmp_path) == [2]


def resumed_after(run, tmp_path):
    """Interrupt a run after round 2 and resume it; returns the round that it went on after.

    Its weights, the strategy's state and the utility of all rounds are those of a whole run.
    """

    def interrupt(event, **fields):
        if event == "round" and fields["round"] == 2:
            raise KeyboardInterrupt

    simulate(run, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(run, tmp_path / "cut", observer=interrupt)
    resumed = []
    simulate(run, tmp_path / "cut", resume=True,
             observer=lambda event, **fields: resumed.append((event, fields)))  # fmt: skip
    whole, cut = (load_file(tmp_path / at / "checkpoint/global.safetensors")
                  for at in ("whole", "cut"))  # fmt: skip
    assert all(torch.equal(value, cut[name]) for name, value in whole.items())
    assert rows(tmp_path / "cut", "utility.csv") == rows(tmp_path / "whole", "utility.csv")
    return [fields["round"] for event, fields in resumed if event == "resumed"]


@pytest.mark.parametrize("secure", [False, "masked-sum"])
def test_adversaries_see_the_gradients_and_the_servers_rate(tmp_path, secure):
    run = run_of(
        "FedAdam",
        training={"secure_aggregation": secure, "lr_schedule": "exponential"},
        threat={"grants": "white-box"},
    )
    simulate(run, tmp_path)
    assert {row["status"] for row in rows(tmp_path)} == {"ok"}


def test_ray_and_inline_train_alike(tmp_path, ray_session):
    for workers in (1, 2):
        run = run_of("FedYogi", engine={"workers": workers, "attack_workers": 1})
        simulate(run, tmp_path / str(workers))
    assert timeless(tmp_path / "1") == timeless(tmp_path / "2")
    assert rows(tmp_path / "1", "utility.csv") == rows(tmp_path / "2", "utility.csv")


def test_the_servers_rate_is_set_in_one_place():
    for name, key in RATES.items():
        assert build_strategy(run_of(name)).lr == LR
        with pytest.raises(
            ScenarioError, match=rf"strategy\.{key}: under FedSGD the server's lear"
        ):
            build_strategy(run_of({"name": name, key: 0.5}))
    with pytest.raises(ScenarioError, match=r"a server optimizer \(FedAdagrad, FedAdam, FedAvgM"):
        build_strategy(run_of("Krum"))
