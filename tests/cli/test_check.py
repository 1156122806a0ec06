"""`fedsim check`: what is wrong with a scenario or a plugin, found before anything runs."""

import pytest
from support.own_code import beside, fresh
from typer.testing import CliRunner

import fedsim
from fedsim.cli import app, main
from fedsim.engine.preflight import preflight
from fedsim.errors import FedsimError, PluginError, ScenarioError
from fedsim.plugin import names
from fedsim.scenario import Scenario

HOPELESS = [
    ("images", {"model": "cnn"}, "first-linear", "no fully connected layer fits"),
    ("images", {"model": "mlp"}, "first-linear", ""),
    ("speech", {}, "first-frames", "no layer is a fully connected layer with a bias that sees"),
    ("speech", {}, "hfgm", "is not trained with CTC"),
    ("speech", {}, "gm-bow", ""),
    ("speech", {"model": "deepspeech"}, "gm-bow", "no point 'context'"),
    ("speech", {"model": "deepspeech"}, "first-frames", ""),
    ("text", {}, "token-leak", ""),
    ("text", {"parameters": "lamp"}, "token-leak", 'token-leak needs task.parameters = "all"'),
    ("text", {}, "rlg", ""),
]


@pytest.mark.parametrize(("task", "settings", "adversary", "said"), HOPELESS)
def test_an_attack_that_this_task_gives_nothing_is_warned_of(task, settings, adversary, said):
    table = {"task": {"name": task, **settings}, "adversaries": [{"name": adversary}]}
    _, cautions = preflight(Scenario.parse(table))
    mine = [text for text in cautions if text.startswith(f"{adversary}: ")]
    assert (said in mine[0]) if said else not mine


@pytest.mark.parametrize(
    ("task", "adversary", "message"),
    [
        ("images", "dager", "dager attacks texts, and task 'images' has images; use one of dlg, "),
        ("images", "hfgm", "hfgm attacks speech, and task 'images' has images"),
        ("text", "dlg", "dlg attacks images or tables, and task 'text' has texts; use one of da"),
        ("speech", "first-linear", "first-linear attacks images or tables, and task 'speech' has"),
        ("images", {"name": "dlg", "labels_from": "gm-bow"}, "gm-bow attacks speech, and task 'i"),
    ],
)
def test_an_attack_on_another_modality_is_an_error_at_load(task, adversary, message):
    asked = adversary if isinstance(adversary, dict) else {"name": adversary}
    with pytest.raises(ScenarioError, match=rf"^adversaries\.0: {message}"):
        Scenario.parse({"task": {"name": task}, "adversaries": [asked]})


def test_an_attack_on_labels_suits_every_task():
    for task in names("tasks"):
        plans = [{"name": name} for name in ("random", "llg", "rlg", "idlg", "bias-signs")]
        assert Scenario.parse({"task": {"name": task}, "adversaries": plans})


def test_what_an_adversary_attacks_is_shown_and_listed():
    assert "attacks: images, tables\n" in CliRunner().invoke(app, ["show", "dlg"]).stdout
    listed = CliRunner().invoke(app, ["list", "adversaries"]).stdout
    assert ["hfgm", "speech"] in [line.split()[:2] for line in listed.splitlines()]
    assert ["llg", "any", "task"] in [line.split()[:3] for line in listed.splitlines()]


@pytest.mark.parametrize("key", ["threat.victims", "adversaries.1.victims"])
def test_more_victims_than_clients_a_round_are_an_error_unless_nodes_decide(key):
    run = Scenario.load("first-rounds", [f"{key}=6"])
    with pytest.raises(ScenarioError, match=rf"^{key} = 6, and 5 clients take part in a round"):
        preflight(run)
    _, cautions = preflight(run, nodes_decide=True)
    assert [text for text in cautions if text.startswith(f"{key} = 6")]


def test_a_batch_that_clients_cannot_fill_is_warned_of():
    table = {"task": {"name": "images"}, "training": {"clients": 300, "batch_size": 5}}
    built, cautions = preflight(Scenario.parse(table))
    (said,) = (text for text in cautions if "training.batch_size is 5" in text)
    counts = [built.task.num_examples(client) for client in range(300)]
    assert f"{counts.count(4)} of 300 clients hold fewer examples (client " in said
    assert said.endswith(f"(client {counts.index(4)}: 4)")
    table["training"]["batch_size"] = 4
    _, cautions = preflight(Scenario.parse(table))
    assert not [text for text in cautions if "training.batch_size" in text]


