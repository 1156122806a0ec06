"""An attack on a recorded sweep leaves what it does not change as it was at each point."""

import pytest
from support.image_sets import toy, written
from support.tiny import rows, scenario, timeless

from adversaries import IDLG
from fedsim.engine.attack import attack
from fedsim.engine.request import changed, changes_of
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError, ScenarioError

pytestmark = pytest.mark.usefixtures("unreported")

TRAINING = {"rounds": 1, "clients": 2, "clients_per_round": 2}
SEEDS_AND_GRANTS = {"seed": [3, 4], "threat.grants": ["gradients", "auxiliary"]}
VARIANTS = {"adversaries.0.variant": ["llg", "llg+"]}


def swept(sweep, **adversary):
    one = {"name": "llg", **adversary}
    threat = {"grants": "auxiliary"}
    return scenario(training=TRAINING, threat=threat, adversaries=[one], sweep=sweep)


@pytest.mark.parametrize("sweep", [SEEDS_AND_GRANTS, VARIANTS])
def test_points_keep_their_swept_values(sweep, tmp_path):
    simulate(swept(sweep, label="late"), tmp_path / "at-once")
    simulate(swept(sweep), tmp_path / "later")
    settings = ["adversaries.0.label=late", "threat.timeout=100"]
    attack(tmp_path / "later", changes=changes_of(tmp_path / "later", None, None, settings, None))
    late = [row for row in timeless(tmp_path / "later") if row["label"] == "late"]
    assert late == timeless(tmp_path / "at-once")
    attack(
        tmp_path / "later", changes=changes_of(tmp_path / "later", None, "idlg", [], "auxiliary")
    )
    granted = {row["granted"] for row in rows(tmp_path / "later") if row["label"] == "idlg"}
    assert len(granted) == 1
    assert "AUXILIARY" in granted.pop()


def test_a_point_that_was_not_run_is_no_point_whose_updates_were_not_kept(tmp_path):
    simulate(swept(VARIANTS), tmp_path / "run", points=["adversaries.0.variant=llg"])
    with pytest.raises(RunFolderError, match=r"variant=llg\+: no round of it has ended.*--points"):
        attack(tmp_path / "run")
    attack(tmp_path / "run", points=["adversaries.0.variant=llg"])


def test_attacks_of_repetitions_draw_anew_from_a_seed_of_their_own():
    run = swept({"seed": [3, 4]})
    found = {}
    for name, point in run.points().items():
        found[name] = changed(run, name, point, {"threat": {"seed": 20}})["threat"]["seed"]
    assert found == {"seed=3": 20, "seed=4": 21}


def test_an_attack_changes_swept_settings_that_it_states():
    run = swept(VARIANTS)
    points = run.points()

    def settings(*adversaries):
        changes = {"adversaries": [*adversaries]}
        tables = [changed(run, name, point, changes) for name, point in points.items()]
        return [table["adversaries"] for table in tables]

    assert settings({"name": "llg", "batches": 3}) == [
        [{"name": "llg", "batches": 3, "variant": "llg"}],
        [{"name": "llg", "batches": 3, "variant": "llg+"}],
    ]
    for other in ({"name": "llg", "variant": "llg*"}, {"name": "idlg"}):
        assert settings(other) == [[other], [other]]
    assert settings() == [[], []]


def test_points_with_other_data_than_the_scenario_itself_are_attacked(tmp_path):
    paths = [str(written(tmp_path, name, **toy()) / f"{name}.npz") for name in ("one", "two")]
    simulate(swept({"task.data": paths}), tmp_path / "run")
    attack(tmp_path / "run", [IDLG()])
    found = [row for row in rows(tmp_path / "run") if row["adversary"] == "idlg"]
    assert {row["status"] for row in found} == {"ok"}
    assert len({row["point"] for row in found}) == 2


def test_a_point_of_a_run_without_a_sweep_is_named_with_the_reason(tmp_path):
    simulate(scenario(training={"rounds": 1}), tmp_path / "run")
    with pytest.raises(ScenarioError, match=r"no point 'lr=1': this run has no \[sweep\]"):
        attack(tmp_path / "run", points=["lr=1"])
