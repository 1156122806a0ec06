"""The mod `defend` protects the replies of a ClientApp in someone's own Flower project."""

import re

import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from support.rogues import Counting, Trainer
from support.tiny import same, sent

from defenses import GaussianNoise, Sign
from fedsim import Update
from fedsim.engine.inline import InlineGrid
from fedsim.errors import PluginError, ScenarioError
from fedsim.federation import client
from fedsim.federation.client import defend
from fedsim.seeds import torch_generator

pytestmark = pytest.mark.usefixtures("rogues")

BEFORE = {"w": torch.tensor([1.0, 2.0, 3.0]), "count": torch.tensor(3)}
AFTER = {"w": torch.tensor([1.5, 1.0, 3.0]), "count": torch.tensor(4)}


def foreign(*mods) -> ClientApp:
    """A client that always sends AFTER."""
    app = ClientApp()

    @app.train(mods=list(mods))
    @app.evaluate(mods=list(mods))
    def reply(message, context):
        content = {"its-own": ArrayRecord(AFTER), "m": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def asked(app, *, grid=None, round=1, kind=MessageType.TRAIN):
    content = RecordDict({"a": ArrayRecord(BEFORE), "c": ConfigRecord({"server-round": round})})
    (reply,) = (grid or InlineGrid(2, app)).send_and_receive([Message(content, 1001, kind)])
    return reply


def test_defend_changes_the_delta_of_the_weights_under_their_own_key():
    reply = asked(foreign(defend(Sign(scale=0.25))))
    after = reply.content["its-own"].to_torch_state_dict()
    assert after["w"].tolist() == [1.25, 1.75, 3.0]
    assert after["count"].dtype == torch.int64
    assert int(after["count"]) == 4


def test_defend_without_noise_changes_no_bit():
    for defenses in ([], [GaussianNoise(sigma=0)]):
        after = asked(foreign(defend(*defenses))).content["its-own"].to_torch_state_dict()
        assert same(dict(after), AFTER)


def test_defend_draws_by_seed_client_and_round():
    def noise(seed, round):
        app = foreign(defend(GaussianNoise(sigma=1), seed=seed))
        return sent(asked(app, round=round))["w"]

    assert torch.equal(noise(0, 1), noise(0, 1))
    assert not torch.equal(noise(0, 1), noise(1, 1))
    assert not torch.equal(noise(0, 1), noise(0, 2))


def test_noise_that_nobody_gave_a_seed_for_cannot_be_subtracted():
    received, sent_without = BEFORE["w"], AFTER["w"]
    guesses = []
    for seed in (None, 0):
        app = foreign(defend(GaussianNoise(sigma=1), seed=seed))
        noisy = sent(asked(app))["w"]
        rng = torch_generator(0, "defense.0.gaussian-noise", 1, 1)
        change = GaussianNoise(sigma=1).protect(zeros(received), rng, {})
        guesses.append(noisy - change.tensors["w"])
    assert torch.allclose(guesses[1], sent_without, atol=1e-6), "whoever knows a seed can"
    assert not torch.allclose(guesses[0], sent_without, atol=0.1)


def test_noise_without_a_seed_is_new_in_every_reply():
    app = foreign(defend(GaussianNoise(sigma=1)))
    first, again = (sent(asked(app))["w"] for _ in range(2))
    assert not torch.allclose(first, again, atol=0.1)


def zeros(like):
    return Update(tensors={"w": torch.zeros_like(like)}, kind="delta")


@pytest.mark.parametrize(
    ("received", "said"),
    [
        ({"v": torch.ones(3)}, "nothing was received"),
        ({"w": torch.ones(2)}, r"\(2,\) was received"),
    ],
)
def test_defend_says_which_array_does_not_fit_what_was_received(received, said):
    content = RecordDict({"a": ArrayRecord(received), "c": ConfigRecord({"server-round": 1})})
    grid = InlineGrid(2, foreign(defend(Sign())))
    (reply,) = grid.send_and_receive([Message(content, 1001, MessageType.TRAIN)])
    assert reply.has_error()
    assert re.search(rf"array 'w' has shape \(3,\), and {said}", reply.error.reason)


def test_a_defense_that_empties_its_state_has_none_the_next_time():
    class Once(Sign):
        def protect(self, update, rng, state):
            seen.append(dict(state))
            if state:
                state.clear()
            else:
                state["kept"] = torch.ones(1)
            return update

    seen = []
    grid = InlineGrid(2, foreign(defend(Once())))
    for round in (1, 2, 3):
        asked(None, grid=grid, round=round)
    assert [bool(state) for state in seen] == [False, True, False]


def test_defend_keeps_a_defenses_state_on_the_client():
    grid = InlineGrid(2, foreign(defend(Counting())))
    values = [float(sent(asked(None, grid=grid, round=r))["w"][2]) for r in (1, 2, 3)]
    assert values == [3.0, 4.0, 5.0]


def test_defend_leaves_evaluation_and_errors_alone():
    app = foreign(defend(Sign()))
    assert same(sent(asked(app, kind=MessageType.EVALUATE)), AFTER)

    failing = ClientApp()

    @failing.train(mods=[defend(Sign())])
    def train(message, context):
        return Message(Error(code=7, reason="no data"), reply_to=message)

    assert asked(failing).error.reason == "no data"


def test_a_defense_that_trains_is_refused_by_defend():
    with pytest.raises(PluginError, match="'trainer' changes local training"):
        defend(Sign(), Trainer())
    with pytest.raises(ScenarioError, match=r"defenses: found .*Sign.*expected an object"):
        defend(Sign)


def test_defend_says_what_it_cannot_protect():
    app = ClientApp()

    @app.train(mods=[defend(Sign())])
    def train(message, context):
        arrays = {"a": ArrayRecord(AFTER), "b": ArrayRecord(AFTER)}
        return Message(RecordDict(arrays), reply_to=message)

    reply = asked(app)
    assert reply.has_error()
    assert "one ArrayRecord" in reply.error.reason


def test_protect_without_defenses_is_the_very_same_update():
    from fedsim.records import Update

    update = Update(tensors={"w": torch.ones(2)}, kind="weights")
    assert client.protect(update, {}, [], (0, 1, 0), RecordDict()) is update
