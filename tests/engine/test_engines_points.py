"""What holds on each engine: a failing client ends its own point; sums are in one thread."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.tiny import rows, scenario

from fedsim.engine.flower import _environment
from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError, ScenarioError

pytestmark = pytest.mark.usefixtures("unreported")


@pytest.mark.usefixtures("rogues_everywhere")
@pytest.mark.parametrize("engine", ["inline", "flower"])
def test_a_client_that_fails_ends_its_own_point_alone(engine, tmp_path):
    faulty = {"name": "faulty", "how": "raise", "client": 1, "round": 1}
    run = scenario(
        sweep={"defenses.0.client": [1, 9]},
        defenses=[faulty],
        training={"rounds": 1, "clients": 2, "clients_per_round": 2, "on_failure": "stop"},
        engine={"name": engine, "workers": 1},
    )
    with pytest.raises(ClientError, match="1 of 2 points"):
        simulate(run, tmp_path / "run")
    whole = {row["point"] for row in rows(tmp_path / "run") if row["status"] == "ok"}
    assert "defenses.0.client=9" in whole


@pytest.mark.usefixtures("ray_session")
def test_a_session_of_one_run_has_no_processes_that_only_clusters_need():
    below = psutil.Process().children(recursive=True)
    scripts = {Path(word).name for process in below for word in process.cmdline()}
    assert "raylet" in scripts
    assert not scripts & {"monitor.py", "dashboard.py", "log_monitor.py"}


def test_flowers_processes_sum_in_one_thread_whatever_the_environment_says(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "3")
    command = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    said = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "1"


def test_a_sweep_over_what_all_points_share_says_that_it_has_no_effect(tmp_path):
    said = []

    def observer(event, **fields):
        if event == "caution":
            said.append(fields["text"])

    sweep = {"engine.workers": [1, 2], "engine.deterministic": [True], "engine.device": ["cpu"]}
    few = {"rounds": 1, "clients": 2, "clients_per_round": 2}
    simulate(scenario(adversaries=[], training=few, sweep=sweep), tmp_path, observer=observer)
    (only,) = said
    assert only.startswith("sweep: engine.workers has no effect")


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"name": "inline", "workers": 2}, 'engine.workers = 2 has no effect on engine "inline"'),
        ({"workers": 1, "attack_workers": 3}, "engine.attack_workers = 3 has no effect"),
        (
            {"name": "flower", "workers": 2, "attack_workers": 2, "address": "10.0.0.1:6379"},
            "engine.address = 10.0.0.1:6379 and engine.attack_workers = 2 have no effect",
        ),
        ({"workers": 2, "attack_workers": 2}, ""),
        ({"name": "inline"}, ""),
    ],
)
def test_workers_that_an_engine_does_not_have_are_named(engine, expected):
    _, cautions = preflight(scenario(engine=engine))
    if not expected:
        assert cautions == []
        return
    (only,) = cautions
    assert only.startswith(expected)
    assert only.endswith('Set engine.name = "ray"')


@pytest.mark.parametrize("cpus", [64.0, 0.0])
def test_a_client_without_a_place_in_flowers_simulation_is_refused(cpus):
    engine = {"workers": 2, "cpus_per_client": cpus}
    with pytest.raises(ScenarioError) as told:
        preflight(scenario(engine={"name": "flower", **engine}))
    assert str(told.value) == (
        f"engine.cpus_per_client = {cpus:g}, and Flower's simulation has engine.workers = 2 CPUs: "
        "expected more than 0 and at most as many. Change one of the two"
    )
    preflight(scenario(engine=engine))  # fedsim's own session on Ray has a place for every worker


def test_a_client_of_flowers_simulation_has_no_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    engine = {"name": "flower", "workers": 2, "gpus_per_client": 3}
    with pytest.raises(ScenarioError, match=r"gpus_per_client = 3, and PyTorch finds 2 GPUs"):
        preflight(scenario(engine=engine))
