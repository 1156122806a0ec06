"""Learning rates by round are those of torch's schedulers, a step of which is a round."""

import pytest
import torch
from torch.optim import lr_scheduler

from fedsim.scenario import Scenario
from fedsim.scenario.schedules import SCHEDULES
from fedsim.scenario.training import Training

ROUNDS = 12

TORCH = {
    "constant": (lambda of: lr_scheduler.ConstantLR(of, factor=1.0), {}),
    "step": (lambda of: lr_scheduler.StepLR(of, 5, 0.3), {"every": 5, "gamma": 0.3}),
    "exponential": (lambda of: lr_scheduler.ExponentialLR(of, 0.8), {"gamma": 0.8}),
    "cosine": (lambda of: lr_scheduler.CosineAnnealingLR(of, ROUNDS, 0.01), {"lr_min": 0.01}),
    "linear": (
        lambda of: lr_scheduler.LinearLR(of, 0.25, 1.0, ROUNDS - 1),
        {"start_factor": 0.25, "end_factor": 1.0},
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_has_the_rates_of_torchs(name):
    make, settings = TORCH[name]
    training = Training(rounds=ROUNDS, lr=0.5, lr_schedule={"name": name, **settings})
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = make(optimizer)
    for round in range(1, ROUNDS + 1):
        assert training.rate(round) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("rounds", [1, 2, 50])
def test_by_default_it_starts_at_lr_and_no_round_has_a_rate_of_zero(name, rounds):
    training = Training(rounds=rounds, lr=0.5, lr_schedule=name)
    assert training.rate(1) == 0.5
    assert all(0 < training.rate(round) <= 0.5 for round in range(1, rounds + 1))


def test_a_schedule_survives_the_way_to_a_file_and_to_a_client(tmp_path):
    run = Scenario.parse({"training": {"lr_schedule": {"name": "step", "gamma": 0.3}}})
    (tmp_path / "run.toml").write_text(run.to_toml())
    for other in (
        Scenario.load(tmp_path / "run.toml"),
        Scenario.model_validate_json(run.model_dump_json()),
    ):
        assert other.training.rate(11) == run.training.rate(11) == pytest.approx(0.03)


def test_a_sweep_compares_schedules():
    run = Scenario.parse({"sweep": {"training.lr_schedule": ["constant", "cosine"]}})
    found = {name: point.training.rate(5) for name, point in run.points().items()}
    assert found["training.lr_schedule=constant"] == 0.1
    assert found["training.lr_schedule=cosine"] < 0.02