@pytest.mark.parametrize("key", ["gpus_per_client", "gpus_per_attack"])
def test_a_gpu_that_is_not_there_is_an_error(key, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ScenarioError, match=rf"needs a GPU \(engine\.{key} = 0\.5\), and this"):
        preflight(Scenario.load("first-rounds", [f"engine.{key}=0.5"]))
    elsewhere = [f"engine.{key}=0.5", "engine.address=10.0.0.1:6379"]
    assert preflight(Scenario.load("first-rounds", elsewhere))


def test_the_version_is_printed():
    assert CliRunner().invoke(app, ["--version"]).output == f"fedsim {fedsim.__version__}\n"


def checked(*arguments: str):
    return CliRunner().invoke(app, ["check", *arguments])


def test_a_name_of_a_task_and_of_a_scenario_shows_both():
    shown = CliRunner().invoke(app, ["show", "text"]).stdout
    assert "text (tasks)" in shown
    assert "The scenario 'text':" in shown
    assert "clients = 8" in shown


def test_every_point_of_a_sweep_is_checked():
    sweep = 'sweep={"threat.grants"=["gradients","white-box"]}'
    done = checked("first-rounds", "--set", sweep)
    assert done.exit_code == 1
    assert done.stdout.count("dlg: needs") == 2
    assert done.stdout.count("dlg: needs GRADIENT, MODEL") == 2
    assert done.stdout.count("denied: lacks MODEL") == 1


def test_a_sweep_over_the_algorithm_takes_each_ones_own_strategy():
    done = checked("first-rounds", "--set", 'sweep={"training.algorithm"=["fedsgd","fedavg"]}')
    assert done.exit_code == 0, done.output
    assert done.stdout.count("granted") == 2 * done.stdout.count("dlg: ")


@pytest.mark.parametrize("content", ["def broken(:\n", "nothing_by_this_name\n"])
def test_a_plugin_that_cannot_be_imported_is_one_sentence(content, tmp_path, monkeypatch, capsys):
    (tmp_path / "unreadable_plugin.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.argv", ["fedsim", "check", "unreadable_plugin:Attack"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "unreadable_plugin:Attack cannot be imported: " in capsys.readouterr().err


@pytest.mark.parametrize("what", ["mine.py", "mine.py:Attack", "./mine.py:Attack"])
def test_a_file_of_python_is_answered_by_how_its_class_is_named(what, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("Attack = 1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError, match="name the class, such as fedsim check mine:Class"):
        CliRunner().invoke(app, ["check", what], standalone_mode=False, catch_exceptions=False)


TASK = """
from fedsim.tasks.images import Images


class Wrong(Images):
    \"\"\"Digits.\"\"\"

    def {method}:
        return {value}
"""


@pytest.mark.parametrize(
    ("method", "value", "said"),
    [
        ("batches(self, *_, **__)", "None", "batches: NoneType; return a list with a Batch"),
        ("build(self)", "None", "build: NoneType; return a torch.nn.Module"),
        ("num_examples(self, client)", "client - 1", "client 0 holds -1 examples; expected"),
    ],
)
def test_a_wrong_task_is_an_error_that_says_what_is_wrong(method, value, said, tmp_path):
    module = fresh()
    text = f'[task]\nname = "{module}:Wrong"\nmodel = "mlp"\n[training]\nclients = 2'
    path = beside(tmp_path, text, **{module: TASK.format(method=method, value=value)})
    with pytest.raises(FedsimError, match=said):
        preflight(Scenario.load(path, ["engine.workers=1"]))


def test_what_is_wrong_with_a_task_is_a_warning_of_its_scenario(tmp_path):
    module = fresh()
    text = f'[task]\nname = "{module}:Wrong"\nmodel = "mlp"\n[training]\nclients = 2'
    wrong = TASK.format(method="evaluate(self, module, client=None)", value="{}")
    path = beside(tmp_path, text, **{module: wrong})
    said = CliRunner().invoke(app, ["check", str(path), "--set", "engine.workers=1"]).output
    assert "warning: task evaluate: {} for client None; expected numbers by name" in said


def test_a_single_complaint_is_not_plural():
    assert "torch:Tensor: 1 complaint\n" in checked("torch:Tensor").stdout


def test_a_single_attack_is_not_plural():
    one = ["--set", "training.rounds=1", "--set", 'adversaries=[{name="llg",victims=1}]']
    assert "  1 attack; at most" in checked("first-rounds", *one).stdout


def test_a_check_says_up_to_how_many_examples_the_gradient_determines():
    asked = ["--set", "training.batch_size=16", "--set", "task.size=32"]
    said = CliRunner().invoke(app, ["check", "r-gap", *asked]).stdout
    assert "this is a gradient that determines 14 examples at most" in " ".join(said.split())
