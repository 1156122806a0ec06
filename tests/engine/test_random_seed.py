"""`seed = "random"`: 63 bits from the operating system for each run, kept with it."""

import stat
import tomllib

import pytest
from flwr.serverapp.strategy import FedAvg
from support.tiny import rows, scenario, timeless
from torch.nn import Linear
from typer.testing import CliRunner

from adversaries import LLG
from fedsim import HonestButCurious
from fedsim.cli import app
from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.runs.provenance import read

pytestmark = pytest.mark.usefixtures("unreported")

FILE = """
seed = "random"
[task]
name = "images"
test_examples = 20
[training]
rounds = 1
clients = 4
[[adversaries]]
name = "random"
[engine]
workers = 1
"""


def seed_of(folder):
    """The seed of a run, as its files have it."""
    found = tomllib.loads((folder / "scenario.toml").read_text())["seed"]
    assert {row["seed"] for row in rows(folder)} == {str(found)} == {str(read(folder)["seed"])}
    assert stat.S_IMODE((folder / "scenario.toml").stat().st_mode) == 0o600
    return found


def test_each_run_draws_a_seed_of_its_own(tmp_path):
    run = scenario(seed="random", defenses=[{"name": "gaussian-noise"}])
    for name in "ab":
        simulate(run, tmp_path / name)
    one, other = seed_of(tmp_path / "a"), seed_of(tmp_path / "b")
    assert one != other
    assert min(one, other) >= 2**32  # with a probability of 1 - 2**-30
    simulate(scenario(seed=one, defenses=[{"name": "gaussian-noise"}]), tmp_path / "again")
    assert timeless(tmp_path / "again") == timeless(tmp_path / "a")


def test_a_resumed_run_keeps_its_seed_and_so_does_an_attack_on_it(tmp_path):
    run = scenario(seed="random")
    simulate(run, tmp_path)
    seed, found = seed_of(tmp_path), timeless(tmp_path)
    (tmp_path / "attacks.jsonl").unlink()  # all attacks are to be made again
    (tmp_path / "findings.csv").unlink()
    (tmp_path / "log.jsonl").unlink()
    simulate(scenario(seed="random"), tmp_path, resume=True)
    assert (seed_of(tmp_path), timeless(tmp_path)) == (seed, found)
    attack(tmp_path, changes={"adversaries": [{"name": "idlg"}]})
    assert seed_of(tmp_path) == seed


def test_all_points_of_a_sweep_have_the_seed_of_the_run(tmp_path):
    simulate(scenario(seed="random", sweep={"training.batch_size": [1, 2]}), tmp_path)
    assert len({row["point"] for row in rows(tmp_path)}) == 2
    assert seed_of(tmp_path) >= 2**32


def test_the_command_takes_it_and_resumes_with_it(tmp_path):
    (tmp_path / "run.toml").write_text(FILE)
    path, out = str(tmp_path / "run.toml"), tmp_path / "out"
    assert CliRunner().invoke(app, ["check", path]).exit_code == 0
    seeds = set()
    for more in ([], ["--resume"]):
        done = CliRunner().invoke(app, ["run", path, "--out", str(out), "-q", *more])
        assert done.exit_code == 0, done.output
        seeds.add(seed_of(out))
    assert len(seeds) == 1
    refused = CliRunner().invoke(app, ["run", path, "--out", str(tmp_path / "3"), "--seeds", "3"])
    assert 'seed = "random": repetitions (--seeds)' in str(refused.exception)
    assert not (tmp_path / "3").exists()


def test_where_a_number_is_needed_random_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match=r'sweep\.seed holds "random"'):
        scenario(sweep={"seed": [1, "random"]})
    with pytest.raises(ScenarioError, match='seed = "random" is for runs of fedsim itself'):
        HonestButCurious(FedAvg(), [LLG()], model=Linear, seed="random", out=tmp_path)
    with pytest.raises(ScenarioError, match=r"seed: expected an integer; found 'rand'"):
        scenario(seed="rand")
