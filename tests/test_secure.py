"""Under secure aggregation the server gets the sum, the right sum, and no single update."""

import itertools
import json
import random
import tomllib
from typing import ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as some
from rogues import Historian
from safetensors.torch import load_file
from test_campaign import reachable
from tiny import config, faulty, initial, rows, same, scenario, timeless, weights

from fedsim import HonestButCurious, client
from fedsim.adversary import Adversary
from fedsim.attack import Bench
from fedsim.campaign import Campaign, InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.errors import ClientError, EngineError, ScenarioError, UpdateRefused
from fedsim.grid import Through
from fedsim.knowledge import Knowledge
from fedsim.ledger import Ledger
from fedsim.records import Reconstruction
from fedsim.scenario import Scenario
from fedsim.secure import CLIENTS_KEY, MASKED_KEY, SECAGGPLUS_KEY, masking
from fedsim.secure.client import Round
from fedsim.secure.grid import SecureGrid
from fedsim.secure.secaggplus import CLIPPING, error_bound
from fedsim.settings import AttackPlan
from fedsim.simulation import simulate
from fedsim.strategies import AVERAGING, build_strategy, strategy_names
from fedsim.tape import Tape

pytestmark = pytest.mark.usefixtures("rogues")

PROTOCOLS = ["masked-sum", "secagg+"]


def secure(protocol="masked-sum", **changes):
    """The tiny scenario, all six clients a round, under secure aggregation."""
    settings = {"clients_per_round": 6, "secure_aggregation": protocol}
    return scenario(**{**changes, "training": {**settings, **changes.get("training", {})}})


def unequal(protocol="masked-sum", algorithm="fedavg", model="cnn"):
    """Clients that hold different numbers of examples, and use all of them."""
    return secure(
        protocol,
        task={
            "model": model,
            "train_examples": 100,
            "partition": {"kind": "dirichlet", "alpha": 1.0},
        },
        training={"algorithm": algorithm, "batch_size": 40},
    )


class Wire(Through):
    """What travels between a Grid and its clients."""

    def __init__(self, grid):
        super().__init__(grid)
        self.replies = []

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(self._grid.send_and_receive(messages))
        self.replies += replies
        return replies


def asked(run, round=1, clients=range(6)):
    content = RecordDict({"arrays": initial(run), "config": config(run, **{"server-round": round})})
    return [Message(content, 1000 + number, MessageType.TRAIN) for number in clients]


def conducted(run, app=client.app, clients=range(6)):
    """Replies of the SecureGrid to one round, and what travelled."""
    settings = run.training
    wire = Wire(InlineGrid(6, app))
    most = settings.batch_size * settings.local_steps
    grid = SecureGrid(wire, settings.secure_aggregation, seed=run.seed, most=most)
    return list(grid.send_and_receive(asked(run, clients=clients))), wire


def arrays(reply):
    (record,) = reply.content.array_records.values()
    return {name: array.numpy().astype(np.float64) for name, array in record.items()}


def plain(run, clients=range(6)):
    """Each client's update without secure aggregation, and its number of examples."""
    replies = InlineGrid(6).send_and_receive(asked(run, clients=clients))
    return [(arrays(r), r.content.metric_records["metrics"]["num-examples"]) for r in replies]


def mean(updates):
    total = sum(examples for _, examples in updates)
    return {
        name: sum(update[name] * examples for update, examples in updates) / total
        for name in updates[0][0]
    }


def furthest(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)


def clients_in(reply):
    return list(reply.content.config_records[CLIENTS_KEY]["clients"])


