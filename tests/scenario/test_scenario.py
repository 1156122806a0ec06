"""A scenario says everything a run depends on: files, --set, sweeps, the way to TOML and back."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.errors import ScenarioError
from fedsim.federation.strategies import build_strategy
from fedsim.knowledge import Knowledge
from fedsim.scenario import Scenario, scenario_names


def parsed(text: str) -> Scenario:
    return Scenario.parse(tomllib.loads(text))


# --- files and --set --------------------------------------------------------------------------


def test_a_name_that_is_no_scenario_names_the_nearest():
    with pytest.raises(ScenarioError, match="Did you mean 'quickstart'"):
        Scenario.load("quickstrat")


def test_a_name_near_none_is_told_where_names_are_listed():
    with pytest.raises(ScenarioError) as raised:
        Scenario.load("nosuch.toml")
    message = str(raised.value)
    assert "fedsim list scenarios" in message
    assert "quickstart" in message
    assert "papers/" not in message
    assert "Did you mean" not in message


@pytest.mark.parametrize("content", [b"seed = = 1", b"\xff\xfe", b"seed = 1\nseed = 2"])
def test_a_file_that_is_no_toml_is_named(content, tmp_path):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=r"broken\.toml cannot be read as TOML"):
        Scenario.load(path)


def test_a_folder_is_no_scenario(tmp_path):
    with pytest.raises(ScenarioError):
        Scenario.load(tmp_path)


def test_a_scenario_is_called_like_its_file_unless_it_says(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 1")
    assert Scenario.load(path).name == "mine"
    assert Scenario.load(path, ["name=other"]).name == "other"


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("seed=11", lambda s: s.seed, 11),
        ("training.lr=0.05", lambda s: s.training.lr, 0.05),
        ("training.lr = 1e-3", lambda s: s.training.lr, 1e-3),
        ("threat.victims=all", lambda s: s.threat.victims, "all"),
        ("threat.victims=[1, 2]", lambda s: s.threat.victims, [1, 2]),
        ("threat.record=true", lambda s: s.threat.record, True),
        ("task.data=mnist", lambda s: s.task["data"], "mnist"),
        ('task.data="mnist"', lambda s: s.task["data"], "mnist"),
        ("task.partition.alpha=2.0", lambda s: s.task["partition"]["alpha"], 2.0),
        ("adversaries.1.iterations=50", lambda s: s.adversaries[1].settings["iterations"], 50),
        ("adversaries.1.victims=3", lambda s: s.adversaries[1].victims, 3),
        ("adversaries=[]", lambda s: s.adversaries, []),
        ("engine.workers=auto", lambda s: s.engine.workers, "auto"),
        ("description=a = b", lambda s: s.description, "a = b"),
        ('sweep={"training.lr"=[0.1]}', lambda s: s.sweep, {"training.lr": [0.1]}),
    ],
)
def test_set_takes_values_as_in_toml_and_bare_words(override, read, value):
    assert read(Scenario.load("quickstart", [override])) == value


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.lr", "expected key=value"),
        ("=3", "expected key=value"),
        ("training.lrr=1", "Did you mean 'lr'"),
        ("defenses.0.sigma=1", r"State its entries first: defenses = \[\{name = \"...\", sigma"),
        ("defenses.0.name=sign", r"first: defenses = \[\{name = \"...\", \.\.\.\}\]"),
        ("adversaries.7.victims=1", "no position in a list of 2"),
        ("adversaries.x.victims=1", "no position in a list of 2"),
        ("adversaries.-1.victims=1", "no position in a list of 2"),
        ("seed.deep=1", "'seed' is no table$"),
        ('sweep={"defenses.0.sigma"=[1]}', r"the list is empty. State .* sigma = \.\.\."),
        ("training..lr=1", "training"),
        ("adversaries.²=1", "'²' is no position in a list of 2"),
        ("seed=1\nname='two'", "it sets several keys"),
        ("name=\udcff", "expected text in UTF-8"),
        ("name=" + "[" * 10**5, "nested too deeply"),
    ],
)
def test_set_says_what_is_wrong(override, words):
    with pytest.raises(ScenarioError, match=words):
        list(Scenario.load("quickstart", [override]).points())


@pytest.mark.parametrize("setting", ["decoder = 64", 'name = "deepspeech"'])
def test_a_setting_of_what_has_a_name_alone_is_answered_by_its_table(setting):
    whole = setting if "name" in setting else f'name = "las", {setting}'
    with pytest.raises(ScenarioError) as error:
        Scenario.load("speech", [f"task.model.{setting}"])
    fix = str(error.value).rpartition(": set ")[2]
    assert fix == f"task.model={{{whole}}}"
    Scenario.load("speech", [fix])


def test_a_file_nested_too_deeply_is_one_clear_error(tmp_path):
    (tmp_path / "deep.toml").write_text("name = " + "[" * 10**5)
    with pytest.raises(ScenarioError, match=r"deep\.toml cannot be read as TOML: it is nested too"):
        Scenario.load(tmp_path / "deep.toml")


def test_later_overrides_win():
    assert Scenario.load("quickstart", ["seed=1", "seed=2"]).seed == 2


# --- sweeps -----------------------------------------------------------------------------------


def test_a_sweep_is_every_combination_by_name():
    run = parsed(
        "[[defenses]]\nname = 'gaussian-noise'\n"
        "[sweep]\n'defenses.0.sigma' = [0.0, 0.1]\n'training.lr' = [0.1, 0.2, 0.3]"
    )
    points = run.points()
    assert len(points) == 6
    assert next(iter(points)) == "defenses.0.sigma=0.0,training.lr=0.1"
    assert points["defenses.0.sigma=0.1,training.lr=0.3"].defenses[0]["sigma"] == 0.1
    assert points["defenses.0.sigma=0.1,training.lr=0.3"].training.lr == 0.3
    assert all(point.sweep == {} for point in points.values())


def test_without_a_sweep_there_is_one_point():
    run = parsed("seed = 1")
    assert run.points() == {"": run}


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("'training.lrr' = [1]", "Did you mean 'lr'"),
        ("'training.lr' = [0.1, -1]", "training.lr"),
        ("'adversaries.3.budget' = [1]", r"list is empty.* adversaries = .*budget = "),
    ],
)
def test_a_sweep_over_what_is_not_there_is_an_error(sweep, words):
    run = parsed(f"[sweep]\n{sweep}")
    with pytest.raises(ScenarioError, match=words):
        run.points()


# --- round trip -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_loads_checks_and_is_granted_what_it_needs(name):
    run = Scenario.load(name)
    assert run.description
    for point in run.points().values():
        point.check()
        build_strategy(point)
        assert point.denials() == {} or "denied" in run.description


@pytest.mark.parametrize("name", scenario_names())
def test_what_is_written_is_read_back(name, tmp_path):
    run = Scenario.load(name)
    path = tmp_path / "resolved.toml"
    path.write_text(run.to_toml(), encoding="utf-8")
    assert Scenario.load(path).model_dump() == run.model_dump()
    assert Scenario.load(path).to_toml() == run.to_toml()
    assert Scenario.model_validate_json(run.model_dump_json()).model_dump() == run.model_dump()


@given(
    rounds=st.integers(1, 9),
    lr=st.floats(1e-6, 10, allow_subnormal=False),
    grants=st.sampled_from(["gradients", "full", ["LABELS", "HEAD_GRADIENT"]]),
    victims=st.one_of(st.just("all"), st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1)),
    description=st.text(st.characters(blacklist_categories=["Cs"]), max_size=30),
    sigma=st.floats(0, 10, allow_subnormal=False),
    label=st.text("abc-'\"=é", max_size=5),
)
@settings(max_examples=30, deadline=None)
def test_any_scenario_survives_the_trip_through_toml(
    rounds, lr, grants, victims, description, sigma, label
):
    run = Scenario.parse(
        {
            "description": description,
            "training": {"rounds": rounds, "lr": lr, "clients": 5},
            "threat": {"grants": grants, "victims": victims},
            "defenses": [{"name": "gaussian-noise", "sigma": sigma}],
            "adversaries": [{"name": "dlg", "label": label, "iterations": rounds}],
        }
    )
    assert Scenario.parse(tomllib.loads(run.to_toml())) == run


# --- what an adversary is not granted ---------------------------------------------------------


def test_denials_name_the_adversary_and_what_it_lacks():
    run = parsed(
        "[threat]\ngrants = ['HEAD_GRADIENT']\n"
        "[[adversaries]]\nname = 'idlg'\n[[adversaries]]\nname = 'llg'\nlabel = 'mine'\n"
        "[[adversaries]]\nname = 'dlg'"
    )
    denied = run.denials()
    assert set(denied) == {"mine", "dlg"}
    assert denied["mine"] == Knowledge.BATCH_SIZE
    assert Knowledge.MODEL in denied["dlg"]


def test_a_part_passes_its_needs_on():
    text = "[threat]\ngrants = {}\n[[adversaries]]\nname = 'dlg'\nlabels_from = 'given'"
    assert parsed(text.format("'full'")).denials() == {}
    assert parsed(text.format("'white-box'")).denials() == {"dlg": Knowledge.LABELS}
