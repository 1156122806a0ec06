"""A recorded run is attacked later, and the rows are those of a run that was attacked at once."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tiny import rows, scenario, timeless

import fedsim
from adversaries import IDLG, LLG
from fedsim.engine.attack import attack
from fedsim.engine.request import changes_of
from fedsim.engine.simulate import simulate, train
from fedsim.errors import FedsimError, RunFolderError, ScenarioError
from fedsim.runs.lock import alone_in
from fedsim.runs.recording import Recording

DLG = {"name": "dlg", "budget": 2, "victims": 3}


def run(**changes):
    """A run whose dlg attacks all victims of a round together."""
    threat = {"grants": "white-box", **changes.pop("threat", {})}
    return scenario(threat=threat, adversaries=[{"name": "llg"}, DLG], **changes)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A run that was attacked while it trained."""
    folder = tmp_path_factory.mktemp("live") / "run"
    simulate(run(), folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was recorded and not attacked."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(run(), folder)
    return folder


@pytest.fixture
def recorded(trained, tmp_path, unreported):
    """A copy of the recorded run, to be attacked without a report at the end."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def only(folder, **wanted):
    return [r for r in timeless(folder) if all(r[key] in value for key, value in wanted.items())]


def test_attacks_on_a_recorded_run_are_those_of_the_run(live, trained, tmp_path):
    recorded = Path(shutil.copytree(trained, tmp_path / "run"))
    assert rows(recorded, empty=True) == []
    attack(recorded)
    assert timeless(recorded) == timeless(live)
    assert (recorded / "report.html").stat().st_size > 10_000
    before = (recorded / "findings.csv").read_bytes()
    attack(recorded)  # nothing is left to do
    assert (recorded / "findings.csv").read_bytes() == before
    assert [path.name for path in (recorded / "attacks").iterdir()] == ["1.toml"]


def test_ray_workers_read_the_recording_and_find_the_same(live, recorded, ray_session):
    attack(recorded, changes={"engine": {"attack_workers": 2}})
    assert timeless(recorded) == timeless(live)


def test_what_is_chosen_has_the_rows_of_the_whole(live, recorded):
    victims = {row["client"] for row in only(live, label={"dlg"}, round={"2"})}
    client = min(victims)
    attack(recorded, rounds=[2], clients=[int(client)])
    assert timeless(recorded) == only(live, round={"2"}, client={client})
    attack(recorded, rounds=[2])  # the group is made again, and only new rows are written
    assert timeless(recorded) == only(live, round={"2"})
    attack(recorded)
    assert timeless(recorded) == timeless(live)


def test_another_adversary_has_the_rows_that_it_would_have_had(recorded, tmp_path):
    attack(recorded, [IDLG()])
    simulate(run().model_copy(update={"adversaries": idlg()}), tmp_path / "live")
    assert timeless(recorded) == timeless(tmp_path / "live")


def idlg():
    return scenario(adversaries=[{"name": "idlg"}]).adversaries


def test_flower_and_ray_are_not_needed(recorded):
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('flwr', 'ray'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from fedsim.cli import main\n"
        f"sys.argv = ['fedsim', 'attack', {str(recorded)!r}, '--adversary', 'llg', '-q']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(only(recorded, label={"llg"})) > 0


def test_the_same_label_is_one_adversary_and_its_settings(recorded):
    attack(recorded)
    settings = {"adversaries": [{"name": "llg", "variant": "llg+"}, DLG]}
    before = timeless(recorded)
    with pytest.raises(RunFolderError, match=r"llg: .* settings: variant \(llg, now llg\+\)"):
        attack(recorded, changes=settings)
    with pytest.raises(RunFolderError, match=r"budget \(2, now 3\)"):
        attack(recorded, changes={"adversaries": [{**DLG, "budget": 3}]})
    with pytest.raises(RunFolderError, match="grants"):
        attack(recorded, changes={"threat": {"grants": "full"}})
    assert timeless(recorded) == before
    other = {"adversaries": [{"name": "llg", "variant": "llg+", "label": "other"}]}
    attack(recorded, changes=other)
    assert [row for row in timeless(recorded) if row["label"] != "other"] == before
    attack(recorded, changes=settings, overwrite=True)
    renamed = [{**row, "label": "llg"} for row in only(recorded, label={"other"})]
    mine = only(recorded, label={"llg"})
    assert [r["value"] for r in mine] == [r["value"] for r in renamed]


def test_an_edited_adversary_is_not_taken_for_the_old_one(recorded, tmp_path, monkeypatch):
    source = 'from adversaries import LLG\nclass Mine(LLG):\n    """An adversary of a user."""\n'
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    changes = {"adversaries": [{"name": f"{name}:Mine", "label": "mine"}]}
    attack(recorded, changes=changes)
    count = len(rows(recorded))
    attack(recorded, changes=changes)
    assert len(rows(recorded)) == count > 0
    (tmp_path / f"{name}.py").write_text(source + "    # edited\n")
    with pytest.raises(RunFolderError, match="the source of its modules"):
        attack(recorded, changes=changes)


def test_failed_attacks_are_repeated_when_asked(recorded, rogues):
    changes = {"adversaries": [{"name": "rubbish", "how": "raise"}]}
    attack(recorded, changes=changes)
    assert {row["attempt"] for row in rows(recorded)} == {"1"}
    attack(recorded, changes=changes)
    assert {row["attempt"] for row in rows(recorded)} == {"1"}
    attack(recorded, changes=changes, retry=True, rounds=[1])
    attempts = {(row["round"], row["attempt"]) for row in rows(recorded)}
    assert attempts == {("1", "1"), ("1", "2"), ("2", "1")}


def test_an_unreadable_interception_costs_its_own_rows(live, recorded):
    path = next((recorded / "tape" / "r0002").glob("c*.safetensors"))
    path.write_bytes(b"broken")
    attack(recorded)
    victim = f"r0002-{path.stem}"
    broken = only(recorded, victim={victim})
    assert {row["status"] for row in broken} == {"failed"}
    assert all(path.name in row["error"] for row in broken)
    llg = {"label": {"llg"}}
    assert [row for row in only(recorded, **llg) if row["victim"] != victim] == [
        row for row in only(live, **llg) if row["victim"] != victim
    ]


def test_a_new_metric_is_scored(recorded, tmp_path, monkeypatch):
    (tmp_path / "mine_metric.py").write_text(
        "from fedsim.metric import Measure, Metric\n"
        "class Found(Metric):\n"
        '    """Whether anything was claimed."""\n'
        '    name = "found"\n'
        '    fields = ("labels",)\n'
        '    shown = Measure(title="Anything found", phrase="{value} found")\n'
        "    def compute(self, claimed, truth, spec):\n"
        "        return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    attack(recorded, changes={"adversaries": [{"name": "idlg"}]})
    before = len(rows(recorded))
    changes = {"adversaries": [{"name": "idlg"}], "metrics": ["mine_metric:Found"]}
    attack(recorded, changes=changes)
    found = [row for row in rows(recorded) if row["metric"] == "found"]
    assert {row["value"] for row in found} == {"1.0"}
    assert len(rows(recorded)) == before + len(found)
    assert "Anything found" in (recorded / "metrics.json").read_text()


@pytest.mark.parametrize(
    ("keep", "victims", "said"),
    [("nothing", "all", r'"nothing", record\.max_bytes = \d+'), ("attacked", "all", "round 1")],
)
def test_what_was_not_kept_is_said_before_any_attack(keep, victims, said, tmp_path, unreported):
    simulate(run(record={"keep": keep}, threat={"victims": 1}), tmp_path / "r")
    before = timeless(tmp_path / "r")
    with pytest.raises(RunFolderError, match=said) as caught:
        attack(tmp_path / "r", [IDLG()], changes={"threat": {"victims": victims}})
    assert "record.keep" in str(caught.value)
    assert timeless(tmp_path / "r") == before


def test_a_history_that_is_not_whole_is_denied(tmp_path, rogues, unreported):
    simulate(
        scenario(training={"clients_per_round": 6, "rounds": 3}, threat={"rounds": [3]}),
        tmp_path / "run",
    )
    attack(
        tmp_path / "run",
        changes={"adversaries": [{"name": "historian"}], "threat": {"grants": ["HISTORY"]}},
    )
    denied = [row for row in rows(tmp_path / "run") if row["label"] == "historian"]
    assert {row["status"] for row in denied} == {"denied"}
    assert all("earlier updates" in row["error"] for row in denied)


def test_training_cannot_be_changed_afterwards(trained, tmp_path):
    file = tmp_path / "other.toml"
    file.write_text("seed = 9\n[training]\nrounds = 2\nlr = 0.7\n[[adversaries]]\nname = 'llg'\n")
    with pytest.raises(
        ScenarioError, match=r"(?s)seed = 9, and the run has 3.*training\.lr = 0\.7"
    ):
        changes_of(trained, str(file), None, [], None)
    with pytest.raises(ScenarioError, match=r"training\.lr cannot change"):
        changes_of(trained, None, None, ["training.lr=2"], None)
    with pytest.raises(ScenarioError, match=r"threat\.follow"):
        changes_of(trained, None, None, ["threat.follow=[1]"], None)
    file.write_text(
        "[training]\nrounds = 2\n[threat]\nvictims = 1\n[[adversaries]]\nname = 'idlg'\n"
    )
    changed = changes_of(trained, str(file), None, ["adversaries.0.label=x"], "full")
    assert {*changed} == {"adversaries", "threat"}
    assert (changed["threat"]["victims"], changed["threat"]["grants"]) == (1, "full")
    assert changed["adversaries"] == [{"name": "idlg", "label": "x"}]


def test_the_scenario_that_made_a_run_attacks_it(tmp_path):
    written = {"lr_schedule": "cosine", "secure_aggregation": True, "rounds": 1}
    simulate(scenario(training=written, adversaries=[]), tmp_path / "run")
    file = tmp_path / "same.toml"
    keys = "rounds = 1\nsecure_aggregation = true\nlr_schedule = 'cosine'\n"
    file.write_text(f"seed = 'random'\n[training]\n{keys}[[adversaries]]\nname = 'llg'\n")
    assert {*changes_of(tmp_path / "run", str(file), None, [], None)} == {"adversaries"}


@pytest.mark.parametrize("wrong", ["threat = 3", "engine = []", "[adversaries]\nname = 'llg'"])
def test_what_is_no_table_is_named(wrong, trained, tmp_path):
    (tmp_path / "wrong.toml").write_text(wrong)
    with pytest.raises(ScenarioError, match=r"(threat|engine|adversaries): expected .*table"):
        changes_of(trained, str(tmp_path / "wrong.toml"), None, [], None)


def test_what_is_no_run_or_is_being_written_is_refused(trained, recorded, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "none"):
        with pytest.raises(RunFolderError, match="holds no run"):
            attack(tmp_path / folder)
    with (
        alone_in(recorded),
        pytest.raises(RunFolderError, match=r"is being written by process [0-9]+ on .*, since 20"),
    ):
        attack(recorded)
    before = (recorded / "scenario.toml").read_bytes()
    with (
        alone_in(recorded),
        pytest.raises(RunFolderError, match=r"is being written by process [0-9]+ on .*, since 20"),
    ):
        simulate(run().model_copy(update={"name": "other"}), recorded, resume=True)
    assert (recorded / "scenario.toml").read_bytes() == before
    with pytest.raises(ScenarioError, match="no victim"):
        attack(recorded, rounds=[77])
    with pytest.raises(ScenarioError, match=r"clients: found 1; expected a list of numbers"):
        attack(recorded, clients=1)
    with pytest.raises(ScenarioError, match="no adversary"):
        attack(recorded, changes={"adversaries": []})


@pytest.mark.timeout(60)
def test_a_pipe_in_a_run_folder_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "scenario.toml").write_text(scenario().to_toml())
    os.mkfifo(tmp_path / "provenance.json")
    with pytest.raises(RunFolderError, match=r"provenance\.json is no regular file"):
        attack(tmp_path)


def test_a_run_of_schema_1_is_attacked_and_not_resumed(live, tmp_path, unreported):
    folder = Path(shutil.copytree(live, tmp_path / "old"))
    (folder / "tape" / "index.jsonl").unlink()
    (folder / "attacks.jsonl").unlink()
    told = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps({**told, "schema": 1}))
    with pytest.raises(RunFolderError, match="schema 1"):
        simulate(run(), folder, resume=True)
    before = timeless(folder)
    attack(folder, [IDLG()])
    assert [row for row in timeless(folder) if row["label"] != "idlg"] == before
    assert {row["status"] for row in only(folder, label={"idlg"})} == {"ok"}


def test_a_run_goes_on_with_another_adversary(live, tmp_path, unreported):
    folder = Path(shutil.copytree(live, tmp_path / "run"))
    more = run().model_copy(update={"adversaries": [*run().adversaries, *idlg()]})
    simulate(more, folder, resume=True)
    assert [row for row in timeless(folder) if row["label"] != "idlg"] == timeless(live)
    assert len(only(folder, label={"idlg"})) > 0
    changed = run(training={"lr": 0.7})
    with pytest.raises(RunFolderError, match=r"differs in training\.lr \(0\.1 before, now 0\.7\)"):
        simulate(changed, folder, resume=True)


def test_python_does_what_the_commands_do(tmp_path, unreported):
    fedsim.train(run(), tmp_path / "run")
    fedsim.attack(tmp_path / "run", [LLG()])
    found = fedsim.load(tmp_path / "run")
    assert {*found.findings["label"]} == {"llg"}
    assert {*found.utility["round"]} == {0, 1, 2}
    assert len(list(found.recording())) == 8
    assert isinstance(found.recording(), Recording)
    assert found.scenario.keeps == "all"
    with pytest.raises(FedsimError):
        fedsim.load(tmp_path)


def test_attacks_that_were_killed_are_taken_up_again(recorded, tmp_path):
    command = ["attack", str(recorded), "--quiet", "--set", "adversaries.1.iterations=4000"]
    whole = Path(shutil.copytree(recorded, tmp_path / "whole"))
    process = subprocess.Popen([sys.executable, "-m", "fedsim.cli", *command])
    table, deadline = recorded / "findings.csv", time.monotonic() + 100
    try:
        while table.read_bytes().count(b"\n") < 20:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    changes = {"adversaries": [{"name": "llg"}, {**DLG, "iterations": 4000}]}
    kept = timeless(recorded)
    attack(whole, changes=changes)
    assert 0 < len(kept) < len(timeless(whole))
    attack(recorded, changes=changes)
    assert timeless(recorded) == timeless(whole)