# --- the sum is the sum -----------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_the_masked_sum_is_the_plain_sum(algorithm, model):
    run = unequal(algorithm=algorithm, model=model)
    updates = plain(run)
    counts = [examples for _, examples in updates]
    assert len(set(counts)) > 2
    (reply,), _ = conducted(run)
    assert furthest(arrays(reply), mean(updates)) < 1e-6
    assert any("running_var" in name for name in arrays(reply)) == (model == "resnet20")
    assert clients_in(reply) == list(range(6))
    metrics = reply.content.metric_records["metrics"]
    assert metrics["num-examples"] == sum(counts)
    assert 1 < metrics["train_loss"] < 5


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_secagg_plus_is_within_its_bound(algorithm):
    run = unequal("secagg+", algorithm, "resnet20")
    updates = plain(run)
    counts = [examples for _, examples in updates]
    (reply,), _ = conducted(run)
    bound = error_bound(6, sum(counts), 40)
    assert bound < 3e-6
    # The mean comes back as float32, whose own steps near a weight of 1 are 6e-8.
    assert furthest(arrays(reply), mean(updates)) < bound + 1e-7
    assert reply.content.metric_records["metrics"]["num-examples"] == sum(counts)


@pytest.mark.parametrize(("protocol", "near"), [("masked-sum", 1e-5), ("secagg+", 1e-4)])
@pytest.mark.parametrize("strategy", ["FedAvg", "FedAdam", "FedAvgM"])
def test_a_run_trains_as_it_would_without(strategy, protocol, near, tmp_path):
    def trained(setting):
        run = scenario(
            training={
                "algorithm": "fedavg",
                "rounds": 3,
                "local_steps": 2,
                "strategy": strategy,
                "secure_aggregation": setting,
                "evaluate_clients": 2,
            },
            adversaries=[],
        )
        simulate(run, tmp_path / str(setting))
        utility = rows(tmp_path / str(setting), "utility.csv")
        return {(row["round"], row["metric"]): float(row["value"]) for row in utility}

    ours, theirs = trained(protocol), trained(False)
    assert ours == pytest.approx(theirs, abs=near, rel=near)
    assert ("3", "client_accuracy") in ours
    assert ("3", "train_loss") in ours


# --- and nothing but the sum ------------------------------------------------------------------


def masked_vectors(wire):
    """By client, the masked vector that travelled."""
    found = {}
    for reply in wire.replies:
        records = reply.content.array_records
        if MASKED_KEY in records:
            found[reply.metadata.src_node_id - 1000] = records[MASKED_KEY]["masked"].numpy()
        masked = reply.content.config_records.get(SECAGGPLUS_KEY, {}).get("masked_params")
        if masked:
            vector = Array("int64", (), "numpy.ndarray", masked[1]).numpy()
            found[reply.metadata.src_node_id - 1000] = vector.astype(np.uint64) << np.uint64(32)
    return found


def looks_random(vector):
    """Whether the top byte of each entry is spread as evenly as dice would spread it."""
    counts = np.bincount((vector >> np.uint64(56)).astype(int), minlength=256)
    expected = len(vector) / 256
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    return abs(chi_squared - 255) < 6 * np.sqrt(2 * 255)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_travels_says_nothing_one_by_one_or_by_some(protocol):
    run = secure(protocol)
    updates = plain(run)
    _, wire = conducted(run)
    masked = masked_vectors(wire)
    assert set(masked) == set(range(6))
    for several in (1, 2, 5):
        for group in itertools.combinations(range(6), several):
            total = np.zeros_like(masked[0])
            for number in group:
                total += masked[number]
            assert looks_random(total), group
            own = masking.flatten(mean([updates[number] for number in group]))
            seen = total[-len(own) :].view(np.int64).astype(np.float64)
            assert abs(np.corrcoef(own, seen)[0, 1]) < 6 / np.sqrt(len(own)), group
    every = np.zeros_like(masked[0])
    for vector in masked.values():
        every += vector
    assert looks_random(every) == (protocol == "secagg+")  # which adds a mask of each one's own


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_else_travels_in_the_clear(protocol):
    _, wire = conducted(secure(protocol))
    for reply in wire.replies:
        content = reply.content
        told = json.dumps([list(record) for record in content.config_records.values()])
        assert "num_examples" not in told
        assert "loss" not in told
        for record in content.metric_records.values():
            # The weight: Flower's protocol sends it beside the masked vector.
            assert (protocol, list(record)) == ("secagg+", ["num_examples"])
        for record in content.array_records.values():
            assert all(array.numpy().dtype == np.uint64 for array in record.values())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_update_is_the_same_masked_twice(protocol):
    _, first = conducted(secure(protocol))
    _, second = conducted(secure(protocol, seed=4))
    ours, theirs = masked_vectors(first)[0], masked_vectors(second)[0]
    assert not np.array_equal(ours, theirs)


