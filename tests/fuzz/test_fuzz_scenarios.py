"""Scenarios with odd keys and values: one clear error, or a run; `check` agrees with `run`."""

import copy
import tempfile
from pathlib import Path

import tomli_w
import typer
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import TEXTS, VALUES, fuzz, refused
from support.tiny import TASK, TRAINING

from adversaries import DLG, LLG
from fedsim.cli.check import check
from fedsim.engine import engine_name
from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError
from fedsim.federation.strategies import strategy_names
from fedsim.scenario import Scenario
from fedsim.scenario.settings import AttackPlan, Engine, Record, Threat
from fedsim.scenario.training import Training
from fedsim.tasks.images import Images

BASE = {
    "name": "fuzz",
    "seed": 3,
    "task": dict(TASK),
    "training": {**TRAINING, "rounds": 1},
    "threat": {},
    "adversaries": [{"name": "llg"}],
    "defenses": [{"name": "gaussian-noise", "sigma": 0.01}],
    "engine": {"workers": 1},
    "record": {},
}
NAMES = [
    "fedavg", "FedAvg", "FedAdam", "QFedAvg", "Krum", "digits", "images", "text", "speech",
    "tabular", "mlp", "lenet", "resnet18", "dlg", "llg", "rlg", "spear", "top-k", "dp-sgd", "sign",
    "white-box", "full", "GRADIENT", "all", "log", "auto", "cpu", "cuda", "epochs", "adam", "drop",
    "secagg+", "masked-sum", "cosine", "iid", "dirichlet", "shards", "nothing", "attacked",
]  # fmt: skip
KEYS = [
    *[("seed",), ("name",), ("description",), ("metrics",), ("sweep",), ("adversaries",)],
    *[("defenses",), ("task",), ("training",), ("threat",), ("sinks",), ("search_dirs",)],
    *[("task", key) for key in [*Images.model_fields, "name", "partition"]],
    *[("training", key) for key in Training.model_fields],
    *[("threat", key) for key in Threat.model_fields],
    *[("record", key) for key in Record.model_fields],
    *[("engine", key) for key in Engine.model_fields],
    *[("adversaries", 0, key) for key in [*AttackPlan.model_fields, *LLG.model_fields]],
    *[("adversaries", 0, key) for key in DLG.model_fields],
    *[("defenses", 0, key) for key in ("name", "sigma", "clients", "layers", "rounds")],
    *[("training", "strategy", key) for key in ("name", "beta", "tau", "q", "server_momentum")],
    *[("task", "partition", key) for key in ("name", "kind", "alpha", "shards", "seed")],
    *[("task", "model", key) for key in ("name", "hidden", "activation", "p", "classes")],
]
SENSIBLE = {
    ("seed",): [0, 7, "random", 2**62],
    ("metrics",): [[], ["asr"], ["nothing"]],
    ("sweep",): [{"training.lr": [0.1, 1.0]}, {"seed": [1, 2]}, {"defenses.0.sigma": [0.0, "a"]}],
    ("defenses",): [
        [{"name": name}]
        for name in ("sign", "int8", "qsgd", "half-precision", "deep-gradient-compression")
    ]
    + [[{"name": "top-k", "fraction": 0.1}], [{"name": "dropout"}], [{"name": "grad-drop"}], []],
    ("adversaries",): [
        [{"name": name, "budget": 2}]
        for name in ("dlg", "rlg", "idlg", "spear", "r-gap", "first-linear", "accumulate",
                     "inverting-gradients", "exact-batch", "random", "lamp", "bias-signs")
    ],
    ("task", "model"): ["mlp", "lenet", "convnet", "lenet-sigmoid", {"name": "mlp", "hidden": []}],
    ("task", "size"): [4, 8, 33, [16, 8]],
    ("task", "classes"): [[0, 1], 3, 11],
    ("task", "test_examples"): [0, 1, 1797, 10**6],
    ("task", "test_fraction"): [0.0, 0.5, 1.0],
    ("task", "train_examples"): [1, 6, 100, 10**5],
    ("task", "auxiliary_fraction"): [0.0, 0.2, 1.0],
    ("task", "partition"): [
        {"kind": "dirichlet", "alpha": 0.01}, {"kind": "shard"}, {"kind": "linear"}, "iid",
        {"kind": "pathological", "num_classes_per_partition": 2}, {"kind": "exponential"},
    ],
    ("training", "algorithm"): ["fedavg", "fedsgd"],
    ("training", "rounds"): [1, 2, 3],
    ("training", "clients"): [1, 2, 4, 300, 2000],
    ("training", "clients_per_round"): [1, 2, 6, 7],
    ("training", "batch_size"): [1, 2, 300, 2000],
    ("training", "local_steps"): [1, 3],
    ("training", "local_epochs"): [1, 2],
    ("training", "batching"): ["draw", "epochs"],
    ("training", "lr"): [1e-12, 1.0, 1e30, 1e300],
    ("training", "lr_schedule"): ["cosine", {"name": "step", "every": 1, "gamma": 0.1}],
    ("training", "optimizer"): ["sgd", "adam", "adamw"],
    ("training", "momentum"): [0.5, 0.99],
    ("training", "weight_decay"): [0.1, 1e30],
    ("training", "strategy"): [*strategy_names(), {"name": "FedTrimmedAvg", "beta": 0.4}],
    ("training", "evaluate_clients"): [1, 6, 7],
    ("training", "evaluate_rounds"): ["log", "every 2", [1], []],
    ("training", "on_failure"): ["drop", "stop"],
    ("training", "secure_aggregation"): [True, "secagg+", "masked-sum"],
    ("threat", "grants"): ["gradients", "white-box", "full", ["MODEL"], ["HISTORY", "GRADIENT"]],
    ("threat", "rounds"): ["log", "every 2", [1], [2], []],
    ("threat", "victims"): [0, 1, 4, 5, [0], [5], [99], "all"],
    ("threat", "follow"): [[0], [1, 2, 3], [0, 1, 2, 3, 4], [6]],
    ("threat", "probes"): [[{"client": 0}], [{"client": 9}], [{"client": 1, "batch_size": 3000}]],
    ("record", "keep"): ["nothing", "attacked", "all"],
    ("record", "max_bytes"): [0, 1000, 10**9],
    ("engine", "vectorize"): [0, 2, 100, "auto"],
    ("engine", "deterministic"): [True, False],
    ("engine", "device"): ["cpu", "cuda"],
    ("engine", "name"): ["inline"],
}  # fmt: skip
"""Values that a user may well write, alone or with others that do not go with them."""
ODD = st.tuples(
    st.sampled_from(KEYS) | st.tuples(st.sampled_from(["task", "threat"]), TEXTS),
    st.sampled_from(NAMES) | VALUES,
)
USUAL = st.sampled_from([(key, value) for key, values in SENSIBLE.items() for value in values])
CHANGES = st.one_of(
    st.lists(USUAL, min_size=1, max_size=4),
    st.lists(USUAL, min_size=1, max_size=4),
    st.tuples(USUAL, USUAL, ODD),
    st.lists(ODD, min_size=1, max_size=2),
)
OFTEN = 60
"""Clients times rounds up to which a scenario that passes is run."""


