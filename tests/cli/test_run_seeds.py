"""`fedsim run --seeds`: the same scenario with several seeds, as points of its sweep."""

import tomllib

import pytest
from support.tiny import rows, timeless
from typer.testing import CliRunner

from fedsim.cli import app

RUN = """
seed = 7
[task]
name = "images"
test_examples = 20
partition = {kind = "dirichlet", alpha = 0.5}
[training]
algorithm = "fedsgd"
rounds = 2
clients = 4
batch_size = 2
[[defenses]]
name = "gaussian-noise"
[[adversaries]]
name = "llg"
[engine]
workers = 1
"""
SWEEP = RUN + '[sweep]\n"defenses.0.sigma" = [0.0, 0.1]\n'


@pytest.fixture
def run(tmp_path):
    """Runs the command on a scenario, quietly, and returns what came of it."""

    def command(text, folder, *options):
        (tmp_path / "run.toml").write_text(text)
        path, out = str(tmp_path / "run.toml"), str(tmp_path / folder)
        return CliRunner().invoke(app, ["run", path, "--out", out, "-q", *options])

    return command


def test_seeds_are_the_first_key_of_the_sweep(run, tmp_path):
    done = run(SWEEP, "run", "--seeds", "3")
    assert done.exit_code == 0, done.output
    points = [f"seed={seed},defenses.0.sigma={s}" for seed in (7, 8, 9) for s in (0.0, 0.1)]
    assert [row["point"] for row in rows(tmp_path / "run", "points.csv")] == points
    assert list(dict.fromkeys(r["point"] for r in rows(tmp_path / "run", "utility.csv"))) == points
    assert {(r["seed"], r["point"][:6]) for r in rows(tmp_path / "run")} == {
        (str(seed), f"seed={seed}") for seed in (7, 8, 9)
    }
    recorded = tomllib.loads((tmp_path / "run" / "scenario.toml").read_text())
    assert next(iter(recorded["sweep"].items())) == ("seed", [7, 8, 9])


def test_each_seed_comes_to_what_it_comes_to_alone(run, tmp_path):
    """Data, partition, model and victims follow the seed of the point."""
    run(RUN, "together", "--seeds", "2")
    run(RUN, "alone", "--set", "seed=8")
    for table in (timeless, lambda folder: rows(folder, "utility.csv")):
        own = [r for r in table(tmp_path / "together") if r["point"] == "seed=8"]
        assert own == [{**r, "point": "seed=8"} for r in table(tmp_path / "alone")]
        others = [r for r in table(tmp_path / "together") if r["point"] == "seed=7"]
        assert [r["value"] for r in others] != [r["value"] for r in own]


def test_seeds_are_run_one_at_a_time_and_resumed(run, tmp_path):
    run(SWEEP, "whole", "--seeds", "2")
    first = "seed=7,defenses.0.sigma=0.1"
    assert run(SWEEP, "run", "--seeds", "2", "--points", first).exit_code == 0
    assert {row["point"] for row in rows(tmp_path / "run")} == {first}
    assert run(SWEEP, "run", "--seeds", "2", "--resume").exit_code == 0
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    refused = run(SWEEP, "run", "--seeds", "3", "--resume")
    assert "differs in sweep" in str(refused.exception)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seeds", "0"], "0 is not in the range"),
        (["--seeds", "2", "--set", "sweep={seed=[1,2]}"], "lists its seeds already"),
        (["--seeds", "2", "--set", f"seed={2**63 - 1}"], "seed"),
    ],
)
def test_impossible_seeds_are_errors_before_any_run(run, tmp_path, options, words):
    refused = run(RUN, "run", *options)
    assert refused.exit_code != 0
    assert words in str(refused.output) + str(refused.exception)
    assert not (tmp_path / "run").exists()
