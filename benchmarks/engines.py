"""How fast each engine simulates clients: the same federation on all three and without fedsim.

    python benchmarks/engines.py [--clients 100] [--population 0] [--rounds 4] [--batch 16]
        [--workers 2] [--pfl PYTHON]

FedSGD of LLG's CNN on the embedded digits at 32x32. `--clients` take part in a round, of
`--population` in all; 0: the same clients in every round. No adversaries, and nothing is recorded,
so that only training, transport and evaluation count. Start-up is what passes until round 1 has
ended; clients a second are over the later rounds. The engine "flower" runs fedsim's client on
Flower's simulation. "Flower app" runs an app without fedsim there (benchmarks/flower_app.py). Where
pfl-research can be imported, or with `--pfl`, the Python of an environment that has it and fedsim
(`pip install pfl`), its cost of a client is compared in CPU time with `benchmarks/pfl_research.py`.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

ENGINES = ("inline", "ray", "flower")
APP = "Flower app"
KINDS = (*ENGINES, APP)


@dataclass(frozen=True)
class Speed:
    """Seconds until the first round has ended, and clients a second after it."""

    start: float
    rate: float


def measure(
    engine: str, *, clients: int, rounds: int, batch: int, workers: int, population: int = 0
) -> Speed:
    """Simulate one federation on an engine or by an app without fedsim; inline has one worker."""
    if engine == APP:
        script = str(Path(__file__).with_name("flower_app.py"))
        sizes = {"clients": clients, "population": population, "rounds": rounds, "batch": batch}
        options = [f"--{name}={value}" for name, value in {**sizes, "workers": workers}.items()]
        began = time.time()
        done = subprocess.run(
            [sys.executable, script, *options],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"FLWR_TELEMETRY_ENABLED": "0"},
        )
        if done.returncode:
            raise SystemExit(f"the Flower app ended with an error: {done.stderr[-2000:]}")
        said = json.loads(done.stdout.splitlines()[-1])
        return Speed(said["first"] - began, said["rate"])
    scenario = Scenario.parse(
        {
            "name": f"bench-{engine}",
            "task": {
                "name": "images",
                "data": "digits",
                "size": 32,
                "model": "cnn",
                # 100 clients have 16 examples each.
                "test_fraction": 0.1,
                "auxiliary_fraction": 0.0,
            },
            "training": {
                "algorithm": "fedsgd",
                "rounds": rounds,
                "clients": population or clients,
                "clients_per_round": clients,
                "batch_size": batch,
            },
            "record": {"keep": "nothing"},
            "engine": {
                "name": engine,
                "workers": 1 if engine == "inline" else workers,
                "device": "cpu",
            },
        }
    )
    ends = list[float]()

    def observer(event: str, **fields: Any) -> None:
        if event == "round":
            ends.append(time.perf_counter())

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        simulate(scenario, Path(folder) / "run", observer=observer)
    _, first, *_, last = ends  # the first is of the weights that nobody has trained
    return Speed(first - started, (rounds - 1) * clients / (last - first))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in (
        ("clients", 100),
        ("population", 0),
        ("rounds", 4),
        ("batch", 16),
        ("workers", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    here = sys.executable if importlib.util.find_spec("pfl") else None
    parser.add_argument("--pfl", default=here, metavar="PYTHON")
    given = vars(parser.parse_args())
    if given["rounds"] < 2:
        parser.error("--rounds must be 2 or more: the first one is left out")
    pfl = given.pop("pfl")
    found = {engine: measure(engine, **given) for engine in KINDS}
    print("{clients} clients a round, batch {batch}, {workers} workers".format(**given))
    print(
        f"{'engine':<10} {'start-up s':>10} {'clients/s':>10} {'ratio to flower':>16} "
        f"{'to the Flower app':>18}"
    )
    for engine, one in found.items():
        shared, alone = one.rate / found["flower"].rate, one.rate / found[APP].rate
        print(f"{engine:<10} {one.start:>10.1f} {one.rate:>10.1f} {shared:>16.2f} {alone:>18.2f}")
    if pfl is None:
        print("pfl-research is not installed: pip install pfl, or --pfl PYTHON")
        return
    script = Path(__file__).with_name("pfl_research.py")
    sizes = [f"--{name}={given[name]}" for name in ("clients", "batch")]
    subprocess.run([pfl, str(script), *sizes], check=True)


if __name__ == "__main__":
    main()
