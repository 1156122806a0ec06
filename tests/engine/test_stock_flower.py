"""fedsim's own engine, under its curious server, trains what stock Flower trains without it."""

import sys

import pytest
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedMedian, Krum
from safetensors.torch import load_file
from support.tiny import config, initial, rows, same, scenario, weights

from fedsim.engine.simulate import simulate
from fedsim.federation import client

CLIENTS, ROUNDS = 6, 2
ALL = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}
"""Without these, training begins with the nodes that have connected so far."""

STRATEGIES = {
    "FedMedian": ({}, FedMedian),
    "Krum": ({"num_malicious_nodes": 1}, Krum),
}
"""Strategies that do not average, by fedsim's name: their settings and Flower's class."""


def of(name):
    """The scenario of a strategy, all of whose clients are attacked each round."""
    settings, _ = STRATEGIES[name]
    return scenario(
        training={
            "algorithm": "fedavg",
            "strategy": {"name": name, **settings},
            "rounds": ROUNDS,
            "clients": CLIENTS,
            "clients_per_round": CLIENTS,
        },
        threat={"grants": "full"},
        adversaries=[{"name": "vandal"}, {"name": "llg"}],
    )


@pytest.fixture(scope="module")
def stock(rogues_everywhere, ray_session):
    """Final arrays by Flower's simulation, with a server that knows nothing of fedsim."""
    import ray
    from flwr.simulation import run_simulation

    server, found = ServerApp(), {}

    @server.main()
    def main(grid, context):
        for name, (settings, strategy) in STRATEGIES.items():
            run = of(name)
            result = strategy(**ALL, **settings).start(
                grid=grid,
                initial_arrays=initial(run),
                num_rounds=ROUNDS,
                train_config=config(run),
            )
            found[name] = weights(result.arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "shutdown", lambda: None)  # the session is that of other tests, too
        run_simulation(
            server_app=server,
            client_app=client.app,
            num_supernodes=CLIENTS,
            backend_config={"client_resources": {"num_cpus": 2, "num_gpus": 0}},
        )
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="Ray's workers are tested on POSIX")
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_that_does_not_average_trains_the_same(name, stock, tmp_path):
    run = of(name)
    simulate(run, tmp_path / "run")
    trained = load_file(tmp_path / "run" / "checkpoint" / "global.safetensors")
    arrays = {key: trained[key] for key in stock[name]}
    assert same(arrays, stock[name])
    assert not same(arrays, weights(initial(run)))
    assert {row["status"] for row in rows(tmp_path / "run")} == {"ok"}


@pytest.mark.skipif(sys.platform == "win32", reason="Ray's workers are tested on POSIX")
def test_the_strategies_differ(stock):
    assert not same(stock["FedMedian"], stock["Krum"])
