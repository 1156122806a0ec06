"""A package of somebody else's plugins, really installed, works like the built-in ones."""

import csv
import json
from collections import defaultdict
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.commands import python
from support.plugins_fixture import thirdparty, with_plugins

from fedsim.report import summary, write_report

__all__ = ["thirdparty"]

SCENARIO = """
seed = 7
[task]
name = "images"
model = "cnn"
[training]
algorithm = "fedsgd"
rounds = 2
clients = 6
clients_per_round = 3
batch_size = 1
on_failure = "drop"
[threat]
grants = "white-box"
[engine]
workers = 1
"""

WELL_BEHAVED = """
[[defenses]]
name = "scale"
factor = 0.5
[[adversaries]]
name = "bias-sign"
[[adversaries]]
name = "bad-raiser"
message = "expected"
[[adversaries]]
name = "bad-abuser"
[[adversaries]]
name = "llg"
"""


def fedsim(site: Path, folder: Path, *words: str) -> CompletedProcess[str]:
    env = with_plugins(site, OMP_NUM_THREADS="1")
    return python("-m", "fedsim.cli", *words, folder=folder, env=env)


def run_scenario(site: Path, folder: Path, text: str, *words: str) -> list[dict[str, str]]:
    """The findings of a run of this scenario."""
    (folder / "case.toml").write_text(text)
    done = fedsim(site, folder, "run", "case.toml", "--out", "out", "--quiet", *words)
    assert done.returncode == 0, done.stderr
    with (folder / "out" / "findings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def statuses(rows: list[dict[str, str]], key: str = "label") -> dict[str, set[str]]:
    found = defaultdict(set)
    for row in rows:
        found[row[key]].add(row["status"])
    return dict(found)


def test_is_listed_and_shown_like_a_built_in(thirdparty, tmp_path):
    listed = json.loads(fedsim(thirdparty, tmp_path, "list", "--json").stdout)
    assert {"bias-sign", "llg"} <= listed["adversaries"].keys()
    assert {"scale", "sign"} <= listed["defenses"].keys()
    shown = json.loads(fedsim(thirdparty, tmp_path, "show", "scale", "--json").stdout)
    assert [setting["name"] for setting in shown["settings"]] == ["factor", "clients", "layers"]


def test_a_metric_is_measured_and_read_the_right_way_round(thirdparty, tmp_path):
    attacks = '[[adversaries]]\nname = "llg"\n[[adversaries]]\nname = "random"\n'
    (tmp_path / "case.toml").write_text(
        SCENARIO.replace("batch_size = 1", "batch_size = 4") + attacks
    )
    run = fedsim(thirdparty, tmp_path, "run", "case.toml", "--out", "out")
    assert run.returncode == 0, run.stderr
    with (tmp_path / "out" / "findings.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "labels-missed"]
    missed = {
        name: sum(float(row["value"]) for row in rows if row["label"] == name)
        for name in ("llg", "random")
    }
    assert missed["llg"] < missed["random"]
    assert all(float(row["baseline"]) > 0 for row in rows)
    # Its rank puts it before those of fedsim: it stands for the adversary.
    assert "Labels missed" in run.stdout
    assert "labels of 6 updates missed" in run.stdout
    assert "lower is better for the attacker" in " ".join(run.stdout.split())
    # From here on the package is not installed: the run folder says how its metric is read.
    for row in summary(tmp_path / "out"):
        if row["metric"] == "labels-missed" and row["label"] == "llg":
            assert row["lower_is_better"]
            assert row["verdict"] == "beats chance, not a prior guess"  # all labels miss none
            assert row["best"] <= row["mean"] <= row["worst"]
            break
    else:
        raise AssertionError("no row of the metric")
    page = write_report(tmp_path / "out").read_text()
    assert "llg: Labels missed" in page
    assert "A metric that this report has no words for" not in page
    (tmp_path / "out" / "metrics.json").write_text("[]")
    assert "metrics.json cannot be read" in write_report(tmp_path / "out").read_text()


def test_is_seen_only_where_it_is_on_the_path(thirdparty, tmp_path):
    listed = json.loads(fedsim(tmp_path, tmp_path, "list", "adversaries", "--json").stdout)
    assert "bias-sign" not in listed


@pytest.mark.parametrize(
    ("plugin", "conforms"),
    [
        ("adversary:BiasSign", True),
        ("defense:Scale", True),
        ("metric:LabelsMissed", True),
        ("misbehaving:Abuser", False),
    ],
)
def test_is_checked_by_the_command(thirdparty, tmp_path, plugin, conforms):
    done = fedsim(thirdparty, tmp_path, "check", f"fedsim_example.{plugin}")
    assert (done.returncode == 0) is conforms, done.stdout + done.stderr


KILLER = '[[adversaries]]\nname = "bad-exiter"\nrounds = [1]\nvictims = 1\n'


@pytest.mark.parametrize(
    ("engine", "also"), [("inline", ""), ("ray", KILLER)], ids=["inline", "ray"]
)
def test_runs_on_every_engine(thirdparty, tmp_path, engine, also):
    """On Ray also beside an attack that kills its worker, which costs only itself."""
    scenario = SCENARIO + WELL_BEHAVED + also
    rows = run_scenario(thirdparty, tmp_path, scenario, "--set", f"engine.name={engine}")
    killed = {"bad-exiter": {"failed"}} if also else {}
    assert statuses(rows) == {
        "bias-sign": {"ok"},
        "bad-raiser": {"failed"},
        "bad-abuser": {"ok"},
        "llg": {"ok"},
        **killed,
    }
    assert {row["error"] for row in rows if row["label"] == "bad-raiser"} == {
        "RuntimeError: expected"
    }
    mine = [row for row in rows if row["label"] == "bias-sign"]
    found = [row["value"] for row in mine if row["metric"] == "label_f1"]
    assert found == ["1.0"] * 6, "one example: only its label's entry is negative"
    exact = {"hellinger": "0.0", "labels-missed": "0.0"}  # what is amiss; the others are shares
    others = [row for row in rows if row["label"] == "llg"]
    counted = [row for row in others if row["metric"] != "label_correlation"]
    assert all(row["value"] == exact.get(row["metric"], "1.0") for row in counted)


def test_an_attack_that_sleeps_is_woken(thirdparty, tmp_path):
    attacks = '[[adversaries]]\nname = "bad-sleeper"\ntimeout = 1\nrounds = [1]\nvictims = 1\n'
    rows = run_scenario(thirdparty, tmp_path, SCENARIO + attacks)
    assert statuses(rows) == {"bad-sleeper": {"timeout"}}


HOSTILE = ["bad-nan", "bad-inf", "bad-huge", "bad-drop", "bad-extra", "bad-shape", "bad-raise"]


def test_what_a_hostile_client_sends_is_refused_and_recorded(thirdparty, tmp_path):
    """One sweep over the ways to be hostile: client 0 is, and takes part in every round."""
    text = SCENARIO.replace("[threat]\n", "[threat]\nfollow = [0]\n")
    text += '[[defenses]]\nname = "bad-nan"\nclients = [0]\n[[adversaries]]\nname = "llg"\n'
    text += f'[sweep]\n"defenses.0.name" = {json.dumps(HOSTILE)}\n'
    rows = run_scenario(thirdparty, tmp_path, text)
    for name in HOSTILE:
        point = [row for row in rows if row["point"] == f"defenses.0.name={name}"]
        of_client = statuses(point, "client")
        assert of_client.pop("0") == {"failed"}, name
        assert set.union(*of_client.values()) == {"ok"}, name
        assert all(row["error"] for row in point if row["client"] == "0"), name
    with (tmp_path / "out" / "utility.csv").open(newline="") as file:
        losses = [float(r["value"]) for r in csv.DictReader(file) if r["metric"] == "loss"]
    assert all(loss < 100 for loss in losses), "what was refused has not reached the model"
