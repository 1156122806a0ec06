"""How many clients a GPU trains at once follows from the memory of one, as if there were a GPU."""

import re
import tomllib
from types import SimpleNamespace

import pytest
import torch
from support.tiny import scenario

from fedsim.engine import packing
from fedsim.engine.packing import packed
from fedsim.engine.simulate import _settled, simulate
from fedsim.errors import ScenarioError
from fedsim.scenario import Scenario
from fedsim.training.together import train_together


@pytest.fixture
def memory(monkeypatch):
    """A GPU of 100 MB on which one client takes 8 MB; its work is done on the CPU."""
    cuda = torch.cuda
    gpu = SimpleNamespace(
        total=100 * 10**6, each=8 * 10**6, trained=0, base=10**6, train=lambda *a, **k: None
    )

    def train(*args, **settings):
        gpu.trained += 1
        gpu.train(*args, **settings)

    monkeypatch.setattr(packing, "device_of", lambda engine, what: torch.device("cuda"))
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: self)
    monkeypatch.setattr(packing, "train_together", train)
    monkeypatch.setattr(packing, "check_gpus", lambda scenario, clients_too: None)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(cuda, "memory_allocated", lambda device: gpu.base)
    monkeypatch.setattr(
        cuda, "max_memory_allocated", lambda device: gpu.base + gpu.each * gpu.trained
    )
    properties = SimpleNamespace(total_memory=gpu.total)
    monkeypatch.setattr(cuda, "get_device_properties", lambda device: properties)
    return gpu


def run(clients=60, workers=1, training=None, **more):
    numbers = {"clients": clients, "clients_per_round": clients, "batch_size": 2}
    training = {**numbers, **(training or {})}
    return scenario(training=training, engine={"workers": workers, "vectorize": "auto"}, **more)


@pytest.mark.parametrize(
    ("clients", "workers", "number"),
    [(60, 1, 10), (60, 2, 5), (4, 1, 4), (6, 2, 3)],
)
def test_workers_share_the_memory_and_never_take_more_than_their_clients(
    clients, workers, number, memory
):
    assert packed(run(clients, workers)) == number
    assert memory.trained == 1


def test_a_client_that_needs_more_than_there_is_is_trained_alone(memory):
    memory.each = 10**9
    assert packed(run()) == 1


def test_clients_that_cannot_be_trained_at_once_are_not_measured(memory):
    assert packed(run(defenses=[{"name": "dp-sgd", "clip": 1.0, "noise_multiplier": 0.1}])) == 0
    assert memory.trained == 0


def test_a_client_that_does_not_fit_at_all_is_trained_alone_and_named_there(memory):
    def train(*args, **settings):
        raise torch.OutOfMemoryError("CUDA out of memory")

    memory.train = train
    assert packed(run()) == 1


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_model_that_allows_no_batch_of_models_is_trained_one_client_after_the_other(memory):
    memory.train = train_together
    speech = Scenario.parse(
        {"task": {"name": "speech"}, "training": {"clients": 2}, "engine": {"vectorize": "auto"}}
    )
    assert packed(speech) == 0


@pytest.mark.parametrize(
    ("sweep", "number"),
    [
        ({"training.lr": [0.1, 0.2]}, 10),
        ({"training.optimizer": ["sgd", "adam"]}, 0),
        ({"defenses": [[], [{"name": "dropout"}]]}, 0),
    ],
)
def test_no_point_of_a_sweep_is_refused_for_the_number_of_its_scenario(sweep, number, memory):
    assert packed(run(sweep=sweep, training={"algorithm": "fedavg"})) == number


def test_without_a_gpu_here_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    engine = {"device": "cuda", "vectorize": "auto", "workers": 2}
    with pytest.raises(ScenarioError, match=r'engine.device = "cuda", and this PyTorch'):
        packed(scenario(engine=engine))
    with pytest.raises(ScenarioError, match="State a number of clients"):
        packed(scenario(engine={**engine, "address": "10.0.0.1:6379"}))


def test_on_a_cpu_it_is_none_and_the_run_folder_says_so(tmp_path):
    simulate(run(clients=6, adversaries=[]), tmp_path)
    assert tomllib.loads((tmp_path / "scenario.toml").read_text())["engine"]["vectorize"] == 0


def test_a_resumed_run_keeps_the_number_that_its_first_part_measured(tmp_path, monkeypatch):
    asked = run(clients=6, adversaries=[])
    simulate(asked, tmp_path)
    monkeypatch.setattr("fedsim.engine.simulate.packed", lambda scenario: 5)  # another card
    settled = [
        _settled(asked, tmp_path, resume=resume).engine.vectorize for resume in (True, False)
    ]
    assert settled == [0, 5]
    simulate(asked, tmp_path, resume=True)
    written = tmp_path / "scenario.toml"
    assert tomllib.loads(written.read_text())["engine"]["vectorize"] == 0
    # What counts is what the run folder states, not what this machine would come to.
    written.write_text(re.sub(r"vectorize = 0", "vectorize = 3", written.read_text()))
    assert _settled(asked, tmp_path, resume=True).engine.vectorize == 3
