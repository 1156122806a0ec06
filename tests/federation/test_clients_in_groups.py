"""Clients of one process are trained in groups before they reply, as long as these are small."""

import contextlib

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedsim.engine.inline import InlineGrid
from fedsim.engine.simulate import simulate
from fedsim.federation import client as clients
from fedsim.federation import session
from fedsim.federation.arrays import GROUP, GROUP_BYTES, group_size, tensor_record
from fedsim.federation.session import Session, session_of
from fedsim.federation.spool import in_groups
from fedsim.scenario.built import build
from fedsim.training import local
from tests.support.tiny import config, initial, rows, scenario, timeless

pytestmark = pytest.mark.usefixtures("unreported")


def weights(bytes):
    return tensor_record({"w": torch.zeros(bytes // 4)})


@pytest.mark.parametrize(
    ("bytes", "number"), [(4, GROUP), (GROUP_BYTES // 8, 8), (GROUP_BYTES + 4, 1), (0, GROUP)]
)
def test_a_group_is_as_large_as_its_updates_allow(bytes, number):
    assert group_size(weights(bytes)) == number


def test_replies_of_a_group_are_made_before_the_first_is_read():
    made = []
    replies = in_groups((made.append(i) or i for i in range(10)), [(weights(GROUP_BYTES // 4), {})])
    assert next(replies) == 0
    assert made == [0, 1, 2, 3]
    assert [*replies] == [*range(1, 10)]


def test_batches_that_are_large_are_drawn_for_fewer_clients(monkeypatch):
    found = Session(build(scenario()))
    places, configs = [(1, client) for client in range(6)], [ConfigRecord()] * 6
    assert len(found.prepare(places, configs)) == 6
    monkeypatch.setattr(session, "GROUP_BYTES", 1)
    assert len(found.prepare(places, configs)) == 1
    nobody = [(1, 6), (1, 0)]  # who is named when it is trained
    assert found.prepare(nobody, configs[:2])[0] is None


@pytest.mark.parametrize("vectorize", [0, 6])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_clients_of_a_group_train_with_what_each_of_them_was_sent(vectorize, algorithm):
    engine = {"workers": 1, "vectorize": vectorize}
    run = scenario(training={"algorithm": algorithm}, engine=engine)
    grid = InlineGrid(run.training.clients)

    def asked(node, lr, scale):
        arrays = {k: v * scale for k, v in initial(run).to_torch_state_dict().items()}
        sent = ConfigRecord({**config(run), "server-round": 1, "lr": lr})
        content = RecordDict({"arrays": tensor_record(arrays), "config": sent})
        return Message(content, node, MessageType.TRAIN)

    nodes = [*grid.clients][:3]
    settings = [(0.1, 1), (0.5, 1), (0.1, 2)]
    differing = [(node, *each) for node, each in zip(nodes, settings, strict=True)]

    def weights(reply):
        return reply.content["arrays"].to_torch_state_dict()

    together = [weights(one) for one in grid.send_and_receive([asked(*one) for one in differing])]
    for one, found in zip(differing, together, strict=True):
        (alone,) = grid.send_and_receive([asked(*one)])
        assert all(torch.equal(found[name], value) for name, value in weights(alone).items())


def test_a_message_without_the_round_is_one_clients_error():
    run = scenario()
    content = RecordDict({"arrays": initial(run), "config": config(run)})
    grid = InlineGrid(run.training.clients)
    asked = [Message(content, node, MessageType.TRAIN) for node in [*grid.clients][:2]]
    replies = list(grid.send_and_receive(asked))
    assert [reply.has_error() for reply in replies] == [True, True]
    assert "server-round" in replies[0].error.reason


def sent(run, grid, change):
    """Messages of round 1 to three clients, the second one's content changed."""
    messages = []
    for place, node in enumerate([*grid.clients][:3]):
        settings = ConfigRecord({**config(run), "server-round": 1})
        content = RecordDict({"arrays": initial(run), "config": settings})
        if place == 1:
            change(content)
        messages.append(Message(content, node, MessageType.TRAIN))
    return messages


def together(run, kinds):
    """A group's messages with one content, to these clients and of these types."""
    content = RecordDict(
        {"arrays": initial(run), "config": ConfigRecord({**config(run), "server-round": 1})}
    )
    return [Message(content, 1000 + client, kind) for client, kind in kinds]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("arrays"),
        lambda content: content.pop("config"),
        lambda content: content["config"].pop("scenario"),
        lambda content: content["config"].update(lr="x"),
        lambda content: content["config"].update({"server-round": "x"}),
    ],
)
@pytest.mark.parametrize("vectorize", [0, 6])
def test_a_broken_message_is_one_clients_error(change, vectorize):
    run = scenario(engine={"workers": 1, "vectorize": vectorize})
    grid = InlineGrid(run.training.clients)
    replies = list(grid.send_and_receive(sent(run, grid, change)))
    assert [reply.has_error() for reply in replies] == [False, True, False]


def test_arrays_that_cannot_be_decoded_fail_for_every_client_they_were_sent_to():
    run = scenario()
    grid = InlineGrid(run.training.clients)
    assert not any(r.has_error() for r in grid.send_and_receive(sent(run, grid, len)))
    broken = ArrayRecord(initial(run).to_torch_state_dict())
    first = next(iter(broken.values()))
    first.data = first.data[:-8]
    messages = sent(run, grid, len)
    for message in messages:
        message.content["arrays"] = broken
    assert [r.has_error() for r in grid.send_and_receive(messages)] == [True, True, True]


@pytest.mark.parametrize("vectorize", [0, 6])
@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_data_that_end_the_program_are_one_clients_error(kind, vectorize, monkeypatch):
    run = scenario(engine={"workers": 1, "vectorize": vectorize})
    grid = InlineGrid(run.training.clients)
    task = type(session_of(run.model_dump_json()).built.task)
    plain = task.batches

    def failing(self, client, round, **settings):
        if client == 1:
            raise kind("no data")
        return plain(self, client, round, **settings)

    monkeypatch.setattr(task, "batches", failing)
    asked = sent(run, grid, len)
    for message in asked:
        message.content["arrays"] = asked[0].content["arrays"]
    caution = pytest.warns(UserWarning, match="each is trained alone: .*no data")
    with caution if vectorize else contextlib.nullcontext():
        replies = list(grid.send_and_receive(asked))
    assert [reply.has_error() for reply in replies] == [False, True, False]


NOISE = {"name": "gaussian-noise", "sigma": 0.1}


@pytest.mark.parametrize(
    ("changes", "in_turn"),
    [
        ({}, 2),  # a call a round
        ({"task": {"model": "mlp"}, "defenses": [NOISE]}, 2),
        ({"task": {"model": "lenet"}, "seed": 2**40, "defenses": [NOISE | {"clients": [1]}]}, 2),
        ({"defenses": [{"name": "dp-sgd"}]}, 0),
        ({"task": {"model": "resnet20"}}, 0),
        ({"training": {"algorithm": "fedavg"}}, 0),
    ],
)
def test_clients_in_turn_send_the_bits_that_each_sends_alone(
    changes, in_turn, tmp_path, monkeypatch
):
    calls, plain = [], session.gradients_in_turn

    def counted(training, batches, **settings):
        calls.append(len(batches))
        return plain(training, batches, **settings)

    monkeypatch.setattr(session, "gradients_in_turn", counted)
    simulate(scenario(**changes), tmp_path / "turn")
    assert calls == [4] * in_turn
    monkeypatch.setattr(Session, "is_pure", lambda self, clients: False)
    simulate(scenario(**changes), tmp_path / "alone")
    assert len(calls) == in_turn
    assert timeless(tmp_path / "turn") == timeless(tmp_path / "alone")
    both = [rows(tmp_path / name, "utility.csv") for name in ("turn", "alone")]
    assert both[0] == both[1]


def test_clients_in_turn_are_as_many_as_their_batches_allow(monkeypatch):
    run = scenario()
    grid = InlineGrid(run.training.clients)
    asked = together(run, [(client, "train") for client in range(3)])
    many = [reply.content["arrays"] for reply in grid.send_and_receive(asked)]
    calls, plain = [], session.gradients_in_turn
    counted = lambda *given, **more: calls.append(len(given[1])) or plain(*given, **more)  # noqa: E731
    monkeypatch.setattr(session, "gradients_in_turn", counted)
    monkeypatch.setattr(session, "GROUP_BYTES", 1)
    few = [reply.content["arrays"] for reply in grid.send_and_receive(asked)]
    assert calls == [1, 1, 1]
    for one, other in zip(many, few, strict=True):
        theirs = other.to_torch_state_dict()
        assert all(torch.equal(v, theirs[k]) for k, v in one.to_torch_state_dict().items())


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (lambda batches: None, 1),
        (lambda batches: [one._replace(inputs=[]) for one in batches], 1),
        (lambda batches: [None], 1),
        (iter, 0),
    ],
)
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_batches_that_are_none_are_one_clients_error(change, failing, algorithm, monkeypatch):
    run = scenario(training={"algorithm": algorithm})
    grid = InlineGrid(run.training.clients)
    task = type(session_of(run.model_dump_json()).built.task)
    plain = task.batches

    def changed(self, client, round, **settings):
        found = plain(self, client, round, **settings)
        return change(found) if client == 1 else found

    monkeypatch.setattr(task, "batches", changed)
    asked = together(run, [(client, "train") for client in range(3)])
    replies = list(grid.send_and_receive(asked))
    assert [reply.has_error() for reply in replies] == [False, bool(failing), False]


def test_a_loader_that_fails_once_is_asked_again(monkeypatch):
    run = scenario()
    grid = InlineGrid(run.training.clients)
    task = type(session_of(run.model_dump_json()).built.task)
    plain, tries = task.batches, []

    def flaky(self, client, round, **settings):
        tries.append(client)
        if tries.count(1) == 1 and client == 1:
            raise OSError("try again")
        return plain(self, client, round, **settings)

    monkeypatch.setattr(task, "batches", flaky)
    asked = together(run, [(client, "train") for client in range(3)])
    assert not any(reply.has_error() for reply in grid.send_and_receive(asked))
    assert tries == [0, 1, 2, 1]


@pytest.mark.parametrize(
    "kinds",
    [
        [(0, "train"), (1, "evaluate"), (2, "train")],
        [(0, "train"), (0, "train"), (1, "train")],
    ],
)
def test_only_who_is_asked_to_train_does_and_once(kinds, monkeypatch):
    run = scenario(defenses=[{"name": "deep-gradient-compression", "ratio": 0.5}])
    grid = InlineGrid(run.training.clients)
    defended, plain = [], clients.protect

    def counted(update, before, defenses, where, states):
        defended.append(where[2])
        return plain(update, before, defenses, where, states)

    for module in (clients, local):  # in turn, and alone
        monkeypatch.setattr(module, "protect", counted)
    replies = list(grid.send_and_receive(together(run, kinds)))
    assert not any(reply.has_error() for reply in replies)
    # Who is asked twice is trained alone the second time.
    assert len(defended) == sum(kind == "train" for _, kind in kinds)
    assert defended.count(1) == sum(one == (1, "train") for one in kinds)


def test_a_label_beyond_the_classes_is_one_clients_error(monkeypatch):
    run = scenario(engine={"workers": 1, "device": "cpu"})
    grid = InlineGrid(run.training.clients)
    task = type(session_of(run.model_dump_json()).built.task)
    plain = task.batches

    def wrong(self, client, round, **settings):
        return [
            type(one)(one.inputs, one.labels + 10 * (client == 1))
            for one in plain(self, client, round, **settings)
        ]

    monkeypatch.setattr(task, "batches", wrong)
    asked = together(run, [(client, "train") for client in range(3)])
    replies = list(grid.send_and_receive(asked))
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert "IndexError" in replies[1].error.reason


@pytest.mark.parametrize(
    ("defense", "vectorize"), [(NOISE, 6), (NOISE, 0), ({"name": "dp-sgd"}, 0)]
)
@pytest.mark.parametrize("failing", [0, 1])  # the first is asked before any is trained
def test_a_defense_that_cannot_say_whom_it_guards_is_its_clients_error(
    defense, vectorize, failing, monkeypatch
):
    run = scenario(engine={"workers": 1, "vectorize": vectorize}, defenses=[defense])
    grid = InlineGrid(run.training.clients)
    (made,) = session_of(run.model_dump_json()).built.defenses

    def guards(self, client):
        if client == failing:
            raise RuntimeError("no such client")
        return True

    monkeypatch.setattr(type(made), "guards", guards)
    asked = together(run, [(client, "train") for client in range(3)])
    replies = list(grid.send_and_receive(asked))  # a warning, that all train again, would fail
    assert [reply.has_error() for reply in replies] == [n == failing for n in range(3)]
