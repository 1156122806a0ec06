"""Under secure aggregation clients that drop out are named, and the others' sum is exact."""

import json

import pytest
from flwr.clientapp import ClientApp
from support.secure_rounds import (
    PROTOCOLS,
    arrays,
    clients_in,
    conducted,
    error_bound,
    furthest,
    mean,
    plain,
    secure,
)
from support.tiny import faulty, rows

from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError
from fedsim.federation import client

pytestmark = pytest.mark.usefixtures("rogues", "unreported")


def dropped(folder, round):
    """Why clients dropped out in a round, as the log has it."""
    events = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    (found,) = (
        one["clients"] for one in events if one["event"] == "refused" and one["round"] == round
    )
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", ["raise", "nan", "inf", "missing", "extra", "shape", "huge"])
def test_a_dropout_is_recovered_exactly_and_named(how, protocol, tmp_path):
    run = faulty(how, training={"on_failure": "drop", "secure_aggregation": protocol})
    others = [0, 1, 3, 4, 5]
    said = {"raise": "fell over", "missing": "missing", "extra": "stowaway", "shape": "has shape"}
    simulate(run, tmp_path)
    found = {(row["round"], row["client"], row["status"]) for row in rows(tmp_path)}
    assert found == {("1", "0+1+2+3+4+5", "ok"), ("2", "0+1+3+4+5", "ok")}
    ((client, why),) = dropped(tmp_path, 2).items()
    assert client == "2"
    assert said.get(how, "it holds" if how == "huge" else "NaN") in why or "1e+15" in why
    defenses = [{"name": "faulty", "how": how, "round": 1}]
    first = run.model_copy(update={"defenses": defenses})
    replies, _ = conducted(first)
    expected = mean(plain(first, others))
    good = [reply for reply in replies if not reply.has_error()]
    assert [clients_in(reply) for reply in good] == [others]
    near = 1e-6 if protocol == "masked-sum" else error_bound(6, 20, 4) + 1e-7
    assert furthest(arrays(good[0]), expected) < near
    assert len(replies) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stop_names_the_client(protocol, tmp_path):
    run = faulty("raise", training={"secure_aggregation": protocol})
    with pytest.raises(ClientError, match=r"client 2: .*fell over"):
        simulate(run, tmp_path)
    found = {(row["client"], row["status"]) for row in rows(tmp_path) if row["round"] == "2"}
    assert found == {("0+1+3+4+5", "ok")}
    assert {*dropped(tmp_path, 2)} == {"2"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fewer_than_two_are_no_sum(protocol, tmp_path):
    run = faulty(
        "raise",
        training={
            "clients": 3,
            "clients_per_round": 3,
            "on_failure": "drop",
            "secure_aggregation": protocol,
        },
    )
    simulate(run, tmp_path)  # of three, two are still a sum
    assert {row["client"] for row in rows(tmp_path)} == {"0+1+2", "0+1"}
    two = faulty(
        "raise",
        adversaries=[{"name": "llg"}],
        training={"on_failure": "drop", "secure_aggregation": protocol},
    )
    first = two.model_copy(update={"defenses": [{"name": "faulty", "how": "raise", "round": 1}]})
    replies, _ = conducted(first, clients=[1, 2])
    assert all(reply.has_error() for reply in replies)
    reasons = {reply.metadata.src_node_id: reply.error.reason for reply in replies}
    assert "fell over" in reasons[1002]
    assert "1 of 2 clients are left" in reasons[1001]
    alone, wire = conducted(two, clients=[1])
    assert "the sum of one update is that update" in alone[0].error.reason
    assert wire.replies == []  # not even masked, for there is nobody to share a mask with


def test_many_dropouts_are_recovered_while_masks_tie_the_others_together():
    run = secure()

    def app_without(*gone):
        app = ClientApp()

        @app.train()
        def train(message, context):
            if client.client_number(context) in gone:
                raise RuntimeError("gone")
            return client.app(message, context)

        @app.query()
        def query(message, context):
            return client.app(message, context)

        return app

    replies, _ = conducted(run, app_without(0, 1, 3, 5))
    good = [reply for reply in replies if not reply.has_error()]
    assert clients_in(good[0]) == [2, 4]
    assert furthest(arrays(good[0]), mean(plain(run, [2, 4]))) < 1e-6


def test_too_many_dropouts_stop_secagg_plus_with_the_reason():
    app = ClientApp()

    @app.train()
    def train(message, context):
        if "arrays" in message.content and client.client_number(context) > 2:
            raise RuntimeError("gone")
        return client.app(message, context)

    replies, _ = conducted(secure("secagg+"), app)
    reasons = {reply.metadata.src_node_id - 1000: reply.error.reason for reply in replies}
    assert set(reasons) == set(range(6))
    assert "gone" in reasons[5]
    assert "stopped while collecting: 3 of 6 clients are left, and each needs 4" in reasons[0]


@pytest.mark.parametrize("victims", [1, "all"])
def test_a_sum_is_attacked_whoever_is_missing_in_it(victims, tmp_path):
    run = faulty(
        "raise",
        threat={"victims": victims},
        training={"rounds": 4, "on_failure": "drop", "secure_aggregation": "masked-sum"},
    )
    falls = [{"name": "faulty", "how": "raise", "round": round} for round in (2, 3, 4)]
    simulate(run.model_copy(update={"defenses": falls}), tmp_path)
    found = {(row["round"], row["client"], row["inclusion"]) for row in rows(tmp_path)}
    others = {(str(round), "0+1+3+4+5", "1.0") for round in (2, 3, 4)}
    assert found == {("1", "0+1+2+3+4+5", "1.0"), *others}


def test_a_round_without_a_sum_is_one_failed_attack(tmp_path):
    run = faulty(
        "raise",
        training={
            "clients": 2,
            "clients_per_round": 2,
            "on_failure": "drop",
            "secure_aggregation": "masked-sum",
        },
    )
    defenses = [{"name": "faulty", "how": "raise", "client": 1}]
    simulate(run.model_copy(update={"defenses": defenses}), tmp_path)
    found = {(row["round"], row["client"], row["status"]) for row in rows(tmp_path)}
    assert found == {("1", "0+1", "ok"), ("2", "0+1", "failed")}
    (error,) = {row["error"] for row in rows(tmp_path) if row["status"] == "failed"}
    assert "1 of 2 clients are left" in error
