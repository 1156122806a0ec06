"""Which batches hooks count, with which labels, and whose training they see."""

import logging
import threading
from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAvg
from flwr.serverapp.strategy import FedAvg as Averaging
from torch import nn

from defenses import GaussianNoise
from fedsim import HonestButCurious, defend, reveal, watch
from fedsim.attacking.consistency import consistency
from fedsim.engine.inline import InlineGrid
from fedsim.errors import ScenarioError
from fedsim.federation.training_hooks import Watching
from fedsim.federation.watching import TRUTH_KEY
from fedsim.runs.truth import Origin
from fedsim.runs.truth_store import find, move, store
from fedsim.tasks.classification import cross_entropy


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_TRUTH", str(tmp_path / "store"))


def batch(number, size=4):
    rng = torch.Generator().manual_seed(number)
    return torch.rand(size, 6, generator=rng), torch.full((size,), number % 3)


def seen(train, labels=None):
    """What a watch saw of train(net, offer), in which `offer` is what `reveal` does."""
    net, watching = nn.Linear(6, 3), Watching(Origin())
    with watching.hooks():
        train(net, lambda one: watching.offer(one, labels))
    return find(watching.save())


def stepping(net, **settings):
    return torch.optim.SGD(net.parameters(), lr=0.1, **settings)


def step(net, optimizer, x, y):
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def bag(file):
    return [int(one[0]) for one in file.labels]


def test_a_batch_has_its_own_labels_when_others_are_loaded_ahead():
    def ahead(net, offer, change=lambda x: x):
        optimizer = stepping(net)
        offer(batch(0))
        for number in range(3):
            offer(batch(number + 1))
            step(net, optimizer, change(batch(number)[0]), batch(number)[1])

    def skipping(net, offer):
        for number in range(3):
            offer(batch(number))
        step(net, stepping(net), *batch(2))

    def by_hand(net, offer):
        offer(batch(0))
        offer(batch(1))
        net(batch(0)[0] * 2).sum().backward()

    assert bag(seen(ahead)) == [0, 1, 2]
    assert bag(seen(lambda net, offer: ahead(net, offer, lambda x: 2 * x - 1))) == [0, 1, 2]
    assert bag(seen(skipping)) == [2]
    # Changed inputs, two batches waiting, and no step that the pairing could be checked with.
    assert bag(seen(by_hand)) == []
    assert seen(by_hand).truth().inputs is not None


def test_a_batch_that_is_used_again_counts_again_and_is_kept_once():
    def again(net, offer):
        optimizer = stepping(net)
        for number in range(2):
            offer(batch(number))
        for _ in range(3):
            for number in range(2):
                step(net, optimizer, *batch(number))

    file = seen(again)
    assert file.seen.sizes == (4,) * 6
    assert bag(file) == [0, 1] * 3
    assert set(file.tensors("inputs.")) == {"inputs.0", "inputs.1"}
    assert torch.equal(file.inputs[4], batch(0)[0])


def test_forward_passes_that_train_nothing_do_not_count():
    def accuracy(net, offer):
        optimizer = stepping(net)
        offer(batch(0))
        nn.functional.cross_entropy(net(batch(0)[0]), batch(0)[1]).backward()
        net(batch(0)[0])  # for the accuracy
        optimizer.step()
        offer(batch(1))
        net(batch(1)[0])  # after the last step

    assert seen(accuracy).seen.sizes == (4,)


def test_a_step_counts_once_whoever_calls_it():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step(closure)

    def with_closure(net, offer, wrap=lambda one: one):
        optimizer = wrap(stepping(net))

        def loss():
            optimizer.zero_grad()
            value = nn.functional.cross_entropy(net(batch(0)[0]), batch(0)[1])
            value.backward()
            return value

        offer(batch(0))
        optimizer.step(loss)

    file = seen(with_closure)
    assert (file.seen.steps, file.seen.ends, file.seen.sizes) == (1, (1,), (4,))
    file = seen(lambda net, offer: with_closure(net, offer, Wrapper))
    assert (file.seen.steps, file.seen.wrapper, file.seen.optimizer) == (1, "Wrapper", "sgd")


def test_the_learning_rate_is_that_of_the_steps_or_unknown():
    def warming_up(net, offer):
        optimizer = stepping(net)
        for number, rate in enumerate((0.0, 0.1, 0.2)):
            optimizer.param_groups[0]["lr"] = rate
            offer(batch(number))
            step(net, optimizer, *batch(number))

    def two_groups(net, offer):
        groups = [{"params": [net.weight], "lr": 1.0}, {"params": [net.bias]}]
        offer(batch(0))
        step(net, torch.optim.SGD(groups, lr=0.1), *batch(0))

    def two_optimizers(net, offer, head=1.0):
        each = torch.optim.SGD([net.weight], lr=0.1), torch.optim.SGD([net.bias], lr=head)
        for number in range(3):
            offer(batch(number))
            nn.functional.cross_entropy(net(batch(number)[0]), batch(number)[1]).backward()
            for one in each:
                one.step()

    assert seen(warming_up).seen.lr == pytest.approx(0.1)
    both = seen(two_optimizers).seen
    assert (both.steps, both.sizes, both.lr, both.uniform) == (3, (4, 4, 4), None, False)
    assert seen(lambda net, offer: two_optimizers(net, offer, head=0.1)).seen.lr == 0.1
    assert seen(two_groups).seen.lr is None


