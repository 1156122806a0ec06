"""Who is attacked, what an adversary is handed, and a row for whatever comes of it."""

import contextlib
import dataclasses
import gc
import json
import time
import types
from collections import defaultdict
from typing import ClassVar

import pytest
import torch
from flwr.app import ConfigRecord
from tiny import ask, initial, rows, scenario

from fedsim.adversary import Adversary
from fedsim.attack import Attack, Bench, _plain
from fedsim.campaign import Campaign, InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.errors import Cancelled
from fedsim.knowledge import Knowledge
from fedsim.ledger import Ledger
from fedsim.records import Interception, Reconstruction, Truth, Update
from fedsim.scenario import Scenario
from fedsim.server import read_update
from fedsim.settings import AttackPlan
from fedsim.simulation import simulate
from fedsim.tasks import Task
from fedsim.tasks.images import Images

pytestmark = pytest.mark.usefixtures("rogues")


class Listening:
    """An executor that runs nothing and remembers what it was given."""

    def __init__(self):
        self.attacks = []
        self.pending = 0

    def submit(self, attacks):
        self.attacks += attacks

    def collect(self, *, wait):
        return iter(())

    def cancel(self):
        pass


def caught(clients, round=1, *, factor=1.0):
    """Interceptions that need no training."""
    before = {"w": torch.ones(2)}
    return [
        Interception(round, (c,), before, Update({"w": factor * torch.ones(2)}, "gradient"))
        for c in clients
    ]


def chosen(run, tmp_path, rounds, clients=range(6), **how):
    """Victims by (adversary, round), and the probability they were chosen with."""
    executor = Listening()
    campaign = Campaign(run, Ledger.create(tmp_path, run), executor)
    found, inclusion = defaultdict(list), set()
    for round in rounds:
        campaign.intercept(round, caught(clients, round, **how))
    for attack in executor.attacks:
        found[attack.adversary, attack.interception.round] += attack.interception.clients
        inclusion.add(attack.inclusion)
    return dict(found), inclusion


def intercepted(run, client, round=1):
    """What the server catches of a client."""
    arrays = initial(run)
    reply = ask(InlineGrid(run.training.clients), run, client, round=round, arrays=arrays)
    before = dict(arrays.to_torch_state_dict())
    return Interception(round, (client,), before, read_update(reply, ConfigRecord(), run.training))


# --- who is attacked --------------------------------------------------------------------------


def test_victims_are_drawn_by_the_seed_whatever_they_send(tmp_path):
    run = scenario(threat={"victims": 2}, training={"rounds": 12})
    one, inclusion = chosen(run, tmp_path / "1", range(1, 13))
    other, _ = chosen(run, tmp_path / "2", range(1, 13), factor=-1e6)
    assert one == other
    assert inclusion == {2 / 6}
    assert all(len(set(victims)) == 2 for victims in one.values())
    assert len(set(map(tuple, one.values()))) > 4  # not the same two every round
    reseeded, _ = chosen(run.model_copy(update={"seed": 4}), tmp_path / "3", range(1, 13))
    assert reseeded != one


def test_who_else_takes_part_does_not_reorder_the_draw(tmp_path):
    run = scenario(threat={"victims": 1}, training={"rounds": 12})
    everyone, _ = chosen(run, tmp_path / "1", range(1, 13))
    fewer, _ = chosen(run, tmp_path / "2", range(1, 13), clients=[0, 2, 4])
    for place, victims in everyone.items():
        if victims[0] in (0, 2, 4):
            assert fewer[place] == victims


@pytest.mark.parametrize(
    ("victims", "expected", "probability"),
    [
        ("all", [1, 3, 5], 1.0),
        ([3, 4], [3], 1.0),
        ([0], None, None),
        (9, [1, 3, 5], 1.0),
    ],
)
def test_victims_by_list_number_or_all(victims, expected, probability, tmp_path):
    if victims == 9:
        run = scenario(training={"clients": 20}, threat={"victims": victims})
    else:
        run = scenario(threat={"victims": victims})
    found, inclusion = chosen(run, tmp_path, [1], clients=[1, 3, 5])
    assert found.get((0, 1)) == expected
    assert inclusion == ({probability} if probability else set())


def test_an_adversary_has_its_own_victims_and_rounds(tmp_path):
    run = scenario(
        training={"rounds": 4},
        threat={"victims": 1, "rounds": [1, 2]},
        adversaries=[
            {"name": "llg"},
            {"name": "idlg", "victims": "all"},
            {"name": "llg", "label": "late", "rounds": [4], "victims": [5]},
            {"name": "llg", "label": "always", "rounds": "all"},
        ],
    )
    found, _ = chosen(run, tmp_path, range(1, 5))
    sizes = {place: len(victims) for place, victims in found.items()}
    assert sizes == {
        (0, 1): 1,
        (0, 2): 1,
        (1, 1): 6,
        (1, 2): 6,
        (2, 4): 1,
        **{(3, round): 1 for round in range(1, 5)},
    }
    assert found[2, 4] == [5]
    assert found[0, 1] == found[3, 1]  # adversaries share their victims