class Keeps(Adversary):
    """Keeps what it was handed."""

    name: ClassVar[str] = "keeps"
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_counts"})

    kept: ClassVar[list[object]] = []

    def reconstruct(self, seen, job):
        self.kept.append(seen)
        return Reconstruction(label_counts={0: 1})


def tensors_within(*starts):
    """Every float tensor and array that can be reached, by its bytes as float32."""
    found = {}
    for start in starts:
        for thing in reachable(start):
            if isinstance(thing, torch.Tensor) and thing.is_floating_point():
                found[thing.detach().float().numpy().tobytes()] = thing
            elif isinstance(thing, np.ndarray) and thing.dtype.kind == "f":
                found[thing.astype(np.float32).tobytes()] = thing
            elif isinstance(thing, Array):
                found[thing.numpy().astype(np.float32).tobytes()] = thing
    return found


@pytest.mark.parametrize("protocol", [False, *PROTOCOLS])
def test_no_single_update_is_reachable(protocol, tmp_path):
    run = secure(protocol, threat={"grants": "full"}, training={"rounds": 1})
    bench = Bench(run, adversaries=[("keeps", AttackPlan(name="keeps"), Keeps())])
    campaign = Campaign(
        run, Ledger.create(tmp_path, run), InlineExecutor(bench), adversaries=bench.adversaries
    )
    curious = HonestButCurious(build_strategy(run), campaign=campaign)
    heard = []
    received = curious.aggregate_train

    def listening(round, replies):
        heard.extend(replies)
        return received(round, heard)

    curious.aggregate_train = listening
    grid = InlineGrid(6)
    if protocol:
        grid = SecureGrid(grid, protocol, seed=run.seed, most=4)
    Keeps.kept.clear()
    curious.start(
        grid=grid,
        initial_arrays=initial(run),
        num_rounds=1,
        train_config=config(run),
    )
    # Where the replies were, and where the attacks are: all that a server or adversary holds.
    found = tensors_within(Keeps.kept, heard, curious.strategy, curious._sent)
    single = [
        update[name].astype(np.float32).tobytes()
        for update, _ in plain(run)
        for name in update
        if update[name].size > 4
    ]
    assert any(one in found for one in single) == (not protocol)
    total = arrays(heard[0])
    assert all(value.astype(np.float32).tobytes() in found for value in total.values())
    assert len(Keeps.kept) == (1 if protocol else 6)


# --- attacks on the aggregate -----------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_attacks_run_on_the_aggregate_and_name_all_its_clients(protocol, tmp_path):
    run = secure(
        protocol,
        training={"clients_per_round": 3, "batch_size": 2},
        threat={"grants": "full", "record": True, "victims": 1},
        adversaries=[
            {"name": "llg"},
            {"name": "vandal"},
            {"name": "dlg", "budget": 2},
            {"name": "rubbish", "how": "raise"},
        ],
    )
    page = simulate(run, tmp_path)
    found = rows(tmp_path)
    task = run.build_task()
    for one in Tape(tmp_path / "tape"):
        assert len(one.clients) == 3
        assert one.update.num_examples == 6
        name = "+".join(map(str, one.clients))
        own = [row for row in found if row["victim"] == one.victim]
        assert {row["client"] for row in own} == {name}
        assert {row["label"] for row in own} == {"llg", "vandal", "dlg", "rubbish"}
        assert {row["inclusion"] for row in own} == {"1.0"}
        assert {row["batch_size"] for row in own} == {"2"}
        union = [task.batches(c, one.round, batch_size=2, steps=1)[0] for c in one.clients]
        truth = Bench(run)._truth(one)
        assert torch.equal(truth.labels, torch.cat([batch.labels for batch in union]))
        assert name in page.read_text()
    assert len({row["round"] for row in found}) == 2
    status = {(row["label"], row["status"]) for row in found}
    assert status == {("llg", "ok"), ("vandal", "ok"), ("dlg", "ok"), ("rubbish", "failed")}


