"""How many clients a GPU trains at once follows from the memory of one, as if there were a GPU."""

import tomllib
from types import SimpleNamespace

import pytest
import torch
from support.tiny import scenario

from fedsim.engine import packing
from fedsim.engine.packing import packed
from fedsim.engine.simulate import simulate


@pytest.fixture
def memory(monkeypatch):
    """A GPU of 100 MB on which one client takes 8 MB; its work is done on the CPU."""
    cuda = torch.cuda
    gpu = SimpleNamespace(total=100 * 10**6, each=8 * 10**6, trained=0, base=10**6)

    def train(*args, **settings):
        gpu.trained += 1

    monkeypatch.setattr(packing, "device_of", lambda engine, what: torch.device("cuda"))
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: self)
    monkeypatch.setattr(packing, "train_together", train)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(cuda, "memory_allocated", lambda device: gpu.base)
    monkeypatch.setattr(
        cuda, "max_memory_allocated", lambda device: gpu.base + gpu.each * gpu.trained
    )
    properties = SimpleNamespace(total_memory=gpu.total)
    monkeypatch.setattr(cuda, "get_device_properties", lambda device: properties)
    return gpu


def run(clients=60, workers=1, **more):
    training = {"clients": clients, "clients_per_round": clients, "batch_size": 2}
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


def test_on_a_cpu_it_is_none_and_the_run_folder_says_so(tmp_path):
    simulate(run(clients=6, adversaries=[]), tmp_path)
    assert tomllib.loads((tmp_path / "scenario.toml").read_text())["engine"]["vectorize"] == 0
