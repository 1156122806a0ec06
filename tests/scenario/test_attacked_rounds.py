"""Which rounds are attacked, by a word or a list, and how many attacks that makes."""

import pytest
from support.tiny import rows, scenario
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.scenario.settings import attacked_rounds


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
    assert sorted(attacked_rounds(which, last)) == expected


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