def changed(changes) -> dict:
    """The table with each value at its path, whose tables are made where there are others."""
    table = copy.deepcopy(BASE)
    for (first, *rest), value in changes:
        if not rest:
            table[first] = value
            continue
        if rest[0] == 0:  # of a list of tables
            if not (isinstance(table[first], list) and table[first]):
                table[first] = [{}]
            place, rest = table[first][0], rest[1:]
        else:
            place = table[first]
        if not isinstance(place, dict):
            continue
        if len(rest) == 2:
            given = place.get(rest[0])
            place = place.setdefault(rest[0], {}) if isinstance(given, dict) else place
            rest = rest[1:]
        place[rest[0]] = value
    return table


def small(scenario: Scenario) -> bool:
    points = scenario.points().values()
    work = sum(one.training.rounds * one.training.per_round for one in points)
    return engine_name(scenario) == "inline" and work <= OFTEN


@given(CHANGES)
@fuzz
def test_check_and_run_accept_the_same_scenarios_and_refuse_others_clearly(changes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.toml"
        try:
            path.write_text(tomli_w.dumps(changed(changes)), encoding="utf-8")
        except (TypeError, ValueError):
            return  # TOML has no such value
        # It may lack knowledge, which is a row of the run.
        why = refused(lambda: check(str(path), [], "", False), fine=(typer.Exit,))
        if refused(lambda: Scenario.load(path).points()):
            assert why
            return
        scenario = Scenario.load(path)
        if small(scenario):
            # An update may have NaN, as of a learning rate of 1e300.
            run = refused(lambda: simulate(scenario, Path(folder) / "run"), fine=(ClientError,))
            assert bool(why) == bool(run), f"check: {why or 'passes'}; run: {run or 'passes'}"
