"""Clients trained at once (`engine.vectorize`) send what each would send alone."""

import re

import pytest
import torch
from flwr.app import Array, Message, RecordDict
from support.tiny import ask, config, initial, rows, scenario, sent

from fedsim.engine.inline import InlineGrid
from fedsim.engine.preflight import preflight
from fedsim.engine.ray import clients as ray_clients
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.federation import client as clients
from fedsim.federation import session
from fedsim.training import together
from fedsim.training.local import local_training, train_locally
from fedsim.training.together import train_together

pytestmark = pytest.mark.usefixtures("unreported")


STEPS = {"algorithm": "fedavg", "local_steps": 3, "lr": 0.05}


def cautions(run, folder):
    """What the user of a run is warned of."""
    told = []

    def observer(event, **fields):
        told.extend([fields["text"]] if event == "caution" else [])

    simulate(run, folder, observer=observer)
    return told


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ("mlp", {}),
        ("cnn", {}),
        ("resnet20", {}),  # batch normalisation in training mode
        ("cnn", STEPS),
        ("mlp", STEPS | {"momentum": 0.9, "weight_decay": 0.01}),
        ("resnet20", STEPS),
    ],
)
def test_clients_at_once_equal_each_alone_in_float64(model, training):
    run = scenario(task={"model": model}, training=training)
    task = run.build_task()
    mu = 0.1 if "local_steps" in training else 0.0
    steps = training.get("local_steps", 1)

    def trainings():
        module = task.module().train().double()
        for client in (0, 2, 4):
            batches = task.batches(client, 1, batch_size=4 + (client == 2), steps=steps)
            changed = [type(b)(b.inputs.double(), b.labels, b.lengths) for b in batches]
            yield local_training(run, task, module, changed, torch.Generator(), ())

    before = {k: v.double() for k, v in task.arrays(task.module()).items()}
    trained = task.trained(task.module())
    alone = [
        train_locally(one, before, trained=trained, proximal_mu=mu)
        for one in (next(x for i, x in enumerate(trainings()) if i == at) for at in range(3))
    ]
    first, *others = trainings()
    batches = [one.batches for one in (first, *others)]
    together = train_together(
        first, batches, before, loss=task.loss, trained=trained, proximal_mu=mu
    )
    for (ours, loss), (theirs, expected) in zip(together, alone, strict=True):
        assert loss == pytest.approx(expected, rel=1e-12)
        for name, value in {**theirs.tensors, **theirs.buffers}.items():
            found = {**ours.tensors, **ours.buffers}[name]
            assert torch.allclose(found, value, rtol=1e-12, atol=1e-12), name
        for field in ("kind", "steps", "num_examples", "lr", "momentum", "weight_decay"):
            assert getattr(ours, field) == getattr(theirs, field)


def test_a_run_trains_them_at_once_and_defends_each_alone(tmp_path, monkeypatch):
    from fedsim.federation import session

    sizes = []

    def counted(training, batches, *args, **settings):
        sizes.append(len(batches))
        return train_together(training, batches, *args, **settings)

    monkeypatch.setattr(session, "train_together", counted)
    noise = [{"name": "gaussian-noise", "sigma": 0.1}]
    found = {}
    for number in (0, 4):
        run = scenario(engine={"workers": 1, "vectorize": number, "device": "cpu"}, defenses=noise)
        simulate(run, tmp_path / str(number))
        found[number] = {
            (row["round"], row["metric"]): float(row["value"])
            for row in rows(tmp_path / str(number), "utility.csv")
        }
        found[f"attacks of {number}"] = [
            float(row["value"]) for row in rows(tmp_path / str(number))
        ]
    assert sizes == [4, 4]  # four clients a round, two rounds
    assert found[4] == pytest.approx(found[0], rel=1e-5)
    assert found["attacks of 4"] == pytest.approx(found["attacks of 0"], rel=1e-5)


def test_where_training_at_once_fails_each_client_is_trained_alone(tmp_path, monkeypatch):
    def broken(*args, **settings):
        raise RuntimeError("one client's data are wrong")

    simulate(scenario(), tmp_path / "alone")
    monkeypatch.setattr(session, "train_together", broken)
    told = cautions(scenario(engine={"workers": 1, "vectorize": 4}), tmp_path / "run")
    (only,) = told  # of two rounds
    assert re.search("each is trained alone: .*one client's data are wrong", only)
    assert rows(tmp_path / "run", "utility.csv") == rows(tmp_path / "alone", "utility.csv")


def test_clients_that_were_sent_different_models_are_not_trained_as_one():
    few = {"clients": 3, "clients_per_round": 3}
    run = scenario(engine={"workers": 1, "vectorize": 6}, training=few)
    grid = InlineGrid(3)
    models = [initial(run) for _ in range(2)]
    models[1]["head.weight"] = Array(2 * models[0]["head.weight"].numpy())
    told = config(run, **{"server-round": 1})
    asked = [
        Message(RecordDict({"arrays": models[one], "config": told}), 1000 + node, "train")
        for node, one in enumerate((0, 0, 1))
    ]
    replies = list(grid.send_and_receive(asked))
    plain = scenario(training=few)
    for number, one in enumerate((0, 0, 1)):
        alone = sent(ask(InlineGrid(3), plain, number, 1, models[one]))
        for name, value in sent(replies[number]).items():
            assert torch.allclose(value, alone[name], rtol=1e-4, atol=1e-6), (number, name)


