"""Workers that Ray has no place for end a run with an error, or leave their work to the others."""

import sys

import pytest
import ray
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from support.tiny import config, initial, scenario

from fedsim.engine.inline import InlineGrid
from fedsim.engine.ray import session
from fedsim.engine.ray.clients import ClientWorker, RayGrid
from fedsim.engine.simulate import simulate
from fedsim.errors import EngineError

pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    pytest.mark.skipif(sys.platform == "win32", reason="Ray's workers are tested on POSIX"),
]


def client_worker(cpus):
    return ray.remote(ClientWorker).options(num_cpus=cpus).remote()


def no_place():
    return session.no_place("client", 2, 50, 0)


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


def test_a_client_worker_without_a_place_leaves_its_clients_to_the_others(monkeypatch):
    monkeypatch.setattr(session, "PLACE", 2.0)
    run, said = scenario(), list[str]()
    here = InlineGrid(6)
    expected = arrays(here.send_and_receive(messages(run, here)))
    pool = [client_worker(1), client_worker(50)]
    grid = RayGrid(6, pool, lambda: client_worker(50), no_place, said.append)
    try:
        assert arrays(grid.send_and_receive(messages(run, grid))) == expected
        assert arrays(grid.send_and_receive(messages(run, grid))) == expected
    finally:
        for actor in pool:
            ray.kill(actor)
    (warning,) = said
    assert "no place for 1 of 2 client workers for 2 s: the run goes on with the others" in warning


def test_clients_whose_workers_all_lack_a_place_end_the_run(monkeypatch):
    monkeypatch.setattr(session, "PLACE", 1.0)
    pool = [client_worker(50), client_worker(50)]
    grid = RayGrid(6, pool, lambda: client_worker(50), no_place, pytest.fail)
    try:
        with pytest.raises(EngineError, match=r"any of 2 client workers for 1 s\. Each needs 50"):
            list(grid.send_and_receive(messages(scenario(), grid)))
    finally:
        for actor in pool:
            ray.kill(actor)


def test_a_worker_larger_than_every_node_is_an_error_and_no_endless_wait(tmp_path, monkeypatch):
    nodes = [("10.0.0.1", {"CPU": 4.0, "GPU": 1.0}), ("10.0.0.2", {"CPU": 2.0, "GPU": 1.0})]
    monkeypatch.setattr(session, "_nodes", lambda: nodes)
    monkeypatch.setattr(session, "_short_of", lambda needs: "")
    large = scenario(engine={"name": "ray", "workers": 1, "cpus_per_client": 5})
    with pytest.raises(EngineError) as error:
        simulate(large, tmp_path / "large")
    assert str(error.value) == (
        "one client worker needs 5 CPUs of one node, and no node of the Ray cluster has as much: "
        "10.0.0.1 (4 CPUs and 1 GPU), 10.0.0.2 (2 CPUs and 1 GPU). Lower engine.*_per_client, or "
        "start a larger node"
    )
