"""Batches of victims: the same rows as one by one, and nobody pays for another's failure."""

from typing import ClassVar

import pytest
import torch
from support.rogues import Flock
from support.tiny import rows, scenario, timeless

from adversaries import LLG
from fedsim.adversary import group_size
from fedsim.attacking.attack import Attack, AttackRunner, grouped
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import InlineExecutor
from fedsim.attacking.identity import plans
from fedsim.engine.simulate import simulate
from fedsim.records import Interception, Update
from fedsim.runs.attack_log import Ended
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import build
from fedsim.testing import conformance

pytestmark = pytest.mark.usefixtures("rogues", "unreported")

ALL = {"clients_per_round": 6}


def flock(how="fine", *, folder=None, **changes):
    """Six victims a round, attacked in groups of three."""
    log = {"log": str(folder / "sizes")} if folder else {}
    plan = {k: changes.pop(k) for k in ("budget", "timeout") if k in changes}
    training = {**ALL, **changes.pop("training", {})}
    adversaries = [{"name": "flock", "how": how, **plan, **log}]
    return scenario(training=training, adversaries=adversaries, **changes)


def sizes(folder):
    return [int(line) for line in (folder / "sizes").read_text().split()]


def ends(folder, label="flock"):
    """Statuses by (round, client)."""
    found = {}
    for row in rows(folder):
        if row["label"] == label:
            found.setdefault((int(row["round"]), int(row["client"])), set()).add(row["status"])
    return found


def only(status, client=2, rounds=(1, 2)):
    """Every client is ok in every round, but for one."""
    return {(r, c): {status if c == client else "ok"} for r in rounds for c in range(6)}


def cautions(run, folder):
    """What a run warns of."""
    told = []
    simulate(run, folder, observer=lambda event, **fields: told.append((event, fields)))
    return [fields["text"] for event, fields in told if event == "caution"]


def caught(clients, round=1):
    """Interceptions that need no training."""
    update = Update({"head.weight": torch.eye(10)}, "gradient", num_examples=4)
    return [
        Interception(round, (c,), {"head.weight": torch.zeros(10, 10)}, update) for c in clients
    ]


def test_the_rows_are_those_of_attacking_one_by_one(tmp_path, monkeypatch):
    grouped, alone = tmp_path / "grouped", tmp_path / "alone"
    for folder in (grouped, alone):
        folder.mkdir()
    simulate(flock(folder=grouped, budget=2), grouped / "run")
    monkeypatch.setattr(Flock, "group", 1)
    simulate(flock(folder=alone, budget=2), alone / "run")
    assert sizes(grouped) == [3, 3] * 2
    assert sizes(alone) == [1] * 12
    found = timeless(grouped / "run")
    assert found == timeless(alone / "run")
    assert {row["status"] for row in found} == {"ok"}
    assert {row["iterations"] for row in found} == {"2"}, "every job has its own budget"
    assert len({row["value"] for row in found if row["metric"] == "asr"}) > 1


def test_settings_that_gain_nothing_from_a_group_have_none(tmp_path):
    run = flock("apart", folder=tmp_path, training={"rounds": 1})
    simulate(run, tmp_path / "run")
    assert ends(tmp_path / "run") == only("ok", rounds=(1,))
    assert sizes(tmp_path) == [1] * 6
    for isolation in ("none", "process"):
        said = flock("apart", threat={"isolation": isolation}).build_adversaries()
        assert [one.together() for _, _, one in said] == [1]


@pytest.mark.parametrize("said", [0, 4, None, 2.5, "raises"])
def test_a_size_that_is_no_number_up_to_group_is_one(said, monkeypatch):
    def together(self):
        if said == "raises":
            raise RuntimeError("no size")
        return said

    monkeypatch.setattr(Flock, "together", together)
    assert group_size(Flock()) == 1


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("raise", "failed", "RuntimeError: one of them is too much"),
        ("none", "failed", "returned NoneType, expected a Reconstruction"),
        ("short", "ok", "returned 2 claims"),
        ("hang", "timeout", "over its limit of 1.2 s"),
    ],
)
def test_a_group_that_fails_costs_the_guilty_row_alone_and_is_told(how, status, said, tmp_path):
    run = flock(how, folder=tmp_path, timeout=0.4, training={"rounds": 1})
    told = cautions(run, tmp_path / "run")
    assert ends(tmp_path / "run") == only(status, rounds=(1,))
    assert sizes(tmp_path) == [3, 1, 1, 1, 3]
    assert len(told) == 1
    assert "3 attacks together failed" in told[0]
    assert said in told[0]
    for row in rows(tmp_path / "run"):
        assert bool(row["error"]) == (row["status"] != "ok")
        assert bool(row["value"]) == (row["status"] == "ok")


def test_seconds_are_those_of_the_call_over_its_victims(tmp_path):
    simulate(flock("nap", training={"rounds": 1}), tmp_path)
    for row in rows(tmp_path):
        assert 0.1 <= float(row["seconds"]) < 0.3


def test_what_is_denied_is_denied_for_all_without_a_warning(tmp_path):
    run = flock(folder=tmp_path, threat={"grants": ["HEAD_GRADIENT"]}, training={"rounds": 1})
    assert cautions(run, tmp_path / "run") == []
    assert set(map(frozenset, ends(tmp_path / "run").values())) == {frozenset({"denied"})}
    assert not (tmp_path / "sizes").exists()


