"""Workers that Ray has no place for, or that cannot start, end a run with an error, or leave their
work to the others."""

import math
import sys
import time
import types

import pytest
import ray
import torch
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from ray.exceptions import OutOfMemoryError
from support.interceptions import intercepted
from support.tiny import config, initial, scenario

import fedsim
from adversaries import LLG
from fedsim.attacking.attack import Attack, AttackRunner, Outcome
from fedsim.engine.inline import InlineGrid
from fedsim.engine.ray import places, session
from fedsim.engine.ray.attacks import RayExecutor
from fedsim.engine.ray.clients import ClientWorker, RayGrid
from fedsim.engine.ray.pool import AttackPool
from fedsim.engine.simulate import simulate
from fedsim.errors import EngineError, FedsimError, ScenarioError
from fedsim.scenario.built import build
from fedsim.scenario.settings import Engine

pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    pytest.mark.skipif(sys.platform == "win32", reason="Ray's workers are tested on POSIX"),
]


def client_worker(cpus):
    return ray.remote(ClientWorker).options(num_cpus=cpus).remote()


def settings(seconds):
    return Engine(cpus_per_client=50, place_timeout=seconds)


def messages(run, grid):
    """A round's messages to all clients."""
    content = {"arrays": initial(run), "config": config(run, **{"server-round": 1})}
    return [Message(RecordDict(content), node, MessageType.TRAIN) for node in grid.clients]


def arrays(replies) -> list[dict[str, bytes]]:
    return [
        {name: array.numpy().tobytes() for name, array in record.items()}
        for reply in replies
        for record in reply.content.values()
        if isinstance(record, ArrayRecord)
    ]


def test_a_client_worker_without_a_place_leaves_its_clients_to_the_others():
    run, said = scenario(), list[str]()
    here = InlineGrid(6)
    expected = arrays(here.send_and_receive(messages(run, here)))
    pool = [client_worker(1), client_worker(50)]
    grid = RayGrid(6, pool, lambda: client_worker(50), settings(2), said.append)
    try:
        assert arrays(grid.send_and_receive(messages(run, grid))) == expected
        assert arrays(grid.send_and_receive(messages(run, grid))) == expected
    finally:
        for actor in pool:
            ray.kill(actor)
    (warning,) = said
    assert "no place for 1 of 2 client workers for 2 s: the run goes on with the others" in warning


def test_clients_whose_workers_all_lack_a_place_end_the_run():
    pool = [client_worker(50), client_worker(50)]
    grid = RayGrid(6, pool, lambda: client_worker(50), settings(1), pytest.fail)
    try:
        with pytest.raises(EngineError, match=r"any of 2 client workers for 1 s\. Each needs 50"):
            list(grid.send_and_receive(messages(scenario(), grid)))
    finally:
        for actor in pool:
            ray.kill(actor)


def test_attacks_that_have_ended_are_collected_after_the_workers_were_left(monkeypatch):
    run = scenario()
    pool = AttackPool(0.0)
    executor = RayExecutor(AttackRunner(build(run)), 2, pool)
    executor.submit([[Attack(intercepted(run, client), 0, 1.0)] for client in (0, 1)])
    assert ray.wait([*executor._running], num_returns=2, timeout=100)[1] == []
    executor._replace(1)  # this one is starting
    executor.cancel()
    assert len([*executor.collect(wait=False)]) == 2
    left = [*pool._idle]
    assert len(left) == 2  # also the one that is starting
    monkeypatch.setattr(session, "session_folder", lambda: "")  # as on a cluster
    pool.close()
    deadline = time.monotonic() + 60
    while [one for one in left if places.node_of(one) is not None]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_attack_that_ended_during_a_long_round_is_no_timeout():
    run, pool = scenario(), AttackPool(0.0)
    executor = RayExecutor(AttackRunner(build(run)), 2, pool)
    try:
        executor.submit([[Attack(intercepted(run, client), 0, 1.0)] for client in (0, 1)])
        assert ray.wait([*executor._running], num_returns=2, timeout=100)[1] == []
        for running in executor._running.values():
            running.since -= 1e6
        outcomes = [*executor.collect(wait=False)]
    finally:
        executor.cancel()
        pool.close()
    assert {row.status for outcome in outcomes for row in outcome.findings} == {"ok"}
    assert len(outcomes) == 2


def test_a_worker_larger_than_every_node_is_an_error_and_no_endless_wait(tmp_path, monkeypatch):
    nodes = [("10.0.0.1", {"CPU": 4.0, "GPU": 1.0}), ("10.0.0.2", {"CPU": 2.0, "GPU": 1.0})]
    monkeypatch.setattr(session, "living_nodes", lambda: nodes)
    monkeypatch.setattr(places, "living_nodes", lambda: nodes)
    monkeypatch.setattr(session, "_short_of", lambda needs: "")
    large = scenario(engine={"name": "ray", "workers": 1, "cpus_per_client": 5})
    with pytest.raises(EngineError) as error:
        simulate(large, tmp_path / "large")
    assert str(error.value) == (
        "one client worker needs 5 CPUs of one node, and no node of the Ray cluster has as much: "
        "10.0.0.1 (4 CPUs and 1 GPU), 10.0.0.2 (2 CPUs and 1 GPU). Lower engine.*_per_client, or "
        "start a larger node"
    )


