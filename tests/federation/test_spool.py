"""A round's updates that are too much for memory wait on disk, and nothing else changes."""

import gc
import pickle
import weakref
from pathlib import Path

import psutil
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from safetensors.torch import load_file
from support.tiny import initial, rows, same, scenario, timeless, weights

from fedsim.engine.inline import InlineGrid
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.federation import spool
from fedsim.federation.grid import message
from fedsim.federation.spool import Spool
from fedsim.records import Interception, Update
from fedsim.runs.recording import Recording

pytestmark = pytest.mark.usefixtures("unreported")

MANY = {"clients": 12, "clients_per_round": 12}
STRATEGIES = ["FedAvg", "FedAdam", "FedMedian", "Krum"]


def hold(monkeypatch, most):
    """Bytes of replies beyond which updates go to disk."""
    monkeypatch.setattr(spool, "LEAST", most)
    monkeypatch.setattr(spool, "FRACTION", 0)


@pytest.fixture
def nothing_held(monkeypatch):
    """Every update goes to disk."""
    hold(monkeypatch, 0)


def reply(*values: torch.Tensor) -> Message:
    arrays = {f"layer.{place}": value for place, value in enumerate(values)}
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
    return message(RecordDict(content))


def outcome(run, folder):
    """What a run found, and what it trained."""
    simulate(run, folder)
    (kept,) = folder.rglob("global.safetensors")
    trained = {name: value.numpy().tobytes() for name, value in load_file(kept).items()}
    return timeless(folder), rows(folder, "utility.csv"), trained


@pytest.mark.parametrize("strategy", ["FedSGD", *STRATEGIES])
def test_a_run_is_the_same_whether_updates_waited_on_disk_or_not(strategy, tmp_path, monkeypatch):
    algorithm = "fedsgd" if strategy == "FedSGD" else "fedavg"
    run = scenario(
        training={"algorithm": algorithm, "strategy": strategy},
        threat={"grants": "full", "record": True},
        adversaries=[{"name": "llg"}, {"name": "inverting-gradients", "budget": 2, "victims": 1}],
    )
    held = outcome(run, tmp_path / "held")
    hold(monkeypatch, 0)
    waited = outcome(run, tmp_path / "waited")
    assert waited == held
    assert all(held)
    tapes = [
        sorted((tmp_path / name / "tape").rglob("c*.safetensors")) for name in ("held", "waited")
    ]
    assert [path.read_bytes() for path in tapes[0]] == [path.read_bytes() for path in tapes[1]]
    assert len(tapes[0]) == 8


def test_ray_answers_in_shares_and_finds_the_same(tmp_path, monkeypatch, nothing_held, ray_session):
    from fedsim.engine.ray import clients as engine

    found = outcome(scenario(training=MANY), tmp_path / "inline")
    monkeypatch.setattr(engine, "SHARE", 1)  # one model at a time
    run = scenario(training=MANY, engine={"name": "ray", "workers": 2, "attack_workers": 1})
    assert outcome(run, tmp_path / "ray") == found


@pytest.mark.parametrize("victims", ["all", 1])
def test_a_round_holds_a_few_updates_however_many_clients_there_are(
    victims, tmp_path, monkeypatch, nothing_held
):
    alive = most = 0
    asked: list[int] = []
    take = Spool.take

    def gone():
        nonlocal alive
        alive -= 1

    def counted(self, reply, interception):
        nonlocal alive, most
        (record,) = reply.content.array_records.values()
        weakref.finalize(record["head.weight"], gone)
        alive += 1
        stored = take(self, reply, interception)
        most = max(most, alive)
        asked.append(reply.metadata.src_node_id)
        return stored

    monkeypatch.setattr(Spool, "take", counted)
    gc.disable()  # it counts objects, and not their bytes
    try:
        simulate(scenario(training=MANY, threat={"victims": victims}), tmp_path / "run")
    finally:
        gc.enable()
    assert len(asked) == 2 * MANY["clients"]
    assert most <= 1


def test_clients_answer_when_the_server_asks_for_the_next_one():
    grid, run = InlineGrid(6), scenario()
    asked: list[int] = []

    def app(message, context):
        asked.append(context.node_id)
        return Message(RecordDict(), reply_to=message)

    grid._app = app
    content = RecordDict({"arrays": initial(run)})
    replies = grid.send_and_receive([Message(content, 1000 + n, "train") for n in range(6)])
    assert (len(replies), asked) == (6, [])
    next(iter(replies))
    assert asked == [1000]
    assert [one.metadata.src_node_id for one in replies] == list(range(1000, 1006))
    assert replies[-1] is list(replies)[-1]
    assert [one.metadata.src_node_id for one in replies[1:3]] == [1001, 1002]
    assert asked == list(range(1000, 1006))  # once each
    with pytest.raises(IndexError):
        replies[6]