def test_labels_are_named_where_they_cannot_be_told():
    x, y = batch(1)

    def three(net, offer):
        offer((x, y, torch.arange(4)))
        step(net, stepping(net), x, y)

    def dictionary(net, offer):
        offer({"digit": y, "image": x, "labels": torch.arange(4)})
        step(net, stepping(net), x, y)

    with pytest.warns(UserWarning, match=r"3 parts.*reveal\(loader, labels=1\)"):
        assert bag(seen(three)) == []
    assert bag(seen(three, labels=1)) == [1]
    assert bag(seen(three, labels=-2)) == [1]
    assert bag(seen(dictionary)) == [0]
    assert bag(seen(dictionary, labels="digit")) == [1]
    with pytest.raises(ScenarioError, match="a batch has the parts"):
        seen(dictionary, labels="digits")


def test_labels_are_one_class_of_each_example():
    def labelled(y):
        def train(net, offer):
            offer((batch(0)[0], y))
            step(net, stepping(net), *batch(0))

        return seen(train).truth(3).labels

    assert labelled(torch.tensor([[0], [1], [2], [0]])).tolist() == [0, 1, 2, 0]
    for wrong in ([0, 1, 2, 3], [-1, 0, 1, 2], [[0, 1]] * 4, [0, 1]):
        assert labelled(torch.tensor(wrong)) is None


def test_what_other_threads_train_is_not_seen():
    other = nn.Linear(6, 3)

    def train(net, offer):
        offer(batch(0))
        thread = threading.Thread(target=lambda: step(other, stepping(other), *batch(5)))
        thread.start()
        thread.join()
        step(net, stepping(net), *batch(0))

    assert seen(train).seen.sizes == (4,)
    assert seen(train).seen.steps == 1


def asked():
    content = {
        "arrays": ArrayRecord(nn.Linear(6, 3).state_dict()),
        "config": ConfigRecord({"server-round": 1}),
    }
    InlineGrid(1)  # introduces the sender
    return Message(RecordDict(content), 1000, "train")


def context():
    return Context(run_id=1, node_id=1000, node_config={}, state=RecordDict(), run_config={})


def test_of_two_watches_the_outer_one_sees():
    def train(message, context):
        net = nn.Linear(6, 3)
        for x, y in reveal([batch(0)]):
            step(net, stepping(net), x, y)
        arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": 4})
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    reply = watch()(asked(), context(), lambda *both: watch()(*both, train))
    (file,) = [one.name for one in store().iterdir()]
    assert file == f"{reply.content.config_records[TRUTH_KEY]['name']}.safetensors"
    assert find(file.partition(".")[0]).seen.steps == 1


def test_a_watch_in_front_of_defend_is_refused_in_a_sentence():
    app = ClientApp()

    @app.train(mods=[watch(), defend(GaussianNoise(sigma=0.1))])
    def train(message, context):
        arrays, metrics = message.content["arrays"], MetricRecord({"num-examples": 4})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    (reply,) = InlineGrid(1, app).send_and_receive([asked()])
    assert "mods=[defend(...), watch()]" in reply.error.reason


def test_secure_aggregation_is_refused_in_a_sentence():
    with pytest.raises(ScenarioError, match="strategies of another Flower project receive single"):
        HonestButCurious(Averaging(), model=nn.Identity, training={"secure_aggregation": "secagg+"})


def test_the_legacy_api_is_refused_in_a_sentence():
    class Old(NumPyClient):
        def fit(self, parameters, config):
            return parameters, 1, {}

    def old(context: Context):
        return Old().to_client()

    (reply,) = InlineGrid(1, ClientApp(client_fn=old, mods=[watch()])).send_and_receive([asked()])
    assert "legacy API" in reply.error.reason
    assert "@app.train(mods=[watch()])" in reply.error.reason
    with pytest.raises(TypeError, match=r"FedAvg is no strategy of flwr\.serverapp\.strategy"):
        HonestButCurious(FedAvg(), model=nn.Identity)


def test_dropout_on_another_device_is_not_checked(tmp_path):
    def make():
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))

    net, watching = make(), Watching(Origin())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with watching.hooks():
        watching.offer(batch(0))
        step(net, stepping(net), *batch(0))
    watching.replied(ArrayRecord(net.state_dict()))
    file = find(watching.save())
    assert consistency(file, before, make, cross_entropy, file.truth(3)) == "fits"
    elsewhere = file.seen.model_copy(update={"device": "cuda"})
    moved = move(file, tmp_path / "run/r0001-c0000.safetensors", elsewhere)
    said = consistency(moved, before, make, cross_entropy, moved.truth(3))
    assert said == "not checked: the model drops out at random on cuda, which cannot be repeated"


def test_a_long_replay_says_how_far_it_is(monkeypatch, caplog):
    net, watching = nn.Linear(6, 3), Watching(Origin())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with watching.hooks():
        optimizer = stepping(net)
        for number in range(3):
            watching.offer(batch(number))
            step(net, optimizer, *batch(number))
    watching.replied(ArrayRecord(net.state_dict()))
    file, make = find(watching.save()), partial(nn.Linear, 6, 3)
    monkeypatch.setattr("fedsim.attacking.consistency.EVERY", 0.0)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level(logging.INFO, "flwr"):
        assert consistency(file, before, make, cross_entropy, file.truth(3)) == "fits"
    assert "fedsim: repeating a training: step 2 of 3" in caplog.messages
