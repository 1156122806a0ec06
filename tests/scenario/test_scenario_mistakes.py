"""A mistake in a scenario is one clear sentence: where it is, what was found, what was expected."""

import tomllib

import pytest

from fedsim.engine.simulate import simulate
from fedsim.errors import DataError, FedsimError, PluginError, ScenarioError
from fedsim.federation.strategies import build_strategy
from fedsim.scenario import Scenario
from fedsim.task import RUN_FIELDS


def parsed(text: str) -> Scenario:
    return Scenario.parse(tomllib.loads(text))


MISTAKES = {
    "top level": ("sede = 1", ["sede: unknown key", "Did you mean 'seed'?"]),
    "table": ("[trainig]\nrounds = 1", ["trainig", "Did you mean 'training'?"]),
    "training": ("[training]\nround = 1", ["training.round: unknown", "Did you mean 'rounds'?"]),
    "threat": ("[threat]\ngrant = 'full'", ["threat.grant: unknown", "Did you mean 'grants'?"]),
    "engine": ("[engine]\nworker = 2", ["engine.worker: unknown", "Did you mean 'workers'?"]),
    "task setting": ("[task]\ndat = 'digits'", ["task.dat: unknown", "Did you mean 'data'?"]),
    "task name": ("[task]\nname = 'image'", ["'image'", "Did you mean 'images'?"]),
    "model": ("[task]\nmodel = 'cnm'", ["cnm", "cnn"]),
    "adversary": ("[[adversaries]]\nname = 'llgg'", ["'llgg'", "Did you mean 'llg'?"]),
    "adversary setting": (
        "[[adversaries]]\nname = 'dlg'\niteration = 3",
        ["adversaries.0 (dlg).iteration: unknown", "Did you mean 'iterations'?"],
    ),
    "second adversary": (
        "[[adversaries]]\nname = 'llg'\n[[adversaries]]\nname = 'dlg'\niterations = -3",
        ["adversaries.1 (dlg).iterations", "found -3"],
    ),
    "nameless adversary": (
        "[[adversaries]]\nvictims = 2",
        ["adversaries.0.name: missing. The name of an adversary"],
    ),
    "adversary's source": (
        "[[adversaries]]\nname = 'dlg'\nlabels_from = 'lgl'",
        ["adversaries.0 (dlg).labels_from: no 'lgl' among the adversaries"],
    ),
    "source's setting": (
        "[[adversaries]]\nname = 'dlg'\nlabels_from = {name = 'llg', varient = 'llg+'}",
        ["adversaries.0 (dlg).labels_from.varient: unknown", "Did you mean 'variant'?"],
    ),
    "source's source": (
        "[[adversaries]]\nname = 'dlg'\n"
        "labels_from = {name = 'inverting-gradients', labels_from = {nam = 'llg'}}",
        ["adversaries.0 (dlg).labels_from.labels_from is {'nam': 'llg'}; expected a name"],
    ),
    "plan": ("[[adversaries]]\nname = 'llg'\nbudget = 0", ["adversaries.0.budget", "found 0"]),
    "blank label": (
        "[[adversaries]]\nname = 'llg'\nlabel = ' '",
        ["adversaries.0.label: expected what can name a file", "not only spaces"],
    ),
    "device": (
        "[engine]\ndevice = 'gpu'",
        ["engine.device: expected 'auto', 'cpu', 'cuda', or one GPU such as 'cuda:1'"],
    ),
    "too many clients": ("[training]\nclients = 1000000000", ["training.clients", "10000000"]),
    "too many rounds": ("[training]\nrounds = 1000000000", ["training.rounds", "1000000"]),
    "same label": (
        "[[adversaries]]\nname = 'llg'\n[[adversaries]]\nname = 'llg'",
        ["two adversaries are called 'llg'", "label"],
    ),
    "defense": ("[[defenses]]\nname = 'signs'", ["'signs'", "Did you mean 'sign'?"]),
    "a layer for a list of layers": (
        "[[defenses]]\nname = 'gaussian-noise'\nlayers = 'head'",
        ["layers: expected 'all', or a list; found 'head'"],
    ),
    "own adversary": (
        "[[adversaries]]\nname = 'mine'",
        ["no 'mine' among the adversaries", "install its package, or name its class as 'module:Cl"],
    ),
    "defense setting": (
        "[[defenses]]\nname = 'gaussian-noise'\nsgima = 1",
        ["defenses.0 (gaussian-noise).sgima", "Did you mean 'sigma'?"],
    ),
    "defense value": (
        "[[defenses]]\nname = 'gaussian-noise'\nsigma = -1",
        ["defenses.0 (gaussian-noise).sigma", "found -1"],
    ),
    "nameless defense": ("[[defenses]]\nsigma = 1", ["defenses.0.name: missing"]),
    "preset": ("[threat]\ngrants = 'whitebox'", ["whitebox", "Did you mean 'white-box'?"]),
    "knowledge": ("[threat]\ngrants = ['LABEL']", ["LABEL", "Did you mean 'LABELS'?"]),
    "rounds": ("[training]\nrounds = 0", ["training.rounds", "found 0"]),
    "lr": ("[training]\nlr = -0.1", ["training.lr", "found -0.1"]),
    "momentum": ("[training]\nmomentum = 1.0", ["training.momentum"]),
    "batch": ("[training]\nbatch_size = 'big'", ["training.batch_size", "found 'big'"]),
    "algorithm": ("[training]\nalgorithm = 'sgd'", ["training.algorithm", "'fedsgd'"]),
    "seed": ("seed = -1", ["seed", "found -1"]),
    "per round": (
        "[training]\nclients = 3\nclients_per_round = 4",
        ["clients_per_round = 4, of only 3 clients"],
    ),
    "evaluate": (
        "[training]\nclients = 3\nevaluate_clients = 4",
        ["evaluate_clients = 4, of only 3 clients"],
    ),
    "fedsgd steps": (
        "[training]\nalgorithm = 'fedsgd'\nlocal_steps = 2",
        ["local_steps = 2", 'algorithm = "fedavg"'],
    ),
    "fedsgd optimizer": (
        "[training]\nalgorithm = 'fedsgd'\noptimizer = 'adam'",
        ['training.optimizer = "adam": under FedSGD a client sends a gradient', "Leave it out"],
    ),
    "adam's momentum": (
        "[training]\noptimizer = 'adam'\nmomentum = 0.5",
        ["training.momentum = 0.5 belongs to SGD", '"adam". Leave one of them out'],
    ),
    "optimizer": ("[training]\noptimizer = 'adagrad'", ["training.optimizer", "'adamw'"]),
    "schedule": (
        "[training]\nlr_schedule = 'cosin'",
        ["training.lr_schedule: no schedule 'cosin'", "Did you mean 'cosine'?"],
    ),
    "schedule's setting": (
        "[training]\nlr_schedule = {name = 'step', gama = 0.5}",
        ["training.lr_schedule.gama: unknown key", "Did you mean 'gamma'?"],
    ),
    "schedule's value": (
        "[training]\nlr_schedule = {name = 'step', every = 0}",
        ["training.lr_schedule.every: expected a number greater", "found 0"],
    ),
    "no schedule": ("[training]\nlr_schedule = 3", ["training.lr_schedule is 3; expected a name"]),
    "round beyond": ("[threat]\nrounds = [6]", ["round 6 is attacked", "1 to 5"]),
    "round zero": (
        "[[adversaries]]\nname = 'llg'\nrounds = [0]",
        ["adversaries.0.rounds: round 0 is attacked"],
    ),
    "victims": (
        "[threat]\nvictims = 0",
        ["threat.victims: expected 'all', a number of at least 1", "found 0"],
    ),
    "adversary's victims": (
        "[[adversaries]]\nname = 'llg'\nvictims = 0",
        ["adversaries.0.victims: expected 'all'", "found 0"],
    ),
    "victim": ("[threat]\nvictims = [20]", ["threat.victims: there is no client 20", "0 to 19"]),
    "follow": ("[threat]\nfollow = [-1]", ["threat.follow: there is no client -1"]),
    "follow twice": ("[threat]\nfollow = [1, 1]", ["[1, 1] names a client twice"]),
    "follow many": (
        "[training]\nclients_per_round = 1\n[threat]\nfollow = [1, 2]",
        ["follow names 2 clients, 1 take part"],
    ),
    "workers": (
        "[engine]\nworkers = 0",
        ["engine.workers: expected 'auto', or a number greater than or equal to 1"],
    ),
    "engine name": ("[engine]\nname = 'dask'", ["engine.name", "'flower'"]),
    "empty sweep": (
        "[sweep]\n'training.lr' = []",
        ["sweep.training.lr: expected at least 1 item; found []"],
    ),
    "no table": ("training = 3", ["training: expected a table; found 3"]),
    "no list": ("adversaries = 'llg'", ["adversaries: expected [[adversaries]]"]),
    "no entry": ("adversaries = ['llg']", ["adversaries.0: expected a table; found 'llg'"]),
    "no list of defenses": ("defenses = 'sign'", ["defenses: expected [[defenses]]"]),
    "no defense": ("defenses = ['sign']", ["defenses.0: expected a table; found 'sign'"]),
    "no task": ("task = 'images'", ["task: expected a table; found 'images'"]),
    "unquoted sweep": ("[sweep]\ntraining.lr = [1]", ["in quotes", '"training.lr" = [...]']),
    "grants": ("[threat]\ngrants = 3", ["threat.grants: expected a string, or a list; found 3"]),
    "model setting": ("[task]\nmodel = {name = 'cnn', heat = 1}", ["task.model.heat: unknown"]),
    "no partition": ("[task]\npartition = {}", ["task.partition is {}; expected a kind"]),
    "partition": (
        "[task]\npartition = {kind = 'dirichlet', alpha = -1}",
        ["task.partition.alpha: expected a number greater than 0, or a list; found -1."],
    ),
    "partition list": (
        "[task]\npartition = {kind = 'dirichlet', alpha = [1, -1]}",
        ["task.partition.alpha.1: expected a number greater than 0; found -1."],
    ),
    "reserved": ("[task]\nseed = 3", ["task.seed: unknown key"]),
    "name": ("name = 'a/b'", ["name: expected what can name a file", "found 'a/b'"]),
    "nan": ("[training]\nlr = nan", ["training.lr"]),
    "inf": ("[training]\nlr = inf", ["training.lr"]),
    "true": ("[training]\nrounds = true", ["training: rounds = true: expected a number"]),
    "true of a plugin": (
        "[[defenses]]\nname = 'gaussian-noise'\nsigma = true",
        ["defenses.0 (gaussian-noise): sigma = true: expected a number"],
    ),
    "figure": (
        "[paper]\nid = 'DLG 5'\nmeasure = 'mse'",
        ['paper.id: expected "PAPER/FIGURE", such as "dlg/fig5"', "found 'DLG 5'"],
    ),
    "no measure": (
        "[paper]\nid = 'dlg/fig5'\nmeasure = []",
        ["paper.measure: expected at least 1 item; found []"],
    ),
    "one end": (
        "[paper]\nid = 'dlg/fig5'\nmeasure = 'mse'\npublished = [{between = [0.3]}]",
        ["paper.published.0.between: expected at least 2 items; found [0.3]"],
    ),
    "ends": (
        "[paper]\nid = 'dlg/fig5'\nmeasure = 'mse'\npublished = [{between = [0.3, 0.1]}]",
        ["between = [0.3, 0.1]: expected the lower number first"],
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named_with_what_was_meant(case):
    text, words = MISTAKES[case]
    with pytest.raises(FedsimError) as raised:
        parsed(text)
    message = str(raised.value)
    for word in words:
        assert word in message
    assert len(message.splitlines()) < 25  # one screen


def test_keys_of_a_task_that_a_scenario_sets_elsewhere_are_not_offered():
    with pytest.raises(ScenarioError) as raised:
        parsed("[task]\nmodle = 'cnn'")
    known = str(raised.value).partition("Known: ")[2].rstrip(".").split(", ")
    assert "model" in known
    assert not RUN_FIELDS & {*known}


def test_settings_of_an_adversary_may_stand_in_both_places():
    run = parsed(
        "[[adversaries]]\nname = 'dlg'\nrestarts = 2\nsettings = {restarts = 1, iterations = 5}"
    )
    assert run.adversaries[0].settings == {"restarts": 2, "iterations": 5}


def test_several_mistakes_are_told_at_once():
    with pytest.raises(ScenarioError) as raised:
        parsed("[training]\nround = 1\n[threat]\ngrant = 1\n[engine]\nworker = 1")
    assert all(key in str(raised.value) for key in ("training.round", "threat.grant", "engine.wor"))


PRIVATE = {
    "name": "DifferentialPrivacyServerSideFixedClipping",
    "noise_multiplier": 1.0,
    "clipping_norm": 1.0,
}


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("FedAvgg", ["FedAvgg", "Did you mean 'FedAvg'?"]),
        ({"name": "FedProx", "proximal": 1}, ["training.strategy.proximal", "proximal_mu"]),
        ({"name": "DifferentialPrivacyServerSideFixedClipping"}, ["noise_multiplier"]),
        ({"name": "FedAdam", "eta": "fast"}, ["training.strategy.eta: ", "number", "'fast'"]),
        ({"name": "Krum", "num_malicious_nodes": 1.5}, ["strategy.num_malicious_nodes: ", "1.5"]),
        ({"name": "FedAvg", "inner": "FedProx"}, ["training.strategy.inner", "no such setting"]),
        ({**PRIVATE, "inner": 3}, ["training.strategy.inner = 3: expected"]),
        ({**PRIVATE, "strategy": "FedAvg"}, ["training.strategy.strategy", "no such setting"]),
        ({"name": "FedAvg", "arrayrecord_key": "x"}, ["arrayrecord_key", "no such setting"]),
        ({"name": "FedProx", "train_metrics_aggr_fn": "x"}, ["no such setting. Known: proximal"]),
    ],
)
def test_a_strategys_mistakes_are_named_too(strategy, words):
    run = Scenario.parse({"training": {"strategy": strategy}})
    with pytest.raises(ScenarioError) as raised:
        build_strategy(run)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"lr": 5.0}, "set that instead"), ({"buffers": ["x"]}, "no such setting")],
    ids=["lr", "buffers"],
)
def test_what_fedsgd_takes_from_the_run_is_no_setting_of_it(settings, why):
    table = {"algorithm": "fedsgd", "strategy": {"name": "FedSGD", **settings}}
    with pytest.raises(ScenarioError, match=why):
        build_strategy(Scenario.parse({"training": table}))


