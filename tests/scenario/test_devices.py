"""Where clients and attacks compute, and what is said where there is no such device."""

import re
import tomllib

import pytest
import torch
from support.tiny import scenario

from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.scenario.devices import device_of, settled
from fedsim.scenario.settings import Engine


@pytest.fixture
def gpu(monkeypatch):
    """As if PyTorch found two GPUs."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)


@pytest.fixture
def none(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def devices(**table):
    engine = Engine(**table)
    return [str(device_of(engine, what)) for what in ("client", "attack")]


def test_auto_is_a_gpu_where_there_is_one(gpu):
    assert devices() == ["cuda", "cuda"]
    assert settled(Engine()).device == "cuda"


def test_auto_is_the_cpu_elsewhere(none):
    assert devices() == ["cpu", "cpu"]
    assert settled(Engine()).device == "cpu"


def test_with_reserved_gpus_auto_is_a_gpu_for_what_reserves_them(gpu):
    assert devices(gpus_per_attack=0.5) == ["cpu", "cuda"]
    assert devices(gpus_per_client=0.5) == ["cuda", "cpu"]
    assert settled(Engine(gpus_per_attack=0.5)).device == "auto"


def test_a_named_device_is_that_of_both(gpu):
    assert devices(device="cuda:1", gpus_per_client=1) == ["cuda:1", "cuda:1"]
    assert devices(device="cpu") == ["cpu", "cpu"]


def test_a_gpu_that_is_not_there_is_refused_with_what_torch_sees(none):
    with pytest.raises(ScenarioError) as told:
        preflight(scenario(engine={"device": "cuda"}))
    seen = f"this PyTorch ({torch.__version__}"
    assert str(told.value).startswith(f'engine.device = "cuda", and {seen}')
    assert str(told.value).endswith('Set engine.device = "cpu", or leave it out')
    elsewhere = {"device": "cuda", "address": "10.0.0.1:6379"}
    assert preflight(scenario(engine=elsewhere))


def test_a_number_beyond_the_gpus_is_refused(gpu):
    with pytest.raises(ScenarioError) as told:
        preflight(scenario(engine={"device": "cuda:2"}))
    assert str(told.value) == (
        'engine.device = "cuda:2", and PyTorch finds cuda:0 to cuda:1. '
        'Set engine.device to a GPU that is there, or to "cpu"'
    )


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "CPU", "mps"])
def test_other_names_are_refused(device):
    with pytest.raises(ScenarioError, match=re.escape("engine.device")):
        scenario(engine={"device": device})


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_ray_cannot_choose_a_gpu_where_the_device_is_named(gpu, device):
    with pytest.raises(ScenarioError, match=r"gpus_per_client = 0.5 lets Ray choose a GPU, and"):
        preflight(scenario(engine={"device": device, "gpus_per_client": 0.5}))


@pytest.mark.usefixtures("unreported")
def test_the_run_keeps_its_device_when_it_is_resumed(tmp_path, monkeypatch):
    simulate(scenario(engine={"device": "cpu", "workers": 1}), tmp_path / "run")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    asked, found = scenario(engine={"device": "auto", "workers": 1}), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        from fedsim.engine.simulate import _settled

        found += [
            _settled(asked, tmp_path / "run", resume=resume).engine.device
            for resume in (True, False)
        ]
    assert found == ["cpu", "cuda"]
    assert tomllib.loads((tmp_path / "run/scenario.toml").read_text())["engine"]["device"] == "cpu"


def test_workers_on_gpus_share_them_evenly(monkeypatch):
    from fedsim.engine.ray import session

    monkeypatch.setattr(session.ray, "cluster_resources", lambda: {"GPU": 2.0})
    shares = session._with_shares(Engine(device="cuda"), 3, 2)
    assert (shares.gpus_per_client, shares.gpus_per_attack) == (0.3333, 0.3333)  # three on one GPU
    shares = session._with_shares(Engine(device="cuda", gpus_per_client=0.5), 2, 2)
    assert (shares.gpus_per_client, shares.gpus_per_attack) == (0.5, 0.5)
    shares = session._with_shares(Engine(device="cpu"), 3, 2)
    assert (shares.gpus_per_client, shares.gpus_per_attack) == (0.0, 0.0)
    shares = session._with_shares(Engine(device="cuda:1"), 3, 2)
    assert (shares.gpus_per_client, shares.gpus_per_attack) == (0.0, 0.0)
