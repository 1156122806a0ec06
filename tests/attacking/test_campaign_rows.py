"""A row for whatever comes of an attack, and never a gap."""

import asyncio
import contextlib
import json
import time
from collections import defaultdict

import pytest
import torch
from support.interceptions import Asks, intercepted
from support.tiny import rows, scenario

from fedsim.adversary import Adversary
from fedsim.attacking.attack import Attack, AttackRunner
from fedsim.attacking.executor import InlineExecutor
from fedsim.attacking.scoring import as_json
from fedsim.engine.simulate import simulate
from fedsim.errors import Cancelled
from fedsim.knowledge import Knowledge
from fedsim.records import Reconstruction
from fedsim.scenario.built import build
from fedsim.scenario.settings import AttackPlan
from fedsim.tasks.images import Images

pytestmark = pytest.mark.usefixtures("rogues")


# --- a row for each, never a gap -------------------------------------------------------------


def test_an_error_that_no_file_can_hold_is_escaped(tmp_path):
    run = scenario(adversaries=[{"name": "rubbish", "how": "surrogate"}])
    page = simulate(run, tmp_path).read_text()
    assert {row["error"] for row in rows(tmp_path)} == {r"RuntimeError: lone \ud800"}
    assert r"lone \ud800" in page
    assert (tmp_path / "findings.parquet").exists()


@pytest.mark.parametrize(
    ("how", "isolation", "said"),
    [
        ("memory", "none", "the GPU has too little memory for this attack. Give attacks more of"),
        ("allocate", "none", "its machine has too little memory for this attack. Lower engine.att"),
        ("allocate", "process", "Raise threat.memory_mb, the memory that it may use"),
    ],
)
@pytest.mark.usefixtures("unreported")
def test_an_attack_that_lacks_memory_says_so_and_costs_its_own_row(how, isolation, said, tmp_path):
    attacks = [{"name": "llg"}, {"name": "rubbish", "how": how}]
    threat = {"victims": [0], "isolation": isolation}
    simulate(scenario(adversaries=attacks, threat=threat), tmp_path)
    for row in rows(tmp_path):
        assert row["status"] == ("ok" if row["label"] == "llg" else "failed")
        assert (said in row["error"]) == (row["label"] == "rubbish")


@pytest.mark.usefixtures("unreported")
def test_attacks_are_told_to_compile(tmp_path, monkeypatch):
    graphs = []
    monkeypatch.setattr(torch, "compile", lambda graph, **how: graphs.append(graph) or graph)
    attacks = [{"name": "dlg", "iterations": 2, "restarts": 0, "victims": [0], "rounds": [1]}]
    grants = ["GRADIENT", "MODEL", "BATCH_SIZE"]
    for number, wanted in enumerate((False, True)):
        engine = {"workers": 1, "compile": wanted}
        run = scenario(adversaries=attacks, threat={"grants": grants}, engine=engine)
        simulate(run, tmp_path / str(number))
    first, second = (
        {row["metric"]: row["value"] for row in rows(tmp_path / name)} for name in ("0", "1")
    )
    assert len(graphs) == 1
    assert float(first["mse"]) == pytest.approx(float(second["mse"]), rel=1e-3)


@pytest.mark.usefixtures("unreported")
def test_every_outcome_is_a_row_with_its_baseline(tmp_path):
    run = scenario(
        training={"clients_per_round": 6},
        adversaries=[
            {"name": "llg"},
            {"name": "dlg", "budget": 1},
            {"name": "rubbish", "how": "raise"},
            {"name": "sleeper", "timeout": 0.05, "victims": [0], "rounds": [1]},
        ],
    )
    simulate(run, tmp_path)
    found = defaultdict(list)
    for row in rows(tmp_path):
        found[row["label"], row["round"], row["client"]].append(row)
    places = {(str(r), str(c)) for r in (1, 2) for c in range(6)}
    expected = {(label, *place) for label in ("llg", "dlg", "rubbish") for place in places}
    assert set(found) == expected | {("sleeper", "1", "0")}
    status = {"llg": "ok", "dlg": "denied", "rubbish": "failed", "sleeper": "timeout"}
    metrics = {"llg": 8, "dlg": 13, "rubbish": 10, "sleeper": 6}
    for (label, *_), group in found.items():
        assert {row["status"] for row in group} == {status[label]}
        assert len({row["metric"] for row in group}) == len(group) == metrics[label]
        for row in group:
            assert bool(row["value"]) == (label == "llg")
            assert bool(row["error"]) == (label != "llg")
            if row["metric"] in ("divergence", "gradient_distance"):
                assert not row["baseline"]
                assert not row["baseline_prior"]
            else:
                assert float(row["baseline"]) >= 0
                assert row["baseline_prior"]
            assert float(row["seconds"]) >= 0
    assert "MODEL" in found["dlg", "1", "0"][0]["error"]
    assert "RuntimeError: the attack fell over" in found["rubbish", "1", "0"][0]["error"]