def test_followed_clients_take_part_and_are_attacked_every_round(tmp_path):
    run = scenario(
        training={"rounds": 5, "clients": 10, "clients_per_round": 2},
        threat={"follow": [7], "victims": [7]},
    )
    simulate(run, tmp_path)
    found = rows(tmp_path)
    assert {row["client"] for row in found} == {"7"}
    assert sorted({int(row["round"]) for row in found}) == [1, 2, 3, 4, 5]


# --- a row for each, never a gap --------------------------------------------------------------


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
    bench = Bench(run, adversaries=[("names", plan, Names())])
    (row,) = bench.perform(Attack(intercepted(run, 0), 0, 1.0)).findings
    assert (row.status, row.metric, row.value, row.label) == ("ok", "", None, "names")


@pytest.mark.parametrize("how", ["none", "text", "empty", "types", "shapes", "nan", "many"])
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
    if how in ("none", "text", "empty", "types"):
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


def test_an_error_of_many_lines_stays_one_row(tmp_path):
    simulate(scenario(adversaries=[{"name": "rubbish", "how": "raise"}]), tmp_path)
    text = (tmp_path / "findings.csv").read_text()
    assert len(text.splitlines()) == 1 + len(rows(tmp_path))
    assert "in two lines" in text


@pytest.mark.parametrize("way", [SystemExit(0), GeneratorExit(), Cancelled("so there")])
def test_an_adversary_cannot_end_the_run(way):
    class Leaver(Asks):
        def reconstruct(self, seen, job):
            raise way

    run = scenario()
    bench = Bench(run, adversaries=[("leaver", AttackPlan(name="leaver"), Leaver())])
    found = bench.perform(Attack(intercepted(run, 0), 0, 1.0)).findings
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
    found = Bench(run, adversaries=[("deaf", plan, Deaf())]).perform(
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
    rows = Bench(run, task=task).perform(Attack(intercepted(run, 0), 0, 1.0)).findings
    assert {row.status for row in rows} == {"ok"}
    by_metric = {row.metric: row for row in rows}
    assert by_metric["mse"].baseline is None
    assert "no baseline" in by_metric["mse"].error


def test_the_batch_size_of_a_row_is_what_the_client_held():
    run = scenario(training={"batch_size": 100_000})
    held = run.build_task().num_examples(0)
    (row, *_) = Bench(run).perform(Attack(intercepted(run, 0), 0, 1.0)).findings
    assert row.batch_size == held


def test_a_cancelled_queue_is_dropped():
    run = scenario()
    executor = InlineExecutor(Bench(run))
    executor.submit([Attack(intercepted(run, 0), 0, 1.0)])
    assert executor.pending == 1
    executor.cancel()
    assert executor.pending == 0
    assert list(executor.collect(wait=True)) == []


def test_the_truth_is_that_of_this_client_and_this_round(tmp_path):
    # iDLG is exact for one example: any mismatch of the re-derived truth would show.
    run = scenario(
        training={"batch_size": 1, "rounds": 3, "clients_per_round": 6},
        adversaries=[{"name": "idlg"}],
    )
    simulate(run, tmp_path)
    asr = [float(row["value"]) for row in rows(tmp_path) if row["metric"] == "asr"]
    assert asr == [1.0] * 18


def test_the_truth_of_several_steps_holds_every_example(tmp_path):
    run = scenario(
        training={"algorithm": "fedavg", "batch_size": 2, "local_steps": 3, "rounds": 1},
        threat={"grants": "full", "victims": 1},
    )
    bench = Bench(run)
    one = intercepted(run, 2)
    assert one.update.num_examples == 6
    assert len(bench._truth(one).labels) == 6
    row = bench.perform(Attack(one, 0, 0.25)).findings[0]
    assert (row.batch_size, row.local_steps, row.inclusion) == (2, 3, 0.25)


# --- what an adversary is handed --------------------------------------------------------------


class Asks(Adversary):
    """Keeps what it saw."""

    name = "asks"
    needs = Knowledge(0)
    recovers = frozenset({"labels"})
    kept: ClassVar[list] = []

    def reconstruct(self, seen, job):
        self.kept.append((seen, job))
        job.progress(0, 1.0)
        return Reconstruction(labels=torch.zeros(1, dtype=torch.int64))


def observed(run, **attack):
    """The observation and job of an attack that knows as much as the scenario grants."""
    bench = Bench(run, adversaries=[("asks", AttackPlan(name="asks"), Asks())])
    Asks.kept.clear()
    one = intercepted(run, 1, round=2)
    outcome = bench.perform(Attack(one, 0, 1.0, **attack))
    assert outcome.findings[0].status == "ok", outcome.findings[0].error
    return (*Asks.kept.pop(), one)


def reachable(start):
    """Everything that can be reached from an object, but for modules, classes and globals."""
    skipped = (types.ModuleType, type, types.BuiltinFunctionType, types.FrameType)
    seen, queue = {}, [start]
    while queue:
        one = queue.pop()
        if id(one) in seen or isinstance(one, skipped):
            continue
        seen[id(one)] = one
        if isinstance(one, types.FunctionType):
            queue += [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__]
        else:
            queue += gc.get_referents(one)
    return list(seen.values())


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_nothing_that_an_adversary_gets_leads_to_the_truth(model, algorithm):
    run = scenario(
        threat={"grants": "full"}, task={"model": model}, training={"algorithm": algorithm}
    )
    earlier = intercepted(run, 1, round=1)
    seen, job, one = observed(run, history=(earlier,))
    assert len(seen.history) == 1
    assert seen.history[0].labels is None  # labels of earlier rounds are nobody's business
    forbidden = (Task, Truth, Scenario, Interception, Update, Bench, Campaign, Ledger)
    for start in (seen, job):
        for thing in reachable(start):
            assert not isinstance(thing, forbidden), type(thing)
    task = run.build_task()
    (batch,) = task.batches(1, 2, batch_size=4, steps=1)
    tensors = [thing for thing in reachable(seen) if isinstance(thing, torch.Tensor)]
    assert len(tensors) > 10
    images = {image.numpy().tobytes() for image in batch.inputs}
    for tensor in tensors:
        if tensor.shape[-3:] == batch.inputs.shape[1:]:
            found = {part.numpy().tobytes() for part in tensor.reshape(-1, *batch.inputs.shape[1:])}
            assert not images & found
    # Nor are they the server's own tensors.
    own = {t.untyped_storage().data_ptr() for t in (*one.before.values(),)}
    own |= {t.untyped_storage().data_ptr() for t in one.update.tensors.values()}
    own |= {t.untyped_storage().data_ptr() for t in one.update.buffers.values()}
    assert not own & {t.untyped_storage().data_ptr() for t in tensors}


def test_the_walk_would_find_a_truth():
    truth = Truth(labels=torch.ones(1))
    hidden = [lambda held={"deep": (truth,)}: held]
    assert any(thing is truth for thing in reachable(hidden))


def test_what_is_not_granted_is_not_there():
    seen, _, _ = observed(scenario(threat={"grants": ["BATCH_SIZE"]}))
    empty = {
        field.name: getattr(seen, field.name)
        for field in dataclasses.fields(seen)
        if field.name not in ("granted", "spec", "head", "exact", "num_examples")
    }
    assert {name for name, value in empty.items() if value} == set()
    assert seen.num_examples == 4


def test_defenses_are_told_by_name_only_when_granted():
    defenses = [{"name": "gaussian-noise"}]
    seen, _, _ = observed(scenario(threat={"grants": ["DEFENSE"]}, defenses=defenses))
    assert seen.defenses == ("gaussian-noise",)
    seen, _, _ = observed(scenario(threat={"grants": "auxiliary"}, defenses=defenses))
    assert seen.defenses is None


def test_an_attacks_randomness_is_its_own():
    def draw(label, **changes):
        run = scenario(**changes)
        bench = Bench(run, adversaries=[(label, AttackPlan(name="asks"), Asks())])
        Asks.kept.clear()
        bench.perform(Attack(intercepted(run, 1), 0, 1.0))
        return float(torch.rand((), generator=Asks.kept.pop()[1].rng))

    assert draw("a") == draw("a")
    assert len({draw("a"), draw("b"), draw("a", seed=4)}) == 3


def test_budget_and_time_limit_reach_the_job():
    run = scenario(threat={"timeout": 7.0})
    plans = [AttackPlan(name="asks", budget=5), AttackPlan(name="asks", timeout=3.0)]
    bench = Bench(run, adversaries=[(str(i), plan, Asks()) for i, plan in enumerate(plans)])
    jobs = []
    for index in range(2):
        Asks.kept.clear()
        bench.perform(Attack(intercepted(run, 1), index, 1.0))
        jobs.append(Asks.kept.pop()[1])
    assert [job.budget for job in jobs] == [5, None]
    assert [job._seconds for job in jobs] == [7.0, 3.0]


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
    assert _plain(value) == told