def test_what_was_refused_is_in_no_group(tmp_path):
    run = flock(
        folder=tmp_path,
        training={"on_failure": "drop"},
        defenses=[{"name": "faulty", "how": "nan"}],
    )
    (said,) = cautions(run, tmp_path / "run")  # of the client, and none of its group
    assert said.startswith("round 2 is trained without 1 client: client 2: UpdateRefused: ")
    assert ends(tmp_path / "run") == {**only("ok"), (2, 2): {"failed"}}
    assert sizes(tmp_path) == [3, 3, 3, 2]


def test_groups_never_mix_adversaries(tmp_path):
    names = [{"name": "llg"}, {"name": "flock"}, {"name": "flock", "label": "other"}]
    run = scenario(adversaries=names)
    runner, groups = AttackRunner(build(run)), []
    executor = InlineExecutor(runner)
    executor.submit = groups.extend
    Campaign(runner.built, Ledger.create(tmp_path, run), executor).intercept(1, caught(range(4)))
    shape = [({one.adversary for one in group}, len(group)) for group in groups]
    assert shape == [*[({0}, 1)] * 4, ({1}, 3), ({1}, 1), ({2}, 3), ({2}, 1)]


def test_a_resumed_round_repeats_groups_whole_and_writes_what_has_no_rows_yet(tmp_path):
    run = flock(folder=tmp_path)
    ledger = Ledger.create(tmp_path / "run", run)
    runner = AttackRunner(build(run))
    for one in caught([0, 3]):
        rows, label = runner.perform(Attack(one, 0, 1.0)).findings, runner.adversaries[0][0]
        plan = ledger.attacks.plan(plans(runner.built, "")[label])
        ledger.findings(rows, Ended(point="", victim=one.victim, label=label, plan=plan))
    (tmp_path / "sizes").unlink(missing_ok=True)
    before = len(ledger.rows())
    campaign = Campaign(runner.built, ledger, InlineExecutor(runner))
    campaign.intercept(1, caught(range(6)))
    assert campaign.executor.pending == 6
    campaign.collect(wait=True)
    assert sizes(tmp_path) == [3, 3]
    assert len(ledger.rows()) == 3 * before
    assert len({row["victim"] for row in ledger.rows()}) == 6
    assert campaign.executor.pending == 0
    assert campaign.settled(1)


def test_ctrl_c_is_no_failure_of_the_group(tmp_path):
    run = flock("interrupt", folder=tmp_path)
    runner = AttackRunner(build(run))
    executor = InlineExecutor(runner)
    executor.submit(
        grouped(runner.adversaries[0][2], [Attack(one, 0, 1.0) for one in caught(range(6))])
    )
    with pytest.raises(KeyboardInterrupt):
        list(executor.collect(wait=True))
    assert sizes(tmp_path) == [3]


def test_conformance_wants_a_size_with_a_batched_attack():
    class Shy(Flock):
        """Batched, and does not say so."""

        group: ClassVar[int] = 1

    class Loud(LLG):
        """Says that it is batched, and is not."""

        group: ClassVar[int] = 4

    for cls, said in ((Shy, "group is 1, and reconstruct_many is over"), (Loud, "group is 4, and")):
        assert any(said in complaint for complaint in conformance(cls))
    assert not any("group" in complaint for complaint in [*conformance(Flock), *conformance(LLG)])


@pytest.mark.usefixtures("rogues_everywhere", "ray_session")
def test_ray_finds_the_same_in_groups_and_survives_a_group_that_kills_its_worker(tmp_path):
    def run(engine, *deadly):
        plans = [
            {"name": "flock", "log": str(tmp_path / f"sizes-{engine['workers']}")},
            {"name": "flock", "how": "raise", "label": "raises", "known_as": "raises"},
            *deadly,
        ]
        return scenario(training=ALL, adversaries=plans, engine=engine)

    simulate(run({"workers": 1}), tmp_path / "inline")
    deadly = [
        {"name": "flock", "how": how, "label": how, "known_as": how, "log": str(tmp_path / how)}
        for how in ("die", "die once")
    ]
    told = cautions(run({"name": "ray", "workers": 2}, *deadly), tmp_path / "ray")
    found = [row for row in timeless(tmp_path / "ray") if not row["label"].startswith("die")]
    assert found == timeless(tmp_path / "inline")
    assert ends(tmp_path / "ray", "flock") == only("ok", client=-1)
    assert ends(tmp_path / "ray", "raises") == only("failed")
    assert ends(tmp_path / "ray", "die") == only("failed")
    assert ends(tmp_path / "ray", "die once") == only("ok", client=-1)

    def calls(name):
        return sorted(int(number) for number in (tmp_path / name).read_text().split())

    assert calls("sizes-2") == [3] * 4
    assert calls("die once") == [3] * 5, "a group whose worker died was not repeated whole"
    assert calls("die") == [1] * 8 + [3] * 6
    assert sum("one of them is too much" in text for text in told) == 2
    assert sum("its worker died" in text for text in told) == 2
