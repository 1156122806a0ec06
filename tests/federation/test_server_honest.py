"""The curious server changes nothing: training is bit-identical to the strategy alone."""

import random
from collections import Counter

import flwr.serverapp.strategy as flower_strategies
import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from safetensors.torch import load_file
from support.rogues import Vandal
from support.tiny import config, initial, reseeding, rows, same, scenario, weights

from fedsim import HonestButCurious
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.federation import client
from fedsim.federation.strategies import build_strategy, strategy_names
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import build
from fedsim.seeds import isolated

pytestmark = pytest.mark.usefixtures("rogues", "unreported")

DP = "DifferentialPrivacy"
SETTINGS = {
    "Bulyan": {},
    f"{DP}ClientSideAdaptiveClipping": {"noise_multiplier": 0.1, "clipped_count_stddev": 0.5},
    f"{DP}ClientSideFixedClipping": {"noise_multiplier": 0.1, "clipping_norm": 0.1},
    f"{DP}ServerSideAdaptiveClipping": {"noise_multiplier": 0.1, "clipped_count_stddev": 0.5},
    f"{DP}ServerSideFixedClipping": {"noise_multiplier": 0.1, "clipping_norm": 0.1},
    "FedAdagrad": {},
    "FedAdam": {},
    "FedAvg": {},
    "FedAvgM": {"server_momentum": 0.9},
    "FedMedian": {},
    "FedProx": {"proximal_mu": 0.5},
    "FedSGD": {},
    "FedTrimmedAvg": {},
    "FedYogi": {},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "QFedAvg": {},
}
MODS = {
    f"{DP}ClientSideAdaptiveClipping": adaptiveclipping_mod,
    f"{DP}ClientSideFixedClipping": fixedclipping_mod,
}
CANNOT_TRAIN = {"FedXgbBagging", "FedXgbCyclic"}
"""They put gradient-boosted trees together, which come as bytes; ours are arrays of weights."""


def app_for(name: str) -> ClientApp:
    """fedsim's client, with the mod that a client-side strategy of Flower's asks for."""
    if name not in MODS:
        return client.app
    app = ClientApp()
    app.train(mods=[MODS[name]])(client.train)
    return app


def test_every_strategy_of_flower_is_tried_or_known_not_to_train_a_network():
    flower = {name for name in flower_strategies.__all__ if name not in ("Strategy", "Result")}
    assert flower - set(strategy_names()) == CANNOT_TRAIN
    assert set(SETTINGS) == set(strategy_names()) == (flower - CANNOT_TRAIN) | {"FedSGD"}


@pytest.mark.parametrize("name", strategy_names())
def test_training_is_bit_identical_with_and_without_adversaries(name, tmp_path, monkeypatch):
    # Flower's QFedAvg collects garbage at every reply, for half a second each in a test session.
    monkeypatch.setattr("gc.collect", lambda *_: 0)
    run = scenario(
        training={
            "algorithm": "fedsgd" if name == "FedSGD" else "fedavg",
            "strategy": {"name": name, **SETTINGS[name]},
            "clients_per_round": 5,
            "evaluate_clients": 0 if name in MODS else 2,
            "rounds": 3,
        },
        threat={"grants": "full"},
        adversaries=[{"name": "vandal"}, {"name": "llg"}],
    )

    def trained(curious):
        strategy = build_strategy(run)
        if curious:
            built, ledger = build(run), Ledger.create(tmp_path, run)
            campaign = Campaign(built, ledger, InlineExecutor(AttackRunner(built)))
            strategy = HonestButCurious(strategy, campaign=campaign)
        result = strategy.start(
            grid=InlineGrid(run.training.clients, app_for(name)),
            initial_arrays=initial(run),
            num_rounds=run.training.rounds,
            train_config=config(run),
            evaluate_config=config(run),
            evaluate_fn=reseeding(run),
        )
        drawn = (random.random(), np.random.rand(), float(torch.rand(())))
        return result, drawn

    (alone, drawn_alone), (wrapped, drawn_wrapped) = trained(False), trained(True)
    assert same(weights(wrapped.arrays), weights(alone.arrays))
    assert not same(weights(wrapped.arrays), weights(initial(run)))
    assert all(torch.isfinite(value).all() for value in weights(wrapped.arrays).values())
    assert wrapped.train_metrics_clientapp == alone.train_metrics_clientapp
    assert wrapped.evaluate_metrics_clientapp == alone.evaluate_metrics_clientapp
    assert drawn_wrapped == drawn_alone
    assert Counter(row["status"] for row in rows(tmp_path)) == {"ok": 3 * 5 * (6 + 8)}


def test_buffers_are_left_alone_too(tmp_path):
    run = scenario(
        task={"model": "resnet20"},
        training={"clients": 2, "clients_per_round": 2, "rounds": 2},
        threat={"grants": "full"},
        adversaries=[{"name": "vandal"}],
    )
    quiet = run.model_copy(update={"adversaries": []})
    simulate(run, tmp_path / "attacked")
    simulate(quiet, tmp_path / "alone")
    final = "checkpoint/global.safetensors"
    attacked = load_file(tmp_path / "attacked" / final)
    assert same(attacked, load_file(tmp_path / "alone" / final))
    assert any("running_mean" in name for name in attacked)
    assert {row["status"] for row in rows(tmp_path / "attacked")} == {"ok"}


def test_server_side_privacy_is_not_offered_for_gradients():
    # Flower's wrappers clip what a reply adds to the weights; a gradient is no such reply.
    for name in MODS | SETTINGS:
        if name.startswith(DP):
            run = scenario(training={"strategy": {"name": name, **SETTINGS[name]}})
            with pytest.raises(ScenarioError, match="fedsgd"):
                build_strategy(run)


def test_the_vandal_really_does_damage():
    from fedsim import testing

    seen = testing.example(2)
    weight = next(seen.model.module.parameters())
    with isolated(0, "vandal"):
        Vandal().reconstruct(seen, testing.job())
    assert not seen.gradient
    assert bool((weight == 7).all())
