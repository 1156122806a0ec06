"""Under secure aggregation a client that breaks the protocol costs its own update alone."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from support.secure_rounds import (
    arrays,
    clients_in,
    conducted,
    error_bound,
    furthest,
    mean,
    plain,
    secure,
)
from support.tiny import config, initial, weights

from fedsim.engine.inline import InlineGrid
from fedsim.federation import client
from fedsim.federation.secure import MASKED_KEY, SECAGGPLUS_KEY
from fedsim.federation.secure.grid import SecureGrid
from fedsim.federation.secure.secaggplus import CLIPPING

pytestmark = pytest.mark.usefixtures("rogues")


def meddled(change):
    """fedsim's client, but client 2 sends what `change` makes of its reply."""
    app = ClientApp()

    def answer(message, context):
        reply = client.app(message, context)
        if client.client_number(context) == 2:
            change(reply)
        return reply

    app.train()(answer)
    app.query()(answer)
    return app


def replaced(**record):
    def change(reply):
        if "masked" in reply.content.array_records.get(MASKED_KEY, {}):
            vector = reply.content.array_records[MASKED_KEY]["masked"].numpy()
            made = {key: Array(make(vector)) for key, make in record.items()}
            reply.content[MASKED_KEY] = ArrayRecord(made)

    return change


def unmeant(reply):
    if client.UPDATE_KEY in reply.content:
        del reply.content[client.UPDATE_KEY]


def other_kind(reply):
    if client.UPDATE_KEY in reply.content:
        reply.content[client.UPDATE_KEY]["kind"] = "delta"


def overstated(reply):
    if client.UPDATE_KEY in reply.content:
        reply.content[client.UPDATE_KEY]["steps"] = 2_000_000


def unreadable(reply):
    if "masked" in reply.content.array_records.get(MASKED_KEY, {}):
        rubbish = Array("uint64", (2,), "numpy.ndarray", b"cos\nsystem\n(S'true'\ntR.")
        reply.content[MASKED_KEY] = ArrayRecord({"masked": rubbish})


def more_records(reply):
    if MASKED_KEY in reply.content:
        reply.content["more"] = ArrayRecord({"w": Array(np.ones(2))})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (replaced(masked=lambda v: v[:-1]), "of shape"),
        (replaced(masked=lambda v: v.astype(np.float64)), "float64"),
        (replaced(masked=lambda v: v, more=lambda v: v), "no masked vector"),
        (replaced(other=lambda v: v), "no masked vector"),
        (unreadable, "cannot be read"),
        (more_records, "no masked vector"),
        (unmeant, "does not say what"),
        (other_kind, "the description of its arrays differs"),
        (overstated, "it states 2000000 local steps"),
    ],
)
def test_a_hostile_masked_reply_costs_only_itself(change, why):
    run = secure()
    replies, _ = conducted(run, meddled(change))
    good, bad = sorted(replies, key=lambda reply: reply.has_error())
    assert why in bad.error.reason
    assert bad.metadata.src_node_id == 1002
    assert clients_in(good) == [0, 1, 3, 4, 5]
    assert furthest(arrays(good), mean(plain(run, [0, 1, 3, 4, 5]))) < 1e-6


def test_a_survivor_that_will_not_tell_its_masks_is_left_out_too():
    def change(reply):
        if "masks" in reply.content.array_records.get(MASKED_KEY, {}):
            del reply.content[MASKED_KEY]

    run = secure(defenses=[{"name": "faulty", "how": "raise", "round": 1, "client": 4}])
    replies, _ = conducted(run, meddled(change))
    good = [reply for reply in replies if not reply.has_error()]
    assert clients_in(good[0]) == [0, 1, 3, 5]
    assert furthest(arrays(good[0]), mean(plain(run, [0, 1, 3, 5]))) < 1e-6


def test_a_sum_that_is_none_is_refused():
    def change(reply):
        if "masked" in reply.content.array_records.get(MASKED_KEY, {}):
            vector = reply.content.array_records[MASKED_KEY]["masked"].numpy()
            noise = np.random.default_rng(0).integers(0, 2**63, len(vector), dtype=np.uint64)
            reply.content[MASKED_KEY] = ArrayRecord({"masked": Array(noise)})

    replies, _ = conducted(secure(), meddled(change))
    assert len(replies) == 6
    assert all("did not send a masked update" in reply.error.reason for reply in replies)


def garbled(reply):
    record = reply.content.config_records.get(SECAGGPLUS_KEY, {})
    if "masked_params" in record:
        record["masked_params"] = [b"rubbish", b""]


def shorter(reply):
    record = reply.content.config_records.get(SECAGGPLUS_KEY, {})
    if "masked_params" in record:
        record["masked_params"] = [record["masked_params"][0]] * 2


def boastful(reply):
    records = reply.content.metric_records
    if "fitres.num_examples" in records:
        records["fitres.num_examples"]["num_examples"] = 5


def raises_at(stage):
    def change(reply):
        keys = {"setup": "pk1", "share_keys": "ctxts", "unmask": "shares"}
        if keys[stage] in reply.content.config_records.get(SECAGGPLUS_KEY, {}):
            raise RuntimeError("gone")

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (garbled, "cannot be read"),
        (shorter, "its masked vectors are"),
        (boastful, "claims 5 examples"),
        (other_kind, "the description of its arrays differs"),
        (overstated, "it states 2000000 local steps"),
        (raises_at("setup"), "gone"),
        (raises_at("share_keys"), "gone"),
    ],
)
def test_a_hostile_or_vanished_client_costs_only_itself_in_secagg_plus(change, why):
    run = secure("secagg+")
    replies, _ = conducted(run, meddled(change))
    good, bad = sorted(replies, key=lambda reply: reply.has_error())
    assert why in bad.error.reason
    assert bad.metadata.src_node_id == 1002
    assert clients_in(good) == [0, 1, 3, 4, 5]
    expected = mean(plain(run, [0, 1, 3, 4, 5]))
    assert furthest(arrays(good), expected) < error_bound(6, 20, 4) + 1e-7


def test_who_vanishes_while_unmasking_is_in_the_sum_already():
    run = secure("secagg+")
    (reply,), _ = conducted(run, meddled(raises_at("unmask")))
    assert clients_in(reply) == list(range(6))
    assert furthest(arrays(reply), mean(plain(run))) < error_bound(6, 24, 4) + 1e-7


def test_values_that_secagg_plus_would_clip_are_refused(tmp_path):
    run = secure("secagg+", training={"algorithm": "fedavg"})
    big = {
        name: torch.full_like(value, 2 * CLIPPING) for name, value in weights(initial(run)).items()
    }
    content = RecordDict({"arrays": ArrayRecord(big), "config": config(run, **{"server-round": 1})})
    grid = SecureGrid(InlineGrid(6), "secagg+", seed=3, most=4)
    replies = grid.send_and_receive([Message(content, 1000 + i, "train") for i in range(6)])
    assert all("SecAgg+ would clip" in reply.error.reason for reply in replies)