def test_a_defense_that_fails_costs_its_own_client_only(tmp_path, monkeypatch):
    plain = clients.protect

    def failing(update, before, defenses, where, states):
        if where[1:] == (2, 3):
            raise RuntimeError("no noise left")
        return plain(update, before, defenses, where, states)

    monkeypatch.setattr(clients, "protect", failing)
    every = {"clients_per_round": 6, "on_failure": "drop"}
    noise = [{"name": "gaussian-noise", "sigma": 0.1}]
    engine = {"workers": 1, "vectorize": 6}
    simulate(scenario(engine=engine, defenses=noise, training=every), tmp_path)
    failed = {row["victim"]: row["error"] for row in rows(tmp_path) if row["status"] != "ok"}
    assert list(failed) == ["r0002-c0003"]
    assert "no noise left" in failed["r0002-c0003"]


def test_a_gpu_without_enough_memory_gets_half_of_the_clients(monkeypatch):
    at_once, sizes = together._at_once, []

    def small(training, batches, *args):
        sizes.append(len(batches))
        if len(batches) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return at_once(training, batches, *args)

    monkeypatch.setattr(together, "_at_once", small)
    run = scenario()
    task = run.build_task()
    module = task.module().train()
    before = {k: v.clone() for k, v in task.arrays(module).items()}
    trained = task.trained(module)
    several = [
        local_training(run, task, module, task.batches(c, 1, batch_size=4, steps=1), None, ())
        for c in range(5)
    ]
    batches = [one.batches for one in several]
    with pytest.warns(UserWarning, match="need more memory than the GPU has"):
        found = train_together(several[0], batches, before, loss=task.loss, trained=trained)
    expected = [train_locally(one, before, trained=trained)[1] for one in several]
    assert [loss for _, loss in found] == pytest.approx(expected, rel=1e-5)
    assert sizes == [5, 3, 2, 1, 2]


@pytest.fixture
def short_of_memory(monkeypatch):
    """A GPU with memory for one client."""
    at_once = together._at_once

    def small(training, batches, *args):
        if len(batches) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return at_once(training, batches, *args)

    monkeypatch.setattr(together, "_at_once", small)


def test_too_little_memory_is_said_once_a_run(short_of_memory, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.engine.preflight.check_vectorize", lambda built, module: None)
    run = scenario(engine={"workers": 1, "vectorize": 4}, adversaries=[])
    assert cautions(run, tmp_path / "run") == [together.TOO_MANY]  # in two rounds


def test_too_little_memory_of_two_workers_is_said_once(short_of_memory, monkeypatch):
    class Actor:
        """A worker of Ray's, in this process."""

        def __init__(self):
            self.answer = self

        def remote(self, asked):
            session._SESSIONS.clear()  # those of a process of its own
            return ray_clients.ClientWorker().answer(asked)

    monkeypatch.setattr(ray_clients.ray, "wait", lambda tasks, timeout: (tasks, []))
    monkeypatch.setattr(ray_clients.ray, "get", lambda task: task)
    run, told = scenario(engine={"workers": 2, "vectorize": 4}), []
    grid = ray_clients.RayGrid(6, [Actor(), Actor()], Actor, run.engine, told.append)
    content = RecordDict({"arrays": initial(run), "config": config(run, **{"server-round": 1})})
    asked = [Message(content, 1000 + node, "train") for node in range(6)]
    assert not any(reply.has_error() for reply in grid.send_and_receive(asked))
    assert told == [together.TOO_MANY]


DECIDING = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.flat, self.head = nn.Flatten(), nn.Linear(64, classes)

    def forward(self, images):
        scores = self.head(self.flat(images))
        return scores if scores.sum() > 0 else 2 * scores
"""
DROPPING = DECIDING.replace("nn.Flatten()", "nn.Sequential(nn.Flatten(), nn.Dropout(0.5))")


@pytest.mark.parametrize(
    ("code", "changes", "reason"),
    [
        (DECIDING, {}, "allows no batch of models"),
        (DROPPING, {}, "drops units"),
        ("", {"defenses": [{"name": "dp-sgd"}]}, "the defense dp-sgd changes"),
        ("", {"training": {"algorithm": "fedavg", "optimizer": "adam"}}, "not .sgd."),
    ],
)
def test_what_cannot_be_trained_at_once_is_refused(code, changes, reason, tmp_path, monkeypatch):
    if code:
        name = f"own_{reason.split()[0]}"
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        changes = {"task": {"model": {"name": f"{name}:Net", "head": "head"}}}
    with pytest.raises(ScenarioError, match=f"engine.vectorize .*{reason}.*vectorize = 0"):
        preflight(scenario(engine={"vectorize": 2}, **changes))


def test_where_flower_asks_for_each_client_alone_it_says_so():
    asked = scenario(engine={"name": "flower", "vectorize": 2})
    (caution,) = preflight(asked)[1]
    assert caution.startswith("engine.vectorize has no effect")
    assert preflight(scenario(engine={"workers": 1, "vectorize": 2}), nodes_decide=True)[1]
    assert not preflight(scenario(engine={"workers": 1, "vectorize": 2}))[1]
