"""Points of a sweep share what they have in common, and come to what they come to alone."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import binom
from support.tiny import rows, scenario, timeless

from fedsim.engine.simulate import simulate
from fedsim.metrics import METRICS, baselines, registry, remembering
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.scenario.built import build
from fedsim.seeds import torch_generator
from fedsim.tasks import images
from fedsim.tasks.partition import Partition, as_partition
from fedsim.tasks.partitioned import natural

SWEEP = {"training.batch_size": [2, 4], "seed": [3, 4]}


@pytest.mark.usefixtures("unreported")
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


@pytest.fixture
def made(monkeypatch):
    """What tasks load and build: "data" and "model", in order."""
    made = []
    load, model = images.load, images.Images.build
    monkeypatch.setattr(images, "load", lambda *a, **kw: (made.append("data"), load(*a, **kw))[1])
    monkeypatch.setattr(images.Images, "build", lambda task: (made.append("model"), model(task))[1])
    return made


def test_a_task_is_taken_over_while_its_settings_stay_the_same():
    run = scenario(sweep={"seed": [3, 4], "training.batch_size": [1, 2, 4]})
    built = [build(run)]
    for point in run.points().values():
        built.append(build(point, after=built[-1]))
    assert [one.task is built[0].task for one in built] == [True] * 4 + [False] * 3
    assert len({id(one.task) for one in built}) == 2


@pytest.mark.parametrize(
    "sweep", [{}, {"training.batch_size": [2, 4]}], ids=["one run", "two points"]
)
@pytest.mark.usefixtures("unreported")
def test_a_process_loads_data_and_builds_the_model_once(sweep, tmp_path, made):
    """Checks before the run, provenance, clients, attacks and the server share one task."""
    simulate(scenario(threat={"grants": "full"}, sweep=sweep), tmp_path / "run")
    assert sorted(made) == ["data", "model"]


def test_points_of_two_tasks_are_loaded_for_checks_runs_and_diagnosis(tmp_path, made):
    simulate(scenario(sweep={"seed": [3, 4]}), tmp_path / "run")
    # The run folder's provenance is the fifth, and the diagnosis at the end loads both once more.
    assert sorted(made) == ["data"] * 7 + ["model"] * 7


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
