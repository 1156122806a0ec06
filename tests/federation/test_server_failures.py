"""Clients that fail, by every way of going on, and no row is lost over them."""

import json
import math
import re
from collections import Counter

import pytest
import torch
from flwr.app import MessageType
from safetensors.torch import load_file
from support.rogues import Faulty, Flock
from support.tiny import config, faulty, initial, reseeding, rows, same, scenario, timeless, weights

from fedsim import HonestButCurious
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError
from fedsim.federation.contents import config_record
from fedsim.federation.grid import FIRST_NODE
from fedsim.federation.strategies import build_strategy
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import build
from fedsim.seeds import derive

pytestmark = pytest.mark.usefixtures("rogues", "unreported")

WAYS = ["raise", "memory", "allocate", "surrogate", "nan", "inf", "missing", "extra", "shape"]
WAYS += ["huge"]
SAID = {
    "raise": "the client fell over",
    "surrogate": r"lone \ud800",
    "memory": "the GPU has too little memory to train this client. Lower training.batch_size",
    "allocate": "its machine has too little memory to train this client. Lower training.batch_size",
    "nan": "1 NaN or Inf",
    "inf": "1 NaN or Inf",
    "missing": "missing",
    "extra": "stowaway",
    "shape": "has shape",
    "huge": "1e+15",
}


def outcome(run, folder):
    """Statuses of all rows of (round, client)."""
    found = {}
    for row in rows(folder):
        found.setdefault((int(row["round"]), int(row["client"])), []).append(row)
    return found


def test_a_client_that_failed_once_is_attacked_when_its_round_is_trained_again(tmp_path):
    attacks = [{"name": "llg"}, {"name": "flock", "victims": [1, 2, 3]}]  # three in one group
    run = faulty("slow", training={"rounds": 2}, adversaries=attacks)
    simulate(run, tmp_path / "whole")
    plain = Faulty.prepare

    def raises(self, training):
        return plain(self.model_copy(update={"how": "raise"}), training)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Faulty, "prepare", raises)
        with pytest.raises(ClientError, match="round 2: 1 of 6"):
            simulate(run, tmp_path / "cut")
    assert {row["status"] for row in rows(tmp_path / "cut")} == {"ok", "failed"}
    made = []
    with pytest.MonkeyPatch.context() as patch:
        plain_group = Flock.reconstruct_many
        patch.setattr(
            Flock,
            "reconstruct_many",
            lambda self, seen, jobs: (made.append(len(jobs)), plain_group(self, seen, jobs))[1],
        )
        simulate(run, tmp_path / "cut", resume=True)
    assert made == [3]  # whole, as without the failure
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


@pytest.mark.parametrize("how", WAYS)
def test_stop_names_the_client_and_the_round_and_keeps_every_row(how, tmp_path):
    run = faulty(how, adversaries=[{"name": "llg"}, {"name": "idlg"}])
    with pytest.raises(ClientError) as raised:
        simulate(run, tmp_path)
    message = str(raised.value)
    assert "round 2: 1 of 6 clients failed" in message
    assert "client 2:" in message
    assert SAID[how] in message
    assert "training.on_failure" in message
    found = outcome(run, tmp_path)
    assert set(found) == {(round, number) for round in (1, 2) for number in range(6)}
    for place, attacks in found.items():
        assert len(attacks) == 8 + 7  # metrics of each adversary
        assert {row["status"] for row in attacks} == {"failed" if place == (2, 2) else "ok"}
    broken = found[(2, 2)]
    assert all(SAID[how] in row["error"] and row["value"] == "" for row in broken)
    assert all(row["baseline"] for row in broken)


@pytest.mark.parametrize("how", WAYS)
def test_drop_finishes_with_the_others(how, tmp_path):
    run = faulty(how, training={"on_failure": "drop", "rounds": 3})
    simulate(run, tmp_path)
    found = outcome(run, tmp_path)
    assert len(found) == 3 * 6
    failed = {place for place, attacks in found.items() if attacks[0]["status"] != "ok"}
    assert failed == {(2, 2)}
    accuracy = [row for row in rows(tmp_path, "utility.csv") if row["metric"] == "accuracy"]
    assert len(accuracy) == 4
    final = load_file(tmp_path / "checkpoint/global.safetensors")
    assert all(torch.isfinite(value).all() for value in final.values())
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()]
    (refused,) = [one for one in log if one["event"] == "refused"]
    assert (refused["round"], [*refused["clients"]]) == (2, ["2"])
    assert SAID[how] in refused["clients"]["2"]
    (said,) = [one["text"] for one in log if "is trained without" in one.get("text", "")]
    assert said.startswith("round 2 is trained without 1 client: client 2: ")


