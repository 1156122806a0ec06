"""Clients and server train at the rate of the round, and the adversary sees which it was."""

import pytest
import torch
from safetensors.torch import load_file
from support.rogues import Historian
from support.tiny import rows, scenario

from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.federation.strategies import build_strategy

pytestmark = pytest.mark.usefixtures("rogues", "unreported")

RATES = [0.4, 0.2, 0.1]


def scheduled(**training):
    schedule = {"name": "step", "every": 1, "gamma": 0.5}
    return scenario(
        training={"rounds": 3, "lr": 0.4, "lr_schedule": schedule, **training}, adversaries=[]
    )


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_every_round_is_trained_at_its_own_rate(tmp_path, algorithm):
    run = scheduled(algorithm=algorithm, clients=1, clients_per_round=1)
    simulate(run, tmp_path)
    task = run.build_task()
    module = task.module().train()
    for round, rate in enumerate(RATES, 1):
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        (batch,) = task.batches(0, round, batch_size=4, steps=1)
        optimizer.zero_grad()
        task.loss(module, batch.inputs, batch.labels).backward()
        optimizer.step()
    final = load_file(tmp_path / "checkpoint/global.safetensors")
    for name, value in module.named_parameters():
        torch.testing.assert_close(final[name], value.detach(), rtol=1e-5, atol=1e-6)


def test_an_interrupted_run_continues_at_the_rate_of_its_round(tmp_path):
    def interrupt(event, **fields):
        if event == "round" and fields["round"] == 2:
            raise KeyboardInterrupt

    run = scheduled()
    simulate(run, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(run, tmp_path / "cut", observer=interrupt)
    simulate(run, tmp_path / "cut", resume=True)
    assert rows(tmp_path / "cut", "utility.csv") == rows(tmp_path / "whole", "utility.csv")


def test_the_observation_has_the_rate_of_its_round(tmp_path):
    run = scheduled(algorithm="fedavg")
    table = run.to_dict() | {"adversaries": [{"name": "historian"}]}
    table["threat"] |= {"grants": "full", "follow": [5], "victims": [5]}
    Historian.rates.clear()
    simulate(type(run).parse(table), tmp_path)
    assert Historian.rates == RATES


def test_a_strategy_that_divides_by_the_rate_takes_none_that_changes():
    strategy = {"name": "QFedAvg"}
    for settings in ({"lr_schedule": "cosine"}, {"optimizer": "adam"}):
        run = scenario(training={"algorithm": "fedavg", "strategy": strategy, **settings})
        with pytest.raises(ScenarioError, match="divides updates by the clients' learning rate"):
            build_strategy(run)
