"""What a diagnosis says of a run, and where it can be read."""

import html
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from support.tiny import rows, scenario
from typer.testing import CliRunner

import fedsim
from fedsim import Adversary, Knowledge, Reconstruction, Requirement
from fedsim.cli import app
from fedsim.diagnosis import diagnose as module
from fedsim.diagnosis.leaks import gain
from fedsim.diagnosis.verdict import expect, sentence
from fedsim.engine.simulate import simulate
from fedsim.errors import FedsimError, RunFolderError
from fedsim.knowledge import PRESETS
from fedsim.plugin import find, names
from fedsim.report import verdicts
from fedsim.report.diagnosis import explain
from fedsim.runs.recording import Recording
from fedsim.scenario import Scenario

LARGE = {"training.batch_size": [1, 30]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosis") / "run"
    plans = [{"name": "llg"}, {"name": "rlg"}, {"name": "llg", "variant": "llg+", "label": "plus"}]
    simulate(scenario(adversaries=plans, sweep=LARGE), folder)
    return fedsim.load(folder)


def test_what_leaks_is_expected_and_what_does_not_has_a_reason(run):
    table = run.diagnosis
    assert len(table) == 2 * 2 * 4 * 3, "points, rounds, victims, adversaries"
    mine = table[table["label"] != "plus"]
    easy = mine[mine["point"] == "training.batch_size=1"]
    hard = mine[mine["point"] != "training.batch_size=1"]
    assert set(easy["expected"]) == set(easy["found"]) == {"leaks"}
    assert set(hard["expected"]) == {"nothing"}
    assert all("label_share" in one or "guessable" in one for one in hard["reasons"])
    assert hard["advice"].str.contains("smaller batch").all()
    denied = table[table["label"] == "plus"]
    assert denied["reasons"].str.startswith("MODEL AUXILIARY").all()
    assert set(denied["found"]) == {"denied"}
    assert all(json.loads(one)["head"]["most"] == 9 for one in table["layers"])


def test_the_table_is_in_the_folder_and_made_anew_when_the_run_has_changed(run):
    table = run.diagnosis
    path = run.folder / "diagnosis.csv"
    assert len(rows(run.folder, "diagnosis.csv")) == len(table)
    written = path.stat().st_mtime_ns
    assert run.diagnosis.equals(table)
    assert path.stat().st_mtime_ns == written, "it is read, not written again"
    findings = run.folder / "findings.csv"
    findings.write_bytes(findings.read_bytes())
    assert run.diagnosis.equals(table)
    assert path.stat().st_mtime_ns > written


def test_a_point_of_which_nothing_was_kept_hides_no_updates_of_others(run, tmp_path):
    table = run.folder / "diagnosis.csv"
    assert len(run.diagnosis)
    header = table.read_text().splitlines(keepends=True)[0]
    for place in ("tape", "other"):
        folder = tmp_path / place
        shutil.copytree(run.folder, folder)
        first, *others = sorted(folder.glob("tape/*/index.jsonl"), reverse=place == "other")
        assert others
        for files in first.parent.glob("r*"):
            shutil.rmtree(files)
        Recording(first.parent).keep({})
        (folder / "diagnosis.csv").write_text(header)
        assert not module.is_current(folder)


def test_the_command_prints_its_table_as_json_without_numbers_that_json_lacks(run):
    def refuse(constant):
        raise AssertionError(constant)

    done = CliRunner().invoke(app, ["diagnose", str(run.folder), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout, parse_constant=refuse)
    assert len(found) == len(run.diagnosis)
    assert None in found[0].values(), "a quantity that is not known"


def test_the_command_prints_a_sentence_for_each_adversary_and_point(run):
    done = CliRunner().invoke(app, ["diagnose", str(run.folder), "--adversary", "random"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("training.batch_size=1: llg found labels (Labels recovered 100 %, c")
    assert "). In rounds 1 to 2: 1 example in 1 local step, with all that it req" in lines[0]
    assert "random is not attacked yet. In rounds 1 to 2 it declares no req" in done.stdout
    page = (run.folder / "report.html").read_text()
    assert "random</b> is not attacked yet" in page, "the page is written again"
    assert lines[-1] == f"all 64 rows: {run.folder}/diagnosis.csv"
    said = [(line.split(": ")[0], line.split(": ")[1].split()[0]) for line in lines[:-1]]
    assert len(said) == len(set(said)) == 2 * 4, "a line for every point and adversary"
    assert set(run.diagnosis["label"]) == {"llg", "rlg", "plus", "random"}


def test_where_nothing_was_recorded_or_attacked_there_is_nothing_to_diagnose(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run"):
        fedsim.diagnose(tmp_path)
    quiet = scenario(adversaries=[], record={"keep": "nothing"}, training={"rounds": 1})
    simulate(quiet, tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"nothing to diagnose.*record\.keep"):
        fedsim.diagnose(tmp_path / "run")


def test_without_a_recording_the_scenario_is_judged_and_the_rest_is_named(tmp_path):
    simulate(scenario(record={"keep": "nothing"}, training={"rounds": 1}), tmp_path / "run")
    table = fedsim.load(tmp_path / "run").diagnosis
    assert list(table["examples"]) == [4] * 4
    assert set(table["layers"]) == {""}
    (said,) = explain(tmp_path / "run")
    assert "updates were not recorded, and with record.keep" in said.reasons[0].text
    assert "label_share" in said.reasons[0].text
    assert 'record.keep = "attacked"' in html.unescape((tmp_path / "run/report.html").read_text())


def test_the_page_shows_what_its_commands_print(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    plans = [{"name": name} for name in ("llg", "rlg", "idlg")]
    table = Scenario.load("first-rounds", ["training.batch_size=4"]).to_dict()
    simulate(Scenario.parse({**table, "adversaries": plans}), tmp_path / "run")
    shown = page.split("```text\n")[1].split("\n```")[0].splitlines()
    assert shown[:3] == [str(one) for one in explain(tmp_path / "run")]


def test_labels_that_leak_are_never_called_nothing(tmp_path):
    """idlg names one label of four, which is less than half of the way to a perfect score."""
    plans = [{"name": "idlg"}, {"name": "dlg", "iterations": 1, "restarts": 0}]
    simulate(
        scenario(adversaries=plans, threat={"grants": "white-box", "victims": "all"}),
        tmp_path / "run",
    )
    kinds = {row["label"]: row["kind"] for row in verdicts(tmp_path / "run")}
    assert kinds["idlg"] == "leaks"
    table = fedsim.load(tmp_path / "run").diagnosis
    assert set(table[table["label"] == "idlg"]["found"]) <= {"less", "leaks"}
    assert not table["sentence"].str.contains("found nothing").any()
    said = {one.label: str(one) for one in explain(tmp_path / "run")}
    assert said["idlg"].startswith("idlg found labels (Label ")
    assert "It finds no more in rounds 1 to 2: 4 examples; it needs a single ex" in said["idlg"]
    assert "no inputs" in said["dlg"] or "inputs in too few" in said["dlg"], said["dlg"]
    words = re.sub(r"<[^>]+>", "", (tmp_path / "run/report.html").read_text())
    words = " ".join(html.unescape(words).split())
    for line in said.values():
        assert line in words, "the page prints what the command prints"


def test_the_end_of_a_run_measures_a_part_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    simulate(scenario(), tmp_path / "run")
    written = rows(tmp_path / "run", "diagnosis.csv")
    assert [one["victim"][:5] for one in written] == ["r0001", "r0002", "r0002"]
    page = (tmp_path / "run/report.html").read_text()
    assert "Reasons were measured for 3 of 8 attacks" in page
    assert len(fedsim.load(tmp_path / "run").diagnosis) == 8, "all that was recorded"


def test_a_diagnosis_that_fails_costs_the_run_no_report(tmp_path, monkeypatch):
    def broken(*args, **more):
        raise RuntimeError("a model that fell over")

    monkeypatch.setattr(module, "outcomes", broken)
    said = []
    simulate(
        scenario(training={"rounds": 1}),
        tmp_path / "run",
        observer=lambda event, **fields: said.append((event, fields)),
    )
    texts = [fields["text"] for event, fields in said if event == "caution"]
    assert "why attacks leak or not was not measured: RuntimeError: a model that fell over" in texts
    assert "No reasons were measured" in (tmp_path / "run/report.html").read_text()


def test_code_that_attacks_on_a_recording_name_is_imported_if_trusted_alone(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run/attacks").mkdir()
    (tmp_path / "run/attacks/1.toml").write_text('[[adversaries]]\nname = "no_such_code:Mine"\n')
    assert len(fedsim.diagnose(tmp_path / "run"))
    with pytest.raises(FedsimError, match="no_such_code"):
        fedsim.diagnose(tmp_path / "run", trust=True)


def test_check_says_what_follows_from_the_scenario_alone():
    runner = CliRunner()
    done = runner.invoke(app, ["check", "first-rounds"])
    assert (
        "    nothing in the scenario speaks against it: 1 example in 1 local step\n" in done.stdout
    )
    noise = 'defenses=[{name="gaussian-noise"}]'
    done = runner.invoke(app, ["check", "first-rounds", "--set", noise])
    assert "; how much gaussian-noise hides is measured by fedsim diagnose" in done.stdout
    told = ["training.algorithm=fedavg", "training.local_steps=10", "training.batch_size=32"]
    sets = [part for one in told for part in ("--set", one)]
    done = runner.invoke(app, ["check", "first-rounds", *sets])
    said = next(line for line in done.stdout.splitlines() if "dlg is expected" in line)
    assert "320 examples" in said
    assert "try a smaller training.batch_size" in said


@pytest.mark.parametrize("name", [name for name in names("adversaries") if name != "random"])
def test_every_attack_declares_what_it_requires_and_show_prints_it(name):
    cls = find("adversaries", name)
    assert cls().conditions(), f"{name} declares no requirements"
    shown = CliRunner().invoke(app, ["show", name]).stdout
    for one in cls.requirements:
        assert one.why[0].islower()
        assert f"requires {one.needed} ({one.quantity}): {one.why}" in " ".join(shown.split())


class Undeclared(Adversary):
    """An attack that declares nothing."""

    name = "undeclared"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"label_set"})

    def reconstruct(self, seen, job):
        """Claim nothing."""
        return Reconstruction(label_set=frozenset())


class Picky(Undeclared):
    """An attack that needs few examples, and what the attack behind it needs."""

    requirements = (Requirement("examples", "because", most=4, advice="a batch of 4"),)
    labels_from: str = "llg"


def test_nothing_is_expected_of_an_attack_without_requirements():
    verdict = expect(Undeclared(), PRESETS["gradients"], {"examples": 99})
    assert verdict.leaks is None
    assert sentence("mine", verdict, {}, ended="scored 3") == (
        "mine scored 3; it declares no requirements that could say why"
    )


def test_a_sentence_names_what_was_seen_what_is_needed_and_what_to_try():
    values = {"examples": 80, "steps": 10}
    verdict = expect(Picky(), PRESETS["gradients"], values)
    assert sentence("picky", verdict, values, where=" in round 10", ended="scored 3") == (
        "picky scored 3 in round 10: 80 examples; it needs at most 4 examples; try a batch of 4"
    )
    few = {**values, "examples": 4}
    verdict = expect(Picky(), PRESETS["gradients"], few)
    assert verdict.leaks
    assert sentence("picky", verdict, few, ended="scored 3") == (
        "picky scored 3: 4 examples in 10 local steps, with all that it requires as far as "
        "known (not known: opposite_signs, label_share, guessable, row_noise)"
    )
    signs = {**few, "opposite_signs": 1.0}
    assert expect(Picky(), PRESETS["gradients"], signs).reasons == ("opposite_signs",)


def test_an_attack_leaks_from_half_of_the_way_between_the_better_guess_and_a_perfect_score():
    assert gain(0.8, 0.2, 0.6, lower=False, best=1) == pytest.approx(0.5)
    assert gain(0.02, 0.3, 0.08, lower=True, best=0) == pytest.approx(0.75)
    assert gain(0.5, 0.5, math.nan, lower=False, best=1) == 0
    assert gain(1.0, 1.0, math.nan, lower=False, best=1) == 0
    assert math.isnan(gain(1.0, math.nan, math.nan, lower=False, best=1))


def test_probes_are_diagnosed_with_the_examples_that_they_have(tmp_path):
    probes = [{"client": 1, "batch_size": 2, "updates": 2}]
    simulate(
        scenario(threat={"victims": [0], "probes": probes}, training={"rounds": 1}), tmp_path / "r"
    )
    table = fedsim.diagnose(tmp_path / "r")
    assert sorted(table["victim"]) == ["r0001-c0000", "r0001-c0001-p00", "r0001-c0001-p01"]
    assert list(table["examples"]) == [4, 2, 2]
    assert set(table["found"]) == {"leaks"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_unknown(value):
    bound = Requirement("noise", "why", most=0.5)
    assert bound.met(value) is None
    assert "unknown" in bound.of.describe(value)