def test_of_a_client_that_fails_again_there_is_one_warning(tmp_path, monkeypatch):
    fails = [derive(3, "training", round, client) for round, client in ((1, 2), (3, 2), (3, 4))]

    def prepare(self, training):
        if training.rng.initial_seed() in fails:
            raise RuntimeError("the client fell over")
        return training

    monkeypatch.setattr(Faulty, "prepare", prepare)
    told = []
    run = faulty("raise", training={"on_failure": "drop", "rounds": 3})
    simulate(run, tmp_path, observer=lambda event, **fields: told.append((event, fields)))
    refused = [(one["round"], [*one["clients"]]) for event, one in told if event == "refused"]
    assert refused == [(1, [2]), (3, [2, 4])]
    said = [one["text"].partition(": ") for event, one in told if event == "caution"]
    assert [(head, tail[:9]) for head, _, tail in said] == [
        ("round 1 is trained without 1 client", "client 2:"),
        ("round 3 is trained without 1 client", "client 4:"),
    ]


def _more(content):
    next(iter(content.metric_records.values()))["stowaway"] = 1.0


def _renamed(content):
    name, record = next(iter(content.metric_records.items()))
    del content[name]
    content["other"] = record


def _not_a_number(content):
    next(iter(content.metric_records.values()))["train_loss"] = float("nan")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_more, "with 'num-examples, stowaway, train_loss'; most clients'"),
        (_renamed, "its records are .*'other' with"),
        (_not_a_number, "its metric 'train_loss' is nan, not finite"),
    ],
)
def test_a_client_with_other_names_or_metrics_of_nan_is_dropped(spoil, said, tmp_path, monkeypatch):
    honest, spoiled = InlineGrid.exchange, []

    def exchange(self, messages):
        for number, reply in enumerate(honest(self, messages)):
            sent = config_record(messages[0].content, "config")
            trains = messages[0].metadata.message_type == MessageType.TRAIN
            if trains and sent["server-round"] == 2 and number == 0:
                spoiled.append(reply.metadata.src_node_id - FIRST_NODE)
                spoil(reply.content)
            yield reply

    monkeypatch.setattr(InlineGrid, "exchange", exchange)
    run = scenario(training={"on_failure": "drop", "rounds": 3, "clients_per_round": 6})
    simulate(run, tmp_path)
    found = outcome(run, tmp_path)
    assert len(found) == 3 * 6
    failed = {place: each for place, each in found.items() if each[0]["status"] != "ok"}
    assert set(failed) == {(2, *spoiled)}
    assert all(re.search(said, row["error"]) for row in failed[(2, *spoiled)])
    utility = [float(row["value"]) for row in rows(tmp_path, "utility.csv")]
    assert all(map(math.isfinite, utility))
    assert len([row for row in rows(tmp_path, "utility.csv") if row["metric"] == "accuracy"]) == 4


@pytest.mark.parametrize("how", ["raise", "nan", "huge"])
def test_pass_leaves_the_strategy_alone(how, tmp_path):
    run = faulty(how, training={"algorithm": "fedavg"})

    def trained(strategy):
        return strategy.start(
            grid=InlineGrid(6),
            initial_arrays=initial(run),
            num_rounds=2,
            train_config=config(run),
            evaluate_fn=reseeding(run),
        )

    ledger = Ledger.create(tmp_path, run)
    built = build(run)
    campaign = Campaign(built, ledger, InlineExecutor(AttackRunner(built)))
    wrapped = trained(HonestButCurious(build_strategy(run), campaign=campaign))
    assert same(weights(wrapped.arrays), weights(trained(build_strategy(run)).arrays))
    assert Counter(row["status"] for row in rows(tmp_path)) == {"ok": 11 * 8, "failed": 8}


def test_all_clients_failing_is_an_error_and_no_crash(tmp_path):
    run = faulty("raise", training={"clients": 3, "clients_per_round": 3, "rounds": 2})
    run = run.model_copy(
        update={"training": run.training.model_copy(update={"on_failure": "drop"})}
    )
    simulate(run, tmp_path)
    assert {row["client"] for row in rows(tmp_path) if row["status"] == "failed"} == {"2"}