def test_the_gradient_that_an_adversary_sees_is_that_of_all_the_examples():
    run = unequal(algorithm="fedsgd")
    (reply,), _ = conducted(run)
    task = run.build_task()
    batches = [task.batches(c, 1, batch_size=40, steps=1)[0] for c in range(6)]
    inputs = torch.cat([batch.inputs for batch in batches])
    labels = torch.cat([batch.labels for batch in batches])
    whole = type(batches[0])(inputs, labels)
    module = task.module().train()
    training = client.local_training(run, task, module, [whole], torch.Generator(), ())
    gradient, loss = training.gradient(module, whole)
    for name, value in arrays(reply).items():
        torch.testing.assert_close(
            torch.from_numpy(value).float(), gradient[name], rtol=1e-4, atol=1e-6
        )
    assert reply.content.metric_records["metrics"]["train_loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("victims", [1, "all", [2], [0, 5]])
def test_whoever_is_chosen_it_is_the_aggregate_that_is_attacked(victims, tmp_path):
    run = secure(threat={"victims": victims}, training={"rounds": 1})
    simulate(run, tmp_path)
    assert {(row["client"], row["inclusion"]) for row in rows(tmp_path)} == {("0+1+2+3+4+5", "1.0")}


def test_an_aggregate_of_many_is_written_down_under_a_short_name(tmp_path):
    many = {"clients": 70, "clients_per_round": 70, "rounds": 1, "batch_size": 1}
    run = secure(training=many, threat={"record": True, "grants": "full"}, task={"size": 8})
    run = Scenario.parse({**run.to_dict(), "adversaries": [{"name": "dlg", "budget": 1}]})
    simulate(run, tmp_path)
    everyone = tuple(range(70))
    (caught,) = Tape(tmp_path / "tape")
    assert caught.clients == everyone
    (victim,) = {row["victim"] for row in rows(tmp_path)}
    assert victim.startswith("r0001-c0000+69-")
    assert len(victim) < 40
    assert {row["client"] for row in rows(tmp_path)} == {"+".join(map(str, everyone))}
    assert {row["status"] for row in rows(tmp_path)} == {"ok"}


def test_of_an_aggregate_there_is_no_history(tmp_path):
    run = secure(threat={"grants": ["HISTORY"], "follow": [5]}, adversaries=[{"name": "historian"}])
    Historian.lengths.clear()
    simulate(run, tmp_path)
    assert Historian.lengths == [0, 0]


# --- clients that drop out --------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", ["raise", "nan", "inf", "missing", "extra", "shape", "huge"])
def test_a_dropout_is_recovered_exactly_and_named(how, protocol, tmp_path):
    run = faulty(how, training={"on_failure": "drop", "secure_aggregation": protocol})
    others = [0, 1, 3, 4, 5]
    said = {"raise": "fell over", "missing": "missing", "extra": "stowaway", "shape": "has shape"}
    simulate(run, tmp_path)
    by_client = {}
    for row in rows(tmp_path):
        by_client.setdefault((row["round"], row["client"]), row)
    assert {place: row["status"] for place, row in by_client.items()} == {
        ("1", "0+1+2+3+4+5"): "ok",
        ("2", "0+1+3+4+5"): "ok",
        ("2", "2"): "failed",
    }
    assert said.get(how, "it holds" if how == "huge" else "NaN") in by_client["2", "2"][
        "error"
    ] or ("1e+15" in by_client["2", "2"]["error"])
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
    assert found == {("0+1+3+4+5", "ok"), ("2", "failed")}


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
    assert {row["client"] for row in rows(tmp_path)} == {"0+1+2", "0+1", "2"}
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
        (other_kind, "mean what the others' do not"),
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
        (other_kind, "mean what the others' do not"),
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


def test_values_that_secagg_plus_would_clip_are_refused(tmp_path):
    run = secure("secagg+", training={"algorithm": "fedavg"})
    big = {
        name: torch.full_like(value, 2 * CLIPPING) for name, value in weights(initial(run)).items()
    }
    content = RecordDict({"arrays": ArrayRecord(big), "config": config(run, **{"server-round": 1})})
    grid = SecureGrid(InlineGrid(6), "secagg+", seed=3, most=4)
    replies = grid.send_and_receive([Message(content, 1000 + i, "train") for i in range(6)])
    assert all("SecAgg+ would clip" in reply.error.reason for reply in replies)


# --- what is refused before any training ------------------------------------------------------


@pytest.mark.parametrize(
    "training", [{"clients": 1, "clients_per_round": 1}, {"clients_per_round": 1}]
)
def test_one_client_is_refused_with_the_reason(training):
    with pytest.raises(ScenarioError, match="the sum of one update is that update"):
        secure(training=training)


@pytest.mark.parametrize("name", strategy_names())
def test_strategies_that_look_at_single_updates_are_refused(name):
    settings = {"DifferentialPrivacy": {"noise_multiplier": 0.1, "clipping_norm": 0.1}}
    algorithm = "fedsgd" if name == "FedSGD" else "fedavg"
    run = secure(
        training={
            "algorithm": algorithm,
            "strategy": {"name": name, **settings.get(name[:19], {})},
        }
    )
    if name in AVERAGING:
        build_strategy(run)
    else:
        with pytest.raises(ScenarioError, match="looks at single updates"):
            build_strategy(run)


@pytest.mark.parametrize(
    ("given", "meant"),
    [(False, False), (True, "secagg+"), ("secagg+", "secagg+"), ("masked-sum", "masked-sum")],
)
def test_the_setting_survives_every_way_of_writing_it_down(given, meant):
    run = secure(given)
    assert run.training.secure_aggregation == meant
    assert Scenario.parse(tomllib.loads(run.to_toml())) == run
    assert Scenario.model_validate_json(run.model_dump_json()) == run


@pytest.mark.parametrize("wrong", ["secagg", "yes", 1, "", None])
def test_other_settings_are_refused(wrong):
    with pytest.raises(ScenarioError, match="'masked-sum'"):
        secure(wrong)


def test_the_setting_can_be_swept():
    run = secure()
    run = Scenario.parse(
        {**run.to_dict(), "sweep": {"training.secure_aggregation": [False, "masked-sum"]}}
    )
    assert [p.training.secure_aggregation for p in run.points().values()] == [False, "masked-sum"]


def test_a_single_update_where_a_sum_belongs_is_refused(tmp_path):
    run = secure(training={"rounds": 1})
    campaign = Campaign(run, Ledger.create(tmp_path, run), InlineExecutor(Bench(run)))
    curious = HonestButCurious(build_strategy(run), campaign=campaign, on_failure="stop")
    with pytest.raises(ClientError, match="train on a SecureGrid"):
        curious.start(
            grid=InlineGrid(6),
            initial_arrays=initial(run),
            num_rounds=1,
            train_config=config(run),
        )


def test_training_messages_cannot_be_pulled_one_by_one():
    run = secure()
    grid = SecureGrid(InlineGrid(6), "masked-sum", seed=3, most=4)
    with pytest.raises(EngineError, match="send_and_receive"):
        grid.push_messages(asked(run))
    queries = [Message(RecordDict(), 1000, MessageType.QUERY)]
    (answer,) = grid.pull_messages(grid.push_messages(queries))
    assert answer.content["client"]["client"] == 0


# --- it repeats, on every engine, and is taken up again ---------------------------------------


@pytest.mark.parametrize(
    ("engine", "protocols"),
    [("ray", PROTOCOLS), ("flower", ["secagg+"])],  # a start of Flower's takes half a minute
)
def test_every_engine_finds_what_one_process_finds(engine, protocols, tmp_path):
    import ray

    run = secure(
        protocols[0],
        training={"algorithm": "fedavg", "local_steps": 2, "on_failure": "drop"},
        defenses=[{"name": "faulty", "how": "raise"}],
    )
    run = run.model_copy(update={"sweep": {"training.secure_aggregation": protocols}})
    several = run.engine.model_copy(update={"name": engine, "workers": 2})
    simulate(run, tmp_path / "inline")
    try:
        simulate(run.model_copy(update={"engine": several}), tmp_path / "other")
    finally:
        ray.shutdown()

    def found(name):
        # Flower's engine tells a client's error with its traceback.
        hidden = {"error": ""} if engine == "flower" else {}
        return [{**row, **hidden} for row in timeless(tmp_path / name)]

    assert found("other") == found("inline")
    assert {row["client"] for row in found("other")} == {"0+1+2+3+4+5", "0+1+3+4+5", "2"}
    assert rows(tmp_path / "other", "utility.csv") == rows(tmp_path / "inline", "utility.csv")
    finals = sorted((tmp_path / "inline").rglob("global.safetensors"))
    assert len(finals) == len(protocols)
    for path in finals:
        other = tmp_path / "other" / path.relative_to(tmp_path / "inline")
        assert same(load_file(other), load_file(path))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_interrupted_run_is_taken_up_again(protocol, tmp_path):
    run = secure(
        protocol,
        training={"rounds": 3, "algorithm": "fedavg", "strategy": "FedAdam"},
        defenses=[{"name": "counting"}],
    )
    simulate(run, tmp_path / "whole")

    def stop(event, **fields):
        if event == "round" and fields["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(run, tmp_path / "run", observer=stop)
    resumed = []

    def listen(event, **fields):
        if event == "resumed":
            resumed.append(fields["round"])

    simulate(run, tmp_path / "run", resume=True, observer=listen)
    assert resumed[0] in (1, 2)  # and not from the beginning
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    final = "checkpoint/global.safetensors"
    assert same(load_file(tmp_path / "run" / final), load_file(tmp_path / "whole" / final))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_of_the_protocol_stays_with_a_client_or_moves_a_generator(protocol):
    run = secure(protocol)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    _, wire = conducted(run)
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert before == after
    assert not any(context.state for context in wire._grid.contexts.values())


# --- the arithmetic ---------------------------------------------------------------------------


@given(
    some.lists(some.floats(-1e4, 1e4), min_size=1, max_size=8),
    some.integers(1, 1000),
    some.integers(2, 12),
)
def test_masks_cancel_and_numbers_come_back(values, weight, clients):
    vector = np.array(values)
    graph = masking.neighbours(range(clients))
    total = np.zeros(len(vector), dtype=np.uint64)
    for number, partners in graph.items():
        total += masking.encode(vector + number, weight, clients)
        total += masking.mask(7, 1, number, partners, len(vector))
    expected = weight * (clients * vector + clients * (clients - 1) / 2)
    np.testing.assert_allclose(masking.decode(total), expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("clients", [2, 3, 5, 8, 21, 100])
def test_masks_are_shared_with_a_few_and_tie_all_together(clients):
    graph = masking.neighbours(range(clients))
    assert all(a in graph[b] for a, partners in graph.items() for b in partners)
    assert all(a not in partners for a, partners in graph.items())
    assert {len(partners) for partners in graph.values()} == {
        min(clients - 1, 2 * masking.reach(clients))
    }
    assert masking.connected(graph, range(clients))
    assert len(graph[0]) <= 2 * np.ceil(np.log2(clients))


def test_groups_that_share_no_masks_are_told():
    graph = masking.neighbours(range(100))  # seven to either side
    assert masking.connected(graph, [0, 7, 14])
    assert not masking.connected(graph, [0, 7, 50, 57])


def test_numbers_too_large_for_the_fixed_point_are_refused():
    with pytest.raises(UpdateRefused, match="the fixed point of secure aggregation"):
        masking.encode(np.array([1e8]), 1, 6)
    assert masking.decode(masking.encode(np.array([2e7]), 1, 6))[0] == 2e7


def test_arrays_survive_being_laid_out_flat():
    shapes = {"b": (2, 3), "a": (), "c": (0, 4), "d": (1,)}
    values = {name: np.random.default_rng(0).random(shape) for name, shape in shapes.items()}
    back = masking.split(masking.flatten(values, 9.0)[1:], shapes)
    assert all(np.array_equal(back[name], values[name]) for name in shapes)


def test_the_round_survives_the_journey():
    told = Round(2**62, 3, 5, 6, (1, 2), 10**6)
    assert Round.read(ConfigRecord(dict(told.record()))) == told