@pytest.mark.usefixtures("unreported")
def test_a_metric_that_does_not_suit_the_task_leaves_no_row_and_breaks_nothing(tmp_path):
    run = scenario(
        task={"size": 4},
        threat={"grants": "white-box", "victims": 1},
        training={"rounds": 1},
        adversaries=[{"name": "dlg", "budget": 1}],
    )
    simulate(run, tmp_path)
    found = {row["metric"]: row["status"] for row in rows(tmp_path)}
    assert set(found.values()) == {"ok"}
    assert "mse" in found
    assert "ssim" not in found


def test_an_attack_that_no_metric_scores_still_leaves_a_row(tmp_path):
    class Names(Adversary):
        name = "names"
        needs = Knowledge.HEAD_GRADIENT
        recovers = frozenset({"attributes"})

        def reconstruct(self, seen, job):
            return Reconstruction(attributes={"weather": [{"rain": 1.0}]})

    run = scenario()
    plan = AttackPlan(name="names")
    runner = AttackRunner(build(run, adversaries=[("names", plan, Names())]))
    (row,) = runner.perform(Attack(intercepted(run, 0), 0, 1.0)).findings
    assert (row.status, row.metric, row.value, row.label) == ("ok", "", None, "names")


@pytest.mark.parametrize(
    "how", ["none", "text", "empty", "types", "fills", "shapes", "nan", "many"]
)
@pytest.mark.usefixtures("unreported")
def test_rubbish_is_a_failed_row_or_a_bad_score_and_costs_no_other_row(how, tmp_path):
    run = scenario(
        training={"rounds": 1},
        adversaries=[{"name": "rubbish", "how": how}, {"name": "llg"}],
    )
    simulate(run, tmp_path)
    found = rows(tmp_path)
    mine = [row for row in found if row["label"] == "rubbish"]
    others = [row for row in found if row["label"] == "llg"]
    assert len(mine) == 4 * 10
    assert len(others) == 4 * 8
    assert {row["status"] for row in others} == {"ok"}
    if how in ("none", "text", "empty", "types", "fills"):
        assert {row["status"] for row in mine} == {"failed"}
        assert all(row["error"] and not row["value"] for row in mine)
        return
    assert {row["status"] for row in mine} == {"ok"}
    for row in mine:
        value, baseline = float(row["value"]), float(row["baseline"])
        if row["metric"] == "mse" and how != "many":
            assert value >= baseline  # as far from the original as can be
        if row["metric"] == "recovered":
            assert value == 0
        if row["metric"] == "asr" and how == "many":
            assert value < 0.001


def test_a_claim_of_another_shape_says_so_in_its_row():
    class Turned(Asks):
        recovers = frozenset({"inputs"})

        def reconstruct(self, seen, job):
            channels, *side = seen.spec.input_shape
            return Reconstruction(inputs=[torch.zeros(*side, channels)])

    run = scenario()
    runner = AttackRunner(build(run, adversaries=[("turned", AttackPlan(name="turned"), Turned())]))
    outcome = runner.perform(Attack(intercepted(run, 0), 0, 1.0))
    assert {row.status for row in outcome.findings} == {"ok"}
    (error,) = {row.error for row in outcome.findings}
    assert error.startswith("inputs[0] has shape (8, 8, 1), and examples have (1, 8, 8)")
    assert error in outcome.caution


@pytest.mark.usefixtures("unreported")
def test_an_error_of_many_lines_stays_one_row(tmp_path):
    simulate(scenario(adversaries=[{"name": "rubbish", "how": "raise"}]), tmp_path)
    text = (tmp_path / "findings.csv").read_text()
    assert len(text.splitlines()) == 1 + len(rows(tmp_path))
    assert "in two lines" in text


@pytest.mark.parametrize(
    "way", [SystemExit(0), GeneratorExit(), asyncio.CancelledError(), Cancelled("so there")]
)
def test_an_adversary_cannot_end_the_run(way):
    class Leaver(Asks):
        def reconstruct(self, seen, job):
            raise way

    run = scenario()
    runner = AttackRunner(build(run, adversaries=[("leaver", AttackPlan(name="leaver"), Leaver())]))
    found = runner.perform(Attack(intercepted(run, 0), 0, 1.0)).findings
    assert {row.status for row in found} == {"failed"}
    assert type(way).__name__ in found[0].error


