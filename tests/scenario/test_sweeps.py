"""Points of a sweep share what they have in common, and come to what they come to alone."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import binom
from support.tiny import rows, scenario, timeless

from fedsim.engine.inline import InlineEngine
from fedsim.engine.simulate import simulate
from fedsim.metrics import METRICS, baselines, registry, remembering
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.seeds import torch_generator
from fedsim.tasks import images
from fedsim.tasks.composition import natural
from fedsim.tasks.partition import Partition, as_partition

SWEEP = {"training.batch_size": [2, 4], "seed": [3, 4]}


def test_every_point_of_a_sweep_finds_what_it_finds_alone(tmp_path):
    run = scenario(threat={"grants": "full"}, sweep=SWEEP)
    simulate(run, tmp_path / "together")
    for number, point in enumerate(run.points()):
        alone = tmp_path / str(number)
        simulate(run, alone, points=[point])
        for table in (timeless, lambda folder: rows(folder, "utility.csv")):
            own = [row for row in table(tmp_path / "together") if row["point"] == point]
            assert own
            assert own == table(alone)


def test_data_are_loaded_and_cut_once_for_points_that_share_them(tmp_path, monkeypatch):
    loaded = []
    load = images.load
    monkeypatch.setattr(
        images, "load", lambda *given, **more: (loaded.append(1), load(*given, **more))[1]
    )
    run = scenario(sweep={"seed": [3, 4], "training.batch_size": [1, 2, 4]})
    engine = InlineEngine()
    tasks = [engine.task(point) for point in run.points().values()]
    assert len({id(task) for task in tasks}) == 2
    for task in tasks:
        task.num_examples(0)
    assert len(loaded) == 2


def test_clients_in_this_process_use_the_task_that_is_there(tmp_path, monkeypatch):
    loaded = []
    load = images.load
    run = scenario(task={"test_examples": 23})
    monkeypatch.setattr(
        images, "load", lambda *given, **more: (loaded.append(1), load(*given, **more))[1]
    )
    simulate(run, tmp_path / "run")
    assert len(loaded) == 3  # the rehearsal, the run folder's hashes, and the run


@pytest.mark.parametrize(("examples", "clients"), [(1, 1), (60, 1), (60, 7), (61, 60), (1000, 13)])
def test_equal_shares_are_those_of_the_library(examples, clients):
    labels, partition = np.arange(examples) % 3, as_partition("iid")
    ours = partition.cut(labels, clients, 5)
    theirs = Partition._cut(partition, labels, clients, 5)
    assert [share.tolist() for share in ours] == [share.tolist() for share in theirs]


def test_equal_shares_need_no_library(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from fedsim.tasks.partition import as_partition\n"
        "as_partition('iid').cut(np.arange(10), 2, 0)\n"
        "assert not {'datasets', 'flwr_datasets', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("held", "size", "steps"), [(10, 3, 8), (10, 10, 3), (5, 1, 7), (7, 4, 1)])
def test_batches_are_slices_of_permutations(held, size, steps):
    rng, chosen = torch_generator(0, "slices"), []
    while len(chosen) < steps:
        order = torch.randperm(held, generator=rng)[: held // size * size]
        chosen.extend(torch.split(order, size))
    ours = natural(held, size, steps, torch_generator(0, "slices"))
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in chosen[:steps]]


def test_the_chance_of_a_label_is_the_sum_over_its_counts():
    labels = torch.tensor([0, 0, 0, 1, 4])
    above = [float(binom.sf(k, 5, 1 / 7)) for k in range(3)]
    expected = (sum(above) + above[0] + above[0]) / 5
    spec = Spec(classes=7)
    assert METRICS["asr"].chance(Truth(labels=labels), spec) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(("limit", "drawn"), [(2**20, 16), (10, 24)])
def test_metrics_of_one_victim_share_their_guesses(limit, drawn, monkeypatch):
    monkeypatch.setattr(registry, "REMEMBERED", limit)
    calls = []

    def guess(truth, rng, *, informed):
        calls.append(informed)
        inputs = list(torch.rand(2, 1, 12, 12, generator=rng))
        return Reconstruction(inputs=inputs, label_counts={0: 1, 1: 1}, labels=torch.tensor([0, 1]))

    truth = Truth(inputs=list(torch.rand(2, 1, 12, 12)), labels=torch.tensor([0, 1]))
    spec = Spec(classes=3, input_shape=(1, 12, 12))
    names = ("mse", "asr")
    alone = [baselines(METRICS[name], truth, spec, guess, 7) for name in names]
    calls.clear()
    shared = remembering(guess)
    assert [baselines(METRICS[name], truth, spec, shared, 7) for name in names] == alone
    assert len(calls) == drawn
