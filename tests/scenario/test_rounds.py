"""Which rounds are attacked and evaluated, by a word or a list, and how many attacks that makes."""

import csv
from pathlib import Path
from typing import Any

import pytest
from support.tiny import rows, scenario
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.scenario.rounds import chosen_rounds

pytestmark = pytest.mark.usefixtures("unreported")


def utility(folder: Path) -> dict[tuple[int, str], float]:
    with (folder / "utility.csv").open(newline="") as file:
        return {(int(r["round"]), r["metric"]): float(r["value"]) for r in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("which", "last", "expected"),
    [
        ("all", 4, [1, 2, 3, 4]),
        ("log", 1, [1]),
        ("log", 8, [1, 2, 4, 8]),
        ("log", 20, [1, 2, 4, 8, 16, 20]),
        ("every 10", 25, [1, 11, 21, 25]),
        ("every 10", 21, [1, 11, 21]),
        ("every 1", 3, [1, 2, 3]),
        ("every 99", 3, [1, 3]),
        ([2, 3], 5, [2, 3]),
    ],
)
def test_rounds_follow_from_the_word_and_the_last_round(which, last, expected):
    found = chosen_rounds(which, last)
    assert sorted(found) == expected
    assert len(found) == len(expected)
    assert [round for round in range(last + 2) if round in found] == expected


def test_many_rounds_take_no_memory():
    found = chosen_rounds("every 3", 10**9)
    assert len(found) == 333_333_334
    assert {1, 4, 10**9} <= found
    assert found.isdisjoint({0, 2, 10**9 + 1})
    with pytest.raises(ScenarioError, match=r"training\.rounds: .* 1000000"):
        scenario(training={"rounds": 10**6 + 1})


@pytest.mark.parametrize("which", ["every 0", "every", "every -1", "logs", "every 1.5", 3])
def test_other_words_are_errors(which):
    with pytest.raises(
        ScenarioError, match=r"threat\.rounds: expected 'all', 'log', 'every N', or"
    ):
        scenario(threat={"rounds": which})


def test_the_check_counts_the_attacks_that_a_run_makes(tmp_path):
    run = scenario(
        training={"rounds": 6},
        threat={"rounds": "every 4", "victims": 3, "timeout": 30.0},
        adversaries=[{"name": "llg"}, {"name": "idlg", "rounds": "log", "victims": "all"}],
    )
    simulate(run, tmp_path)
    found = {(row["round"], row["victim"], row["label"]) for row in rows(tmp_path)}
    assert {int(r) for r, _, label in found if label == "llg"} == {1, 5, 6}
    assert {int(r) for r, _, label in found if label == "idlg"} == {1, 2, 4, 6}
    path = tmp_path / "run.toml"
    path.write_text(run.to_toml())
    said = CliRunner().invoke(app, ["check", str(path)]).stdout
    assert len(found) == 25
    assert "25 attacks; at most 12.5 min with 1 attack worker (threat.timeout)" in said


def test_a_round_that_does_not_exist_is_not_evaluated():
    with pytest.raises(ScenarioError, match=r"evaluate_rounds: there is no round 9; .* 1 to 6"):
        scenario(training={"rounds": 6, "evaluate_rounds": [2, 9]})


def test_the_model_is_evaluated_in_the_chosen_rounds_and_trained_alike(tmp_path):
    often, seldom = tmp_path / "often", tmp_path / "seldom"
    table = {"rounds": 6, "evaluate_clients": 2}
    simulate(scenario(training=table), often)
    simulate(scenario(training={**table, "evaluate_rounds": [3]}), seldom)

    every, some = utility(often), utility(seldom)
    by_clients = [key for key in every if key[1].startswith("client_")]
    assert {round for round, metric in some if metric == "accuracy"} == {0, 3, 6}
    assert {round for round, metric in some if metric == "client_accuracy"} == {3, 6}
    assert {round for round, metric in some if metric == "train_loss"} == {1, 2, 3, 4, 5, 6}
    assert some == {key: every[key] for key in some}
    assert len(by_clients) > len([key for key in some if key[1].startswith("client_")])
    assert [dict(row, seconds="") for row in rows(often)] == [
        dict(row, seconds="") for row in rows(seldom)
    ]


def test_a_run_that_stopped_between_evaluations_goes_on(tmp_path):
    run = scenario(training={"rounds": 5, "evaluate_rounds": []})
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    simulate(run, whole)

    def stop(event: str, **fields: Any) -> None:
        if event == "round" and fields["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(run, stopped, observer=stop)
    simulate(run, stopped, resume=True)
    assert utility(stopped) == utility(whole)
