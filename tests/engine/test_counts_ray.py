"""What Ray's processes cost: how often updates are serialised, in how many bytes, and starts.

Times on a busy machine would hide another copy; these counts do not depend on the machine.
"""

import gc
import sys

import pytest
import ray
from flwr.app import Message, MessageType, RecordDict
from support.tiny import config, initial, scenario, timeless

from fedsim.engine.attack import attack
from fedsim.engine.inline import InlineGrid
from fedsim.engine.ray import clients
from fedsim.engine.ray.pool import AttackPool
from fedsim.engine.ray.transfer import ALIGNED
from fedsim.engine.simulate import simulate
from fedsim.federation.arrays import TensorArray
from fedsim.scenario.settings import Engine

pytestmark = pytest.mark.usefixtures("unreported")

ROUNDS, TRAINED, WORKERS = 2, 4, 2


def arrays_of_a_model():
    """Their number, and the bytes that their values take between processes."""
    task = scenario().build_task()
    arrays = task.arrays(task.module()).values()
    return len(arrays), sum(-(-one.nbytes // ALIGNED) * ALIGNED for one in arrays)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's workers are tested on POSIX")
def test_ray_serialises_each_model_once_a_worker_and_each_update_once_for_all_attacks(
    monkeypatch, tmp_path
):
    asked, answered, stored = list[clients.Packed](), list[clients.Packed](), list[str]()
    pack, unpack, put = clients.pack, clients.unpack, ray.put

    def packing(value):
        asked.append(pack(value))
        return asked[-1]

    def unpacking(packed):
        answered.append(packed)
        return unpack(packed)

    def putting(value):
        stored.append(type(value).__name__)
        return put(value)

    monkeypatch.setattr(clients, "pack", packing)
    monkeypatch.setattr(clients, "unpack", unpacking)
    monkeypatch.setattr(ray, "put", putting)
    run = scenario(
        adversaries=[{"name": "llg"}, {"name": "idlg"}],
        training={"rounds": ROUNDS, "clients_per_round": TRAINED},
        engine={"name": "ray", "workers": WORKERS},
        record={"keep": "nothing"},  # otherwise attacks read files
    )
    simulate(run, tmp_path / "run")

    number, size = arrays_of_a_model()
    assert len(asked) == len(answered) == ROUNDS * WORKERS
    # The weights of the first round are Flower's arrays, which are in the pickle.
    assert all(one.block.nbytes == size for one in asked[WORKERS:])
    for reply in answered:
        assert len(reply.sizes) == TRAINED // WORKERS * number
        assert reply.block.nbytes == TRAINED // WORKERS * size
    later = (*asked[WORKERS:], *answered)
    assert all(len(one.head) < size / 8 for one in later), "arrays are in the pickle as well"
    assert sorted(stored) == ["Interception"] * ROUNDS * TRAINED + ["dict"] * ROUNDS


@pytest.mark.usefixtures("ray_session")
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's workers are tested on POSIX")
def test_attack_workers_start_once_for_all_points_of_a_run(monkeypatch, tmp_path):
    taken, take = list[str](), AttackPool.take

    def taking(pool):
        worker = take(pool)
        taken.append(worker._actor_id.hex())
        return worker

    monkeypatch.setattr(AttackPool, "take", taking)
    run = scenario(
        adversaries=[{"name": "llg"}],
        training={"rounds": 1, "clients_per_round": 2},
        engine={"name": "ray", "workers": 1, "attack_workers": WORKERS},
        sweep={"training.batch_size": [1, 2, 3]},
        record={"keep": "all"},
    )
    simulate(run, tmp_path / "run")
    assert len(taken) == 3 * WORKERS
    assert len({*taken}) == WORKERS
    found = timeless(tmp_path / "run")
    simulate(run.model_copy(update={"engine": Engine(workers=1)}), tmp_path / "inline")
    assert found == timeless(tmp_path / "inline")
    taken.clear()
    attack(tmp_path / "run", changes={"adversaries": [{"name": "idlg"}]})
    assert len(taken) == 3 * WORKERS
    assert len({*taken}) == WORKERS


def test_a_worker_pickles_each_array_of_its_replies_once_and_encodes_none(monkeypatch):
    run, grid = scenario(), InlineGrid(6)
    content = {"arrays": initial(run), "config": config(run, **{"server-round": 1})}
    messages = [Message(RecordDict(content), node, MessageType.TRAIN) for node in grid.clients]
    asked = clients.pack((messages, [grid.contexts[node] for node in grid.clients]))
    counts = {"pickled": 0, "encoded": 0}
    reduce, encoded = TensorArray.__reduce_ex__, TensorArray.data

    def pickling(self, protocol):
        counts["pickled"] += 1
        return reduce(self, protocol)

    def encoding(self):
        counts["encoded"] += 1
        return encoded.fget(self)

    monkeypatch.setattr(TensorArray, "__reduce_ex__", pickling)
    monkeypatch.setattr(TensorArray, "data", property(encoding, encoded.fset))
    monkeypatch.setattr(gc, "freeze", lambda: None)  # this process goes on to other tests
    clients.ClientWorker().answer(asked)
    assert counts == {"pickled": 6 * arrays_of_a_model()[0], "encoded": 0}
