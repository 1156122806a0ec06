"""The Slurm script starts a cluster, runs the scenario on it, and ends it; Slurm and Ray are played
by scripts that note how they are called."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "cluster" / "fedsim.sbatch"

STANDINS = {
    # A start that is killed before it has set its trap notes no end.
    "ray": """case $1 in
status) until [ "$(grep -c '^up$' calls)" = "$STARTS" ]; do /bin/sleep 0.05; done
  for node in $JOINED; do echo " 1 node_$node"; done;;
start) trap 'echo "end $*" >> calls; exit' TERM; echo up >> calls
  while :; do /bin/sleep 0.05; done;;
esac""",
    "srun": 'while [ "$1" != ray ]; do shift; done; exec "$@"',
    "fedsim": "true",
    "python": "echo 10.0.0.1",
    "sleep": "true",
}


@pytest.fixture
def submit(tmp_path):
    """Runs the script with stand-ins; returns its result and the commands that it called."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    for name, code in STANDINS.items():
        path = tmp_path / ".venv/bin" / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >> calls\n{code}\n')
        path.chmod(0o755)

    def run(nodes: int, joined: str, *words: str):
        slurm = {"JOB_ID": "4711", "JOB_NUM_NODES": f"{nodes}", "CPUS_PER_TASK": "16"}
        env = {"PATH": os.environ["PATH"], "JOINED": joined, "STARTS": f"{min(nodes, 2)}"}
        env |= {f"SLURM_{key}": value for key, value in slurm.items()}
        command = ["bash", str(SCRIPT), *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
        return done, (tmp_path / "calls").read_text().splitlines()

    return run


def test_it_parses_and_its_options_are_slurm_s():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SCRIPT.read_text(), re.MULTILINE))
    assert set(options) == {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "mem", "time"}
    assert options["ntasks-per-node"] == "1"


def test_the_documented_sed_sets_nodes_cpus_and_hours(tmp_path):
    page = (SCRIPT.parents[1] / "cluster.md").read_text()
    (line,) = re.findall(r"^sed -i .* fedsim\.sbatch$", page, re.MULTILINE)
    shutil.copy(SCRIPT, tmp_path)
    subprocess.run(shlex.split(line), cwd=tmp_path, check=True)
    options = re.findall(r"^#SBATCH --(\S+)$", (tmp_path / SCRIPT.name).read_text(), re.MULTILINE)
    assert {"nodes=4", "cpus-per-task=32", "time=12:00:00"} <= set(options)


def test_the_cluster_starts_runs_the_scenario_and_ends(submit):
    done, calls = submit(3, "a b c", "quickstart", "--set", "training.rounds=2")
    assert done.returncode == 0, done.stderr
    heads = [call for call in calls if call.startswith("ray start --head ")]
    assert len(heads) == 1
    assert "--node-ip-address=10.0.0.1 --port=24711 " in heads[0]
    (srun,) = (call for call in calls if call.startswith("srun "))
    assert srun.startswith("srun --relative=1 --nodes=2 --ntasks-per-node=1 --cpus-per-task=16 ")
    assert "ray start --address=10.0.0.1:24711 --num-cpus=16 " in srun
    (run,) = (call for call in calls if call.startswith("fedsim "))
    assert run == (
        "fedsim run --set engine.address=auto --set engine.workers=24 "
        "quickstart --set training.rounds=2"
    )
    ends = [call for call in calls if call.startswith("end start ")]
    assert len(ends) == 2
    assert calls.index(run) < min(map(calls.index, ends))


def test_one_node_is_a_cluster_without_srun(submit):
    done, calls = submit(1, "a", "quickstart")
    assert done.returncode == 0, done.stderr
    assert not [call for call in calls if call.startswith("srun")]


def test_a_node_that_does_not_join_is_an_error_and_runs_nothing(submit):
    done, calls = submit(3, "a b", "quickstart")
    assert done.returncode == 1
    assert "2 of 3 nodes joined the Ray cluster" in done.stderr
    assert not [call for call in calls if call.startswith("fedsim")]
    assert len([call for call in calls if call.startswith("end start ")]) == 2
