"""Flower's strategies of differential privacy, and what they take on trust."""

import pytest
from support.private import DP, spent
from support.tiny import rows, scenario

from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError

pytestmark = pytest.mark.usefixtures("unreported")


@pytest.mark.parametrize("where", ["Server", "Client"])
def test_flowers_dp_strategies_train_under_their_names(where, tmp_path):
    strategy = {
        "name": f"DifferentialPrivacy{where}SideFixedClipping",
        "noise_multiplier": 0.001,
        "clipping_norm": 1.0,
    }
    half = [{"name": "flower-fixed-clipping", "clipping_norm": 1.0}] if where == "Client" else []
    run = scenario(training={"algorithm": "fedavg", "strategy": strategy}, defenses=half)
    simulate(run, tmp_path / "run")
    assert {row["status"] for row in rows(tmp_path / "run")} == {"ok"}
    assert len(spent(tmp_path / "run", "accuracy")) == 3


@pytest.mark.parametrize(
    ("strategy", "defenses", "words"),
    [
        (f"{DP}ClientSideFixedClipping", [], "none does"),
        (
            f"{DP}ClientSideFixedClipping",
            [{"clipping_norm": 0.5}],
            "clipped to 1.0, and they are clipped to 0.5",
        ),
        (f"{DP}ClientSideFixedClipping", [{"clients": [0]}], "and a part of them is not"),
        (f"{DP}ClientSideAdaptiveClipping", [], "ServerSideAdaptiveClipping"),
        (f"{DP}ServerSideFixedClipping", [], ""),
    ],
)
def test_a_strategy_that_counts_on_clipping_clients_gets_them(strategy, defenses, words):
    settings = {"name": strategy, "noise_multiplier": 0.1}
    if strategy.endswith("FixedClipping"):
        settings["clipping_norm"] = 1.0
    listed = [{"name": "flower-fixed-clipping", **entry} for entry in defenses]
    run = scenario(training={"algorithm": "fedavg", "strategy": settings}, defenses=listed)
    if not words:
        preflight(run)
        return
    with pytest.raises(ScenarioError, match=words):
        preflight(run)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"num_sampled_clients": 3}, "leave it out"),
        ({"inner": f"{DP}ServerSideFixedClipping"}, "no other wrapper"),
        ({"inner": {"name": "FedTrimmedAvg", "beta": 2}}, "beta"),
        ({"accountant": 1}, "no such setting"),
    ],
)
def test_what_a_dp_strategy_takes_on_trust_is_checked(more, words):
    settings = {"name": f"{DP}ServerSideFixedClipping", "noise_multiplier": 0.1}
    strategy = {**settings, "clipping_norm": 1.0, **more}
    run = scenario(training={"algorithm": "fedavg", "strategy": strategy})
    with pytest.raises(ScenarioError, match=words):
        preflight(run)


def test_a_setting_without_a_default_is_named():
    strategy = {"name": f"{DP}ServerSideFixedClipping", "noise_multiplier": 0.1}
    with pytest.raises(ScenarioError, match=r"needs clipping_norm\. .*, clipping_norm = \.\.\."):
        preflight(scenario(training={"algorithm": "fedavg", "strategy": strategy}))


def test_dp_strategies_refuse_running_statistics():
    strategy = {
        "name": f"{DP}ServerSideFixedClipping",
        "noise_multiplier": 0.1,
        "clipping_norm": 1.0,
    }
    run = scenario(
        task={"model": "resnet20"}, training={"algorithm": "fedavg", "strategy": strategy}
    )
    with pytest.raises(ScenarioError, match="running statistics too"):
        preflight(run)


@pytest.mark.parametrize("key", ["fraction_train", "min_train_nodes", "weighted_by_key"])
def test_a_strategy_cannot_change_who_takes_part_behind_the_accountants_back(key):
    value = "weight" if key == "weighted_by_key" else 1
    run = scenario(training={"algorithm": "fedavg", "strategy": {"name": "FedAvg", key: value}})
    with pytest.raises(ScenarioError, match=rf"strategy.{key}.*clients_per_round"):
        preflight(run)


def test_a_clip_that_is_undone_does_not_count_as_one():
    strategy = {
        "name": f"{DP}ClientSideFixedClipping",
        "noise_multiplier": 0.1,
        "clipping_norm": 1.0,
    }
    clip, sign = {"name": "flower-fixed-clipping"}, {"name": "sign", "scale": 1.0}
    extra = {"algorithm": "fedavg", "strategy": strategy}
    preflight(scenario(training=extra, defenses=[clip, {"name": "top-k"}]))
    with pytest.raises(ScenarioError, match=r"clipping_norm = 1\.0 last"):
        preflight(scenario(training=extra, defenses=[clip, sign]))
    _, cautions = preflight(
        scenario(defenses=[{"name": "flower-local-dp", "delta": 0.9}], training={"clients": 6})
    )
    assert "delta = 0.9 with 6 clients" in cautions[0]