def test_more_clients_than_examples_is_an_error_before_any_folder(tmp_path):
    run = Scenario.parse({"training": {"clients": 5000}})
    with pytest.raises((ScenarioError, DataError), match="5000"):
        simulate(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_in_which_no_run_began_is_named_as_such(tmp_path):
    with pytest.raises(ScenarioError, match=r"it is a folder without a scenario\.toml"):
        Scenario.load(tmp_path)


def test_missing_data_is_an_error_before_any_folder(tmp_path):
    run = Scenario.parse({"task": {"data": "mnist"}, "data_dir": str(tmp_path / "none")})
    with pytest.raises(DataError, match="mnist"):
        simulate(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "../../up"}, "name"),
        ({"adversaries": [{"name": "llg", "label": "../up"}]}, "label"),
        ({"adversaries": [{"name": "llg", "label": "a\0b"}]}, "label"),
        ({"task": {"name": 3}}, "3 names none of the tasks"),
        ({"seed": 2**63}, "seed"),
        ({"threat": {"victims": "al"}}, "expected 'all', a number of at least 1, or a list"),
        ({"threat": {"rounds": 3}}, "expected 'all', 'log', 'every N', or a list"),
        ({"training": {"algorithm": "fedsgd", "momentum": 0.9}}, "FedSGD"),
        ({"sweep": {"seed": [1, 1]}}, "twice"),
        ({"sweep": {"defenses": [[], "none"]}}, "the same name"),
        ({"sweep": {"task.partition": ["iid", {"name": "iid"}]}}, "the same name"),
    ],
)
def test_what_would_only_fail_later_is_refused_at_once(changes, said):
    with pytest.raises((ScenarioError, PluginError), match=said) as caught:
        Scenario.parse(changes)
    assert len(str(caught.value).splitlines()) == 1


def test_one_override_is_a_list_of_one():
    with pytest.raises(ScenarioError, match=r"found the text 'seed=2'; expected a list, such as"):
        Scenario.load("quickstart", "seed=2")


def test_a_run_folder_stands_for_its_scenario(tmp_path):
    (tmp_path / "scenario.toml").write_text("seed = 5\n")
    assert Scenario.load(tmp_path).seed == 5
