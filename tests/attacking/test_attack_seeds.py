"""Adversaries' random numbers: a function of `threat.seed`, from which no other draw follows."""

import pytest
import torch
from support.tiny import rows, scenario

from fedsim import Adversary, Knowledge, Reconstruction
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.identity import plans
from fedsim.attacking.scoring import Attack
from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.records import Interception, Update
from fedsim.reproduce.driver import _repetition
from fedsim.scenario import Scenario
from fedsim.scenario.built import build

pytestmark = pytest.mark.usefixtures("unreported")


class Listening(Adversary):
    """Claims nothing, and remembers the seeds of the generators that it can reach."""

    name = "listening"
    needs = Knowledge(0)
    recovers = frozenset({"label_counts"})
    cites = "nobody"

    def reconstruct(self, seen, job):
        HEARD.append((job.rng.initial_seed(), torch.initial_seed()))
        return Reconstruction()


HEARD: list[tuple[int, int]] = []
RANDOM = {"adversaries": [{"name": "random"}], "threat": {"victims": 2}}


def heard(run: Scenario, client: int = 0) -> tuple[int, int]:
    """The seeds that an adversary of the run can reach when it attacks a client in round 1."""
    plan = [("listening", run.adversaries[0], Listening())]
    before = {"w": torch.ones(2)}
    update = Update({"w": torch.ones(2)}, "gradient")
    runner = AttackRunner(build(run, adversaries=plan))
    runner.perform(Attack(Interception(1, (client,), before, update), 0, 1.0))
    return HEARD[-1]


def test_what_an_adversary_draws_from_says_nothing_of_the_runs_seed():
    assert heard(scenario(seed=3)) == heard(scenario(seed=4))
    assert heard(scenario(threat={"seed": 1})) != heard(scenario())
    assert heard(scenario(), client=1) != heard(scenario())
    rng, global_rng = heard(scenario())
    assert rng == global_rng


def test_another_attack_seed_changes_random_claims_and_no_training(tmp_path):
    simulate(scenario(**RANDOM), tmp_path / "0")
    table = {**RANDOM, "threat": {"victims": 2, "seed": 1}}
    simulate(scenario(**table), tmp_path / "1")
    zero, one = (rows(tmp_path / name) for name in "01")
    assert [row["victim"] for row in zero] == [row["victim"] for row in one]
    assert [row["value"] for row in zero] != [row["value"] for row in one]
    assert rows(tmp_path / "0", "utility.csv") == rows(tmp_path / "1", "utility.csv")


def test_attacks_of_another_attack_seed_are_other_attacks(tmp_path):
    simulate(scenario(**RANDOM), tmp_path)
    before = rows(tmp_path)
    with pytest.raises(RunFolderError, match=r"threat\.seed \(0, now 1\)"):
        attack(tmp_path, changes={"threat": {"seed": 1}})
    attack(tmp_path, changes={"threat": {"seed": 1}}, overwrite=True)
    assert rows(tmp_path) != before


def test_repetitions_draw_anew_in_attacks_too():
    run = scenario(threat={"seed": 5}, sweep={"seed": [30, 4], "training.batch_size": [2, 4]})
    drawn = {name.partition(",")[0]: one.threat.seed for name, one in run.points().items()}
    assert drawn == {"seed=30": 5, "seed=4": 6}
    swept = scenario(sweep={"seed": [3, 4], "threat.seed": [8, 9]}).points().values()
    assert [(one.seed, one.threat.seed) for one in swept] == [(3, 8), (3, 9), (4, 8), (4, 9)]
    repeated = _repetition(scenario(threat={"seed": 5}), 5).points()
    assert [(one.seed, one.threat.seed) for one in repeated.values()] == [(5, 7)]


def test_the_identity_of_a_finding_has_the_attack_seed():
    (plan,) = plans(build(scenario(threat={"seed": 9})), "").values()
    assert (plan["seed"], plan["threat.seed"]) == (3, 9)