def test_too_few_cpus_are_an_error_that_names_the_settings(monkeypatch):
    monkeypatch.setattr(session, "_OURS", {})  # or a larger session would be started
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 3.0})
    with pytest.raises(EngineError) as error:
        session.start_session(Engine(cpus_per_client=2), 2, 1)
    assert str(error.value) == (
        "2 client workers and 1 attack workers need 5 CPUs, and Ray has 3. Lower one of "
        "engine.workers, engine.attack_workers, engine.cpus_per_client"
    )


# --- nodes that are short of memory -------------------------------------------------------------


def test_a_client_whose_worker_ray_ended_for_memory_says_what_to_lower(monkeypatch):
    def ends(grid, index, task):
        raise OutOfMemoryError("the node is running low on memory")

    monkeypatch.setattr(RayGrid, "_wait", ends)
    pool = [client_worker(1)]
    grid = RayGrid(6, pool, lambda: pool[0], settings(60), pytest.fail)
    try:
        replies = list(grid.send_and_receive(messages(scenario(), grid)))
    finally:
        ray.kill(pool[0])
    said = {reply.error.reason for reply in replies}
    assert said == {
        "its machine has too little memory to train this client. Lower training.batch_size, "
        "engine.workers or engine.attack_workers: its worker died: OutOfMemoryError"
    }


def test_an_attack_whose_worker_ray_ended_for_memory_says_what_to_lower(monkeypatch):
    def ends(task, **options):
        if isinstance(found := get(task, **options), list) and isinstance(found[0], Outcome):
            raise OutOfMemoryError("the node is running low on memory")
        return found

    get, run = ray.get, scenario()
    pool = AttackPool(0.0)
    executor = RayExecutor(AttackRunner(build(run)), 1, pool)
    monkeypatch.setattr(ray, "get", ends)
    try:
        executor.submit([[Attack(intercepted(run, 0), 0, 1.0)]])
        (outcome,) = executor.collect(wait=True)
    finally:
        executor.cancel()
        pool.close()
    for row in outcome.findings:
        assert row.error == (
            "its machine has too little memory for this attack. Lower engine.attack_workers, "
            "engine.workers or training.batch_size: its worker died: OutOfMemoryError"
        )
    assert outcome.findings


# --- code that workers cannot import ------------------------------------------------------------


class Linear(torch.nn.Sequential):
    """A model that the tests give to this process alone."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(math.prod(shape), classes))


class Mine(LLG):
    """An adversary that the tests give to this process alone."""


@pytest.fixture
def ghost(monkeypatch):
    """A module that workers do not find."""
    module = types.ModuleType("ghost")
    module.Linear, module.Mine = Linear, Mine
    monkeypatch.setitem(sys.modules, "ghost", module)
    return module


@pytest.mark.parametrize("engine", ["ray", "flower"])
def test_code_of_the_running_script_is_refused_before_workers_start(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Linear", Linear, raising=False)
    run = scenario(task={"model": "__main__:Linear"}, engine={"name": engine, "workers": 2})
    with pytest.raises(ScenarioError, match=r'in mine\.py: "mine:Linear"\), or set engine\.work'):
        simulate(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_workers_cannot_import_is_named_within_seconds(ghost, tmp_path):
    run = scenario(task={"model": "ghost:Linear"}, engine={"name": "ray", "workers": 2})
    began = time.monotonic()
    # Of a client or an attack, whichever comes first.
    with pytest.raises(FedsimError, match="PluginError: ghost:Linear cannot be imported"):
        simulate(run, tmp_path / "run")
    assert time.monotonic() - began < 60


def test_an_adversary_that_workers_cannot_import_ends_the_attack(ghost, tmp_path):
    fedsim.train(scenario(), tmp_path / "run")
    changes = {"adversaries": [{"name": "ghost:Mine"}], "engine": {"workers": 2}}
    with pytest.raises(EngineError, match=r"attack worker cannot start on [\d.]+: PluginError: gh"):
        fedsim.attack(tmp_path / "run", changes=changes)


# --- too much of a GPU --------------------------------------------------------------------------


def test_a_share_of_several_gpus_is_refused(tmp_path):
    run = scenario(engine={"name": "ray", "workers": 1, "gpus_per_client": 1.5})
    with pytest.raises(ScenarioError, match="a share of one GPU, below 1, or a whole number"):
        simulate(run, tmp_path / "run")


def test_a_cluster_of_another_ray_is_one_line(monkeypatch):
    def refuse(**options):
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.40.0")

    monkeypatch.setattr(session, "knock", lambda address: address)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    there = Engine(address="10.0.0.1:6379")
    with pytest.raises(EngineError) as error:
        session.start_session(there, 1, 1)
    assert str(error.value) == (
        "Ray cannot start or reach 10.0.0.1:6379: Version mismatch: The cluster was started with: "
        "Ray: 2.40.0. See whether `ray status` lists its nodes there, and start every node from "
        "the same image or the same installation as fedsim"
    )


def test_a_local_ray_that_does_not_start_in_time_is_one_line(monkeypatch):
    def late(**options):
        raise Exception("The current node timed out during startup.")

    # The session of other tests keeps its folder: without it, its processes count as left over.
    monkeypatch.setattr(session, "_FOLDERS", {})
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(EngineError) as error:
        session.start_session(Engine(), 1, 1)
    assert str(error.value) == (
        "Ray cannot start or reach a local session: The current node timed out during startup. "
        "Try again, or set engine.workers = 1 to run without Ray"
    )