def test_an_attack_that_catches_every_exception_is_stopped_all_the_same():
    class Deaf(Asks):
        def reconstruct(self, seen, job):
            while True:
                with contextlib.suppress(Exception):
                    time.sleep(0.05)

    run = scenario()
    plan = AttackPlan(name="deaf", timeout=0.2)
    started = time.monotonic()
    found = AttackRunner(build(run, adversaries=[("deaf", plan, Deaf())])).perform(
        Attack(intercepted(run, 0), 0, 1.0)
    )
    assert {row.status for row in found.findings} == {"timeout"}
    assert time.monotonic() - started < 20


def test_a_task_that_cannot_guess_costs_the_baseline_and_no_row():
    class Clueless(Images):
        def guess(self, truth, rng, *, informed):
            raise NotImplementedError

    dlg = {"name": "dlg", "iterations": 1, "restarts": 0}
    run = scenario(adversaries=[dlg], threat={"grants": "white-box"})
    task = Clueless(**run.build_task().model_dump(exclude={"model", "partition"}))
    rows = AttackRunner(build(run, task=task)).perform(Attack(intercepted(run, 0), 0, 1.0)).findings
    assert {row.status for row in rows} == {"ok"}
    by_metric = {row.metric: row for row in rows}
    assert by_metric["mse"].baseline is None
    assert "no baseline" in by_metric["mse"].error


def test_the_batch_size_of_a_row_is_what_the_client_held():
    run = scenario(training={"batch_size": 100_000})
    held = run.build_task().num_examples(0)
    (row, *_) = AttackRunner(build(run)).perform(Attack(intercepted(run, 0), 0, 1.0)).findings
    assert row.batch_size == held


def test_a_cancelled_queue_is_dropped():
    run = scenario()
    executor = InlineExecutor(AttackRunner(build(run)))
    executor.submit([[Attack(intercepted(run, 0), 0, 1.0)]])
    assert executor.pending == 1
    executor.cancel()
    assert executor.pending == 0
    assert list(executor.collect(wait=True)) == []


@pytest.mark.usefixtures("unreported")
def test_the_truth_is_that_of_this_client_and_this_round(tmp_path):
    # iDLG is exact for one example: any mismatch of the re-derived truth would show.
    run = scenario(
        training={"batch_size": 1, "rounds": 3, "clients_per_round": 6},
        adversaries=[{"name": "idlg"}],
    )
    simulate(run, tmp_path)
    asr = [float(row["value"]) for row in rows(tmp_path) if row["metric"] == "asr"]
    assert asr == [1.0] * 18


@pytest.mark.usefixtures("unreported")
def test_claimed_features_are_searched_for_among_public_examples(tmp_path):
    run = scenario(
        task={"classes": 20},
        threat={"grants": "white-box"},
        adversaries=[{"name": "feature-separation"}],
    )
    simulate(run, tmp_path)
    found = [row for row in rows(tmp_path) if row["metric"] == "feature_retrieval"]
    assert {row["value"] for row in found} == {"1.0"}
    assert all(float(row["baseline"]) < 0.01 for row in found)
    assert all(row["artifact"].endswith("reconstruction-nearest.png") for row in found)


def test_the_truth_of_several_steps_holds_every_example(tmp_path):
    run = scenario(
        training={"algorithm": "fedavg", "batch_size": 2, "local_steps": 3, "rounds": 1},
        threat={"grants": "full", "victims": 1},
    )
    runner = AttackRunner(build(run))
    one = intercepted(run, 2)
    assert one.update.num_examples == 6
    assert len(runner._scorer.truth(one).labels) == 6
    row = runner.perform(Attack(one, 0, 0.25)).findings[0]
    assert (row.batch_size, row.local_steps, row.inclusion) == (2, 3, 0.25)


# --- what is told beside the rows ------------------------------------------------------------


def test_what_an_attack_says_of_itself_is_in_the_log(tmp_path):
    simulate(scenario(training={"rounds": 1}), tmp_path / "run")
    lines = (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    told = [each for line in lines if (each := json.loads(line))["event"] == "attacked"]
    victims = {row["victim"] for row in rows(tmp_path / "run")}
    assert {each["victim"] for each in told} == victims
    assert {each["adversary"] for each in told} == {"llg"}
    assert all(each["diagnostics"]["impact"] < 0 for each in told)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.tensor([1, 2]), [1, 2]),
        (torch.zeros(11, 11), "tensor of (11, 11)"),
        ({1: (float("nan"), None, True)}, {"1": ["nan", None, True]}),
        (list(range(102)), [*range(100), "and 2 more"]),
        ("x" * 5000, "x" * 2000),
    ],
    ids=["few", "many", "nested", "long", "text"],
)
def test_diagnostics_become_what_json_holds(value, told):
    assert as_json(value) == told
