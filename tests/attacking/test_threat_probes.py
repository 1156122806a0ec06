"""Probes: updates that are computed for attacks, on a round's model and on batches of their own."""

import shutil
import time
from dataclasses import replace

import pytest
import torch
from support.tiny import rows, same, scenario, timeless

import fedsim
from fedsim.attacking.attack import Attack, AttackRunner
from fedsim.attacking.probes import check_probes, computed
from fedsim.attacking.victims import most_attacks
from fedsim.engine.attack import attack
from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError, ScenarioError
from fedsim.records import PROBES, Interception, Probe, Update
from fedsim.scenario.built import build

pytestmark = pytest.mark.usefixtures("unreported")

TABLES = [{"client": 3, "updates": 2}, {"client": 3, "batch_size": 4}, {"client": 5}]
KEYS = ["c0003-p00", "c0003-p01", "c0003-p02", "c0005-p00"]
NOISE = [{"name": "gaussian-noise", "sigma": 0.01}]


def probed(**changes):
    """The tiny federation with probes; victims are attacked as well, unless `threat` says no."""
    threat = {"grants": "white-box", "probes": TABLES, **changes.pop("threat", {})}
    return scenario(threat=threat, **changes)


def of_probes(folder):
    return [row for row in timeless(folder) if "-p" in row["victim"]]


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A run whose probes were attacked while it trained."""
    folder = tmp_path_factory.mktemp("live") / "run"
    simulate(probed(), folder)
    return folder


def probe(built, *, round=1, number=0, batch_size=2, shift=0.0):
    """The computed update of a probe of client 3 on the initial model, shifted by a constant."""
    before = {k: v + shift for k, v in built.task.arrays(built.task.module()).items()}
    nothing = Update(tensors={}, kind="gradient")
    one = Interception(round, (3,), before, nothing, Probe(number, batch_size))
    return computed(built, one)


def test_a_probe_is_the_gradient_of_its_own_batch_on_the_rounds_model():
    built = build(probed())
    one = probe(built, number=1)
    (batch,) = built.task.batches(3, PROBES + 1, batch_size=2, steps=1)
    expected = built.task.victim(one.before).gradient(batch.inputs, batch.labels)
    assert one.update.num_examples == len(batch) == 2
    assert one.update.kind == "gradient"
    assert same(one.update.tensors, expected)


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_probes_differ_between_rounds_by_the_model_alone(algorithm):
    changes = {"local_steps": 2} if algorithm == "fedavg" else {}
    training = {"algorithm": algorithm, "lr_schedule": "cosine", **changes}
    built = build(probed(training=training, defenses=NOISE))
    first = probe(built).update.tensors
    assert same(first, probe(built, round=2).update.tensors)
    assert not same(first, probe(built, round=2, shift=0.01).update.tensors)
    assert not same(first, probe(built, number=1).update.tensors)


def test_a_probe_is_trained_as_the_scenario_says():
    training = {"algorithm": "fedavg", "local_epochs": 2, "batching": "epochs", "lr": 0.05}
    built = build(probed(training=training))
    update, held = probe(built, batch_size=5).update, built.task.num_examples(3)
    assert update.steps == 2 * -(-held // 5)
    assert update.num_examples == 5 * update.steps  # drawn, and no epoch ends early
    assert update.lr == 0.05


def test_victims_and_training_are_those_without_probes(live, tmp_path):
    simulate(probed(threat={"probes": []}), tmp_path / "run")
    assert [row for row in timeless(live) if "-p" not in row["victim"]] == timeless(
        tmp_path / "run"
    )
    assert rows(live, "utility.csv") == rows(tmp_path / "run", "utility.csv")


def test_rows_name_the_probe_its_client_and_batch(live):
    found = {row["victim"]: row for row in of_probes(live) if row["metric"] == "asr"}
    assert sorted(found) == [f"r{round:04d}-{key}" for round in (1, 2) for key in KEYS]
    assert {row["client"] for row in found.values()} == {"3", "5"}
    assert {key[6:]: row["batch_size"] for key, row in found.items()} == dict(
        zip(KEYS, "1141", strict=True)
    )
    assert {row["status"] for row in found.values()} == {"ok"}
    for row in found.values():  # labels of one example are read off the gradient, in every round
        assert row["batch_size"] == "4" or row["value"] == "1.0"


def test_rows_are_in_the_order_of_their_probes(live):
    victims = [row["victim"] for row in of_probes(live)]
    assert victims == sorted(victims)


def test_chance_is_the_same_in_every_round(live):
    each = {}
    for row in of_probes(live):
        each.setdefault((row["victim"][6:], row["metric"]), set()).add(row["baseline"])
    assert all(len(values) == 1 for values in each.values())


def test_probes_can_be_added_to_a_recorded_run(live, tmp_path):
    simulate(probed(threat={"probes": []}, record={"keep": "all"}), tmp_path / "run")
    attack(tmp_path / "run", changes={"threat": {"probes": TABLES}})
    assert timeless(tmp_path / "run") == timeless(live)


def test_probes_alone_keep_the_models_and_no_update(live, tmp_path):
    simulate(probed(threat={"victims": []}), tmp_path / "run")
    assert timeless(tmp_path / "run") == of_probes(live)
    tape = tmp_path / "run/tape"
    assert sorted(path.name for path in tape.rglob("*.safetensors")) == ["before.safetensors"] * 2
    attack(tmp_path / "run", changes={"adversaries": [{"name": "idlg"}]}, rounds=[2])
    assert {row["victim"] for row in rows(tmp_path / "run") if row["label"] == "idlg"} == {
        f"r0002-{key}" for key in KEYS
    }


def test_another_probe_under_the_same_key_is_attacked_anew(live, tmp_path):
    folder = shutil.copytree(live, tmp_path / "run")
    attack(folder, changes={"threat": {"probes": [{"client": 3, "batch_size": 2}]}})
    found = {row["victim"][6:]: row["batch_size"] for row in of_probes(folder)}
    assert found == dict(zip(KEYS, "2141", strict=True))


def test_another_probe_is_attacked_anew_on_resume_of_a_run_without_recording(tmp_path):
    threat = {"victims": [], "probes": TABLES[:1]}
    simulate(probed(threat=threat, record={"keep": "nothing"}), tmp_path / "run")
    threat = {"victims": [], "probes": [{**TABLES[0], "batch_size": 2}]}
    other = probed(threat=threat, record={"keep": "nothing"})
    for folder, resume in (("run", True), ("alone", False)):
        simulate(other, tmp_path / folder, resume=resume)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "alone")
    before = (tmp_path / "run/findings.csv").read_bytes()
    simulate(other, tmp_path / "run", resume=True)
    assert (tmp_path / "run/findings.csv").read_bytes() == before


def test_a_probe_that_trains_too_long_is_ended(monkeypatch):
    from fedsim.attacking import attack as attacks

    monkeypatch.setattr(attacks, "computed", lambda *_: time.sleep(20))
    built = build(probed(threat={"timeout": 0.01}))
    started = time.perf_counter()
    outcome = AttackRunner(built).perform(Attack(probe(built), 0, 1.0))
    assert {row.status for row in outcome.findings} == {"timeout"}
    assert time.perf_counter() - started < 10


def test_a_model_that_was_not_kept_is_named(tmp_path):
    simulate(probed(threat={"probes": [], "rounds": [1]}), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"round 2: clients 3 \(probes\), 5 \(probes\)"):
        attack(
            tmp_path / "run", changes={"threat": {"probes": TABLES, "victims": [], "rounds": [2]}}
        )


def test_a_model_that_does_not_fit_is_left_out_and_attacked_all_the_same(live, tmp_path):
    seen = []
    scenario = probed(threat={"victims": []}, record={"max_bytes": 1000})
    simulate(scenario, tmp_path / "run", observer=lambda event, **more: seen.append((event, more)))
    assert timeless(tmp_path / "run") == of_probes(live)
    (text,) = [more["text"] for event, more in seen if event == "caution"]
    assert "2 updates or global models of rounds 1 to 2 are left out" in text
    assert not (tmp_path / "run/tape").exists()


def test_a_round_without_a_usable_update_has_failed_rows(tmp_path):
    built = build(probed())
    ledger = fedsim.runs.ledger.Ledger.create(tmp_path / "run", built.scenario)
    from fedsim.attacking.campaign import Campaign
    from fedsim.attacking.executor import InlineExecutor

    campaign = Campaign(built, ledger, InlineExecutor(AttackRunner(built)))
    campaign.intercept(1, [], {3: "ClientError: no reply"})
    campaign.finish()
    found = [row for row in rows(tmp_path / "run") if "-p" in row["victim"]]
    assert {(row["status"], row["error"]) for row in found} == {
        ("failed", "no update of this round could be used, so its global model was not recorded")
    }
    assert len({row["victim"] for row in found}) == len(KEYS)


def test_labels_that_are_granted_are_those_of_the_probe():
    built = build(probed(threat={"grants": ["GRADIENT", "MODEL", "LABELS", "BATCH_SIZE"]}))
    runner, one = AttackRunner(built), probe(built, batch_size=4)
    seen = runner._observe(built.adversaries[0][2], Attack(one, 0, 1.0))
    (batch,) = built.task.batches(3, PROBES, batch_size=4, steps=1)
    assert seen.labels.tolist() == sorted(batch.labels.tolist())
    assert seen.num_examples == 4
    assert torch.equal(seen.gradient["head.weight"], one.update.tensors["head.weight"])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"threat": {"probes": [{"client": 6}]}}, "there is no client 6; clients go from 0 to 5"),
        ({"training": {"secure_aggregation": True}}, "the server receives sums of updates alone"),
        ({"threat": {"probes": [{"client": 3, "size": 1}]}}, "threat.probes.0.size: unknown key"),
        ({"threat": {"probes": [{"batch_size": 1}]}}, "threat.probes.0.client"),
    ],
    ids=str,
)
def test_probes_that_cannot_be_are_refused(changes, complaint):
    with pytest.raises(ScenarioError, match=complaint):
        probed(**changes)


@pytest.mark.parametrize(
    ("threat", "complaint"),
    [
        ({"victims": []}, r"adversaries.0 \(llg\) attacks nobody: victims = \[\], without"),
        ({"rounds": [], "probes": TABLES}, r"attacks nobody: rounds = \[\]"),
    ],
    ids=str,
)
def test_an_adversary_without_victims_and_probes_is_refused(threat, complaint):
    with pytest.raises(ScenarioError, match=complaint):
        scenario(threat=threat)


def test_a_batch_larger_than_the_clients_data_is_refused(tmp_path):
    small = {"task": {"train_examples": 60}}
    tables = {"probes": [{"client": 3, "batch_size": 100}]}
    with pytest.raises(ScenarioError, match=r"threat.probes.0.batch_size = 100, and client 3 has"):
        preflight(probed(threat=tables, **small))
    simulate(scenario(record={"keep": "all"}, **small), tmp_path / "run")
    with pytest.raises(ScenarioError, match=r"threat.probes.0.batch_size = 100, and client 3 has"):
        attack(tmp_path / "run", changes={"threat": tables})


def test_a_defense_that_remembers_starts_empty_and_says_so():
    remembering = [{"name": "top-k", "k": 0.1, "error_feedback": True}]
    built = build(probed(defenses=remembering))
    assert [text for text in check_probes(built) if "starts anew with each probe" in text]
    assert check_probes(build(probed(defenses=[{**remembering[0], "clients": [0]}]))) == []
    assert same(probe(built).update.tensors, probe(built, round=2).update.tensors)


def test_check_counts_probes():
    one = probed()
    plan = one.adversaries[0]
    assert most_attacks(one, plan) == 2 * (4 + 4)
    assert most_attacks(one, plan.model_copy(update={"victims": []})) == 2 * 4


def test_an_update_that_the_server_would_refuse_fails_alone():
    built = build(probed())
    one = probe(built)
    broken = {**one.before, "head.weight": one.before["head.weight"] * float("nan")}
    outcome = AttackRunner(built).perform(Attack(replace(one, before=broken), 0, 1.0))
    assert {row.status for row in outcome.findings} == {"failed"}
    assert "NaN" in outcome.findings[0].error


def test_another_projects_clients_have_no_probes():
    from fedsim.attacking.audit import audit_campaign

    with pytest.raises(ScenarioError, match="probes repeat the local training of fedsim's own"):
        audit_campaign([], build(scenario()).task, threat={"probes": TABLES})
