"""`fedsim list` and `fedsim show`: what is installed is found by kind, by name and by word."""

import json
import re

import pytest
from pydantic import create_model
from typer.testing import CliRunner

from fedsim.cli import app, main
from fedsim.cli.catalogue import KINDS, describe_settings, entries
from fedsim.errors import PluginError
from fedsim.plugin import find, names


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(monkeypatch, capsys, *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["fedsim", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    return capsys.readouterr().err


def test_a_folder_of_data_that_is_not_there_is_an_error(monkeypatch, capsys):
    said = refused(monkeypatch, capsys, "list", "data", "--data", "nowhere")
    assert "nowhere is no folder: expected one with local data sets" in said


def test_a_scenario_is_shown_whatever_the_environment_names(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path))
    assert str(tmp_path) not in printed("show", "first-rounds")


def test_everything_of_every_kind_is_listed_and_shown():
    tables = json.loads(printed("list", "--json"))
    assert tuple(tables) == KINDS
    assert {"ssim", "wer", "asr"} <= tables["metrics"].keys()
    assert {"cnn", "las", "transformers"} <= tables["models"].keys()
    assert {"digits", "messages", "voices"} <= tables["data"].keys()
    for entry in entries():
        assert entry.summary, entry
        assert entry.kind == "scenarios" or entry.describe()["text"], entry
    for kind, table in tables.items():
        assert json.loads(printed("list", kind, "--json")) == table


FOUND = [
    ("pruning", "grad-drop top-k deep-gradient-compression"),
    ("Quantization", "int8 qsgd half-precision sign"),
    ("quantisation", "int8 qsgd"),
    ("sparsification", "top-k grad-drop gradient-mask"),
    ("gradient inversion", "dlg inverting-gradients lamp hfgm"),
    ("gradient-inversion", "dlg"),
    ("differential privacy", "dp-sgd client-dp flower-local-dp"),
    ("label inference", "llg rlg idlg"),
    ("label recovery", "asr label_f1"),
    ("Zhu", "dlg"),
    ("image", "images ssim inverting-gradients"),
    ("attack success rate", "asr"),
]


@pytest.mark.parametrize(("word", "expected"), FOUND)
def test_things_are_found_under_the_words_of_the_field(word, expected):
    tables = json.loads(printed("list", *word.split(), "--json"))
    found = {name for rows in tables.values() for name in rows}
    assert set(expected.split()) <= found
    assert "dropout" not in found


def test_a_word_that_nothing_is_found_under_names_those_near_it(monkeypatch, capsys):
    said = refused(monkeypatch, capsys, "list", "prunning")
    assert "nothing is found under 'prunning'. Near it: pruning" in said
    assert "Near it: Opacus" in refused(monkeypatch, capsys, "list", "opakus")
    assert "metrics, models, data" in refused(monkeypatch, capsys, "list", "xyzzy")


@pytest.mark.parametrize("kind", ["adversaries", "defenses", "tasks"])
def test_every_plugin_has_keywords(kind):
    assert [name for name in names(kind) if not find(kind, name).keywords] == []


def test_every_metric_has_keywords():
    assert [one.name for one in entries(["metrics"]) if len(list(one.words)) < 2] == []


def test_nothing_is_cut_in_a_pipe(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # a width that somebody asked for is kept
    for arguments in (("list",), ("list", "pruning")):
        lines = printed(*arguments).splitlines()
        assert not [line for line in lines if "…" in line]
    rows = "\n".join(line.strip() for line in printed("list", "metrics").splitlines())
    assert all(" ".join(one.summary.split()) in rows for one in entries(["metrics"]))


def test_a_metric_is_shown_with_what_it_reads_and_which_way_round():
    facts = json.loads(printed("show", "wer", "--json"))
    assert facts["reads"] == ["text", "sequences"]
    assert facts["better for the attacker"] == "lower"
    shown = printed("show", "psnr")
    assert "reads: inputs" in shown
    assert "better for the attacker: higher" in shown


@pytest.mark.parametrize(
    ("plugin", "setting", "type", "default"),
    [
        ("dlg", "precision", '"float32" or "float64"', '"float64"'),
        ("dlg", "parameters", "table of numbers >= 0", '{"*" = 1.0}'),
        ("dlg", "labels_from", "text or table", "none"),
        ("sign", "scale", '"mean" or number > 0', '"mean"'),
        ("sign", "error_feedback", "true or false", "false"),
        ("ctc-matching", "frames", "list of integers >= 1, <= 100000", "[]"),
        ("speech", "seconds", "[number > 0, number > 0]", "none"),
        ("images", "partition", "table", '{kind = "iid"}'),
    ],
)
def test_a_setting_has_the_type_and_the_default_that_a_scenario_writes(
    plugin, setting, type, default
):
    facts = json.loads(printed("show", plugin, "--json"))
    facts = facts if isinstance(facts, dict) else facts[0]
    (found,) = [one for one in facts["settings"] if one["name"] == setting]
    assert (found["type"], found["default"]) == (type, default)


def test_no_type_is_one_of_python():
    for entry in entries(("adversaries", "defenses", "metrics", "tasks", "models")):
        for setting in entry.describe()["settings"]:
            assert not re.search(r"Literal|Annotated|None|\|", setting["type"]), entry.name
            parts = setting["type"].split(" or ")
            assert len(set(parts)) == len(parts), (entry.name, setting["type"])


def test_what_two_tasks_have_under_one_name_is_shown_of_both():
    shown = printed("show", "transformers")
    assert "transformers (models of images)" in shown
    assert "transformers (models of text)" in shown
    assert [one["task"] for one in json.loads(printed("show", "transformers", "--json"))] == [
        "images",
        "text",
    ]


def test_what_is_broken_of_other_packages_hides_nothing_else(monkeypatch):
    def broken(*_):
        raise PluginError("metrics 'theirs' (theirs:M of other) cannot be used")

    monkeypatch.setattr("fedsim.cli.catalogue.installed", broken)
    found = {(one.kind, one.name): one.summary for one in entries()}
    assert "theirs:M of other" in found["metrics", "(none)"]
    assert found["adversaries", "llg"]
    monkeypatch.setattr("fedsim.cli.catalogue.Scenario.load", broken)
    assert all("cannot be loaded" in one.summary for one in entries(["scenarios"]))


def test_data_is_shown_in_a_sentence():
    assert "data of images" in printed("show", "digits")


def test_a_name_that_nothing_has_names_the_nearest(monkeypatch, capsys):
    said = refused(monkeypatch, capsys, "show", "psnrr")
    assert "Did you mean 'psnr'?" in said
    assert said.count("NAME,") == said.count("accumulate,") == 1


@pytest.mark.parametrize(
    ("kind", "default", "shown"),
    [
        (dict[int, float], {1: 0.5}, '{"1" = 0.5}'),
        (frozenset[str], frozenset({"b", "a"}), '["a", "b"]'),
        (tuple[()], (), "[]"),
        (float, float("inf"), "inf"),
    ],
)
def test_settings_of_any_type_are_shown_as_a_scenario_has_them(kind, default, shown):
    plugin = create_model("Plugin", setting=(kind, default))
    (setting,) = describe_settings(plugin, ["setting"])
    assert setting["default"] == shown