def spooled(folder: Path, answer: Message) -> Interception:
    """What a spool makes of a reply with a gradient."""
    tensors = weights(answer.content.array_records["arrays"])
    floats = {name: value.float() for name, value in tensors.items()}
    update = Update(tensors=floats, kind="gradient")
    return Spool(Recording(folder)).take(answer, Interception(1, (0,), floats, update))


def test_what_fits_stays_in_memory(tmp_path, monkeypatch):
    values = [torch.ones(1000), torch.zeros(1)]
    first, second = reply(*values), reply(*values)
    enough = 2 * first.content.array_records["arrays"].count_bytes()  # they are decoded
    hold(monkeypatch, enough)
    kept = Spool(Recording(tmp_path))
    update = Update(
        tensors={f"layer.{i}": value for i, value in enumerate(values)}, kind="gradient"
    )
    taken = [
        kept.take(each, Interception(1, (client,), update.tensors, update))
        for client, each in enumerate((first, second))
    ]
    kinds = [type(r.content.array_records["arrays"]["layer.0"]) is Array for r in (first, second)]
    assert kinds == [True, False]
    assert [one.update is update for one in taken] == [True, False]


def test_replies_may_take_a_share_of_the_memory_that_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "CONTAINER", tmp_path)
    free = psutil.virtual_memory().available
    assert spool.memory_limit() == pytest.approx(max(free / 8, spool.LEAST), rel=0.5)
    (tmp_path / "memory.current").write_text(str(2**32))
    for most, cached, expected in (
        (2**32 + 2**30, 2**32 - 2**30, 2**29),
        (2**32, 0, spool.LEAST),
        ("max", 0, free / 8),
    ):
        (tmp_path / "memory.max").write_text(str(most))
        (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 0\n")
        limit = min(expected, max(free / 8, spool.LEAST))
        assert spool.memory_limit() == pytest.approx(limit, rel=0.5)


def test_what_stays_does_not_depend_on_what_waited_on_disk(tmp_path, monkeypatch):
    one = sum(value.nbytes for value in weights(initial(scenario())).values())
    run = scenario(record={"keep": "all", "max_bytes": 4 * one})  # a model and three updates
    kept = []
    for name, limit in (("held", 2**40), ("waited", 0)):
        hold(monkeypatch, limit)
        simulate(run, tmp_path / name)
        files = (tmp_path / name / "tape").rglob("c*.safetensors")
        kept.append(sorted(path.relative_to(tmp_path / name) for path in files))
    assert kept[0] == kept[1]
    assert len(kept[0]) == 3


def test_what_waits_is_bit_identical_typed_and_travels_without_its_file(tmp_path, nothing_held):
    values = [
        torch.randn(3, 4),
        torch.tensor([float("nan"), -0.0]),
        torch.arange(3),
        torch.ones(()),
    ]
    before = reply(*values)
    arrays = weights(before.content.array_records["arrays"])
    stored = spooled(tmp_path, before)
    record = before.content.array_records["arrays"]
    assert same(weights(record), arrays)
    assert [type(record[name]) is Array for name in record] == [False, False, True, False]
    travelled = pickle.loads(pickle.dumps(record))  # noqa: S301
    assert same(weights(travelled), arrays)
    assert stored.update.tensors["layer.2"].dtype == torch.float32
    sent = pickle.loads(pickle.dumps(stored.update))  # noqa: S301
    assert same(dict(sent.tensors), dict(stored.update.tensors))


@pytest.mark.parametrize("keep", ["nothing", "attacked"])
def test_nothing_stays_of_what_waited_beyond_what_is_kept(keep, tmp_path, nothing_held):
    simulate(scenario(threat={"victims": 1}, record={"keep": keep}), tmp_path)
    left = [path.name for path in (tmp_path / "tape").rglob("c*.safetensors")]
    assert len(left) == (2 if keep == "attacked" else 0)
    assert (tmp_path / "tape").exists() == (keep == "attacked")


def test_a_disk_that_fills_up_is_one_clear_error(tmp_path, nothing_held):
    (tmp_path / "gone").write_text("a file where a folder is needed")
    with pytest.raises(RunFolderError, match=r"gone/index.jsonl cannot be written: "):
        spooled(tmp_path / "gone", reply(torch.ones(10)))


def test_an_update_that_waited_on_disk_and_is_refused_is_removed(
    nothing_held, tmp_path, monkeypatch
):
    honest = InlineGrid.exchange

    def exchange(self, messages):
        for number, one in enumerate(honest(self, messages)):
            if number == 0 and "metrics" in one.content:
                one.content["metrics"]["stowaway"] = 1.0
            yield one

    monkeypatch.setattr(InlineGrid, "exchange", exchange)
    training = {"on_failure": "drop", "clients_per_round": 6}
    simulate(scenario(training=training, record={"keep": "all"}), tmp_path / "run")
    recording = Recording(tmp_path / "run/tape")
    named = {name for line in recording.rounds.values() for name in line.kept}
    there = {
        path.relative_to(recording.folder).as_posix() for path in recording.folder.rglob("*.s*")
    }
    assert there == named
    assert len([name for name in named if "/c" in name]) == 2 * 5
