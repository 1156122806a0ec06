"""How fast each engine simulates clients: the same federation on all three, as ratios.

    python benchmarks/engines.py [--clients 100] [--rounds 4] [--batch 16] [--workers 2]

FedSGD of LLG's CNN on the embedded digits at 32x32; every client takes part in every round. No
adversaries, so that only training and transport count. Start-up is what passes before round 1 is
trained; clients a second are over the later rounds.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--clients", type=int, default=100)
parser.add_argument("--rounds", type=int, default=4)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--workers", type=int, default=2)
options = parser.parse_args()


def measure(engine: str) -> tuple[float, float]:
    """Seconds before the first round has been trained, and clients a second after it."""
    scenario = Scenario.parse(
        {
            "name": f"bench-{engine}",
            "task": {"name": "images", "data": "digits", "size": 32, "model": "cnn"},
            "training": {
                "algorithm": "fedsgd",
                "rounds": options.rounds,
                "clients": options.clients,
                "batch_size": options.batch,
            },
            "engine": {"name": engine, "workers": 1 if engine == "inline" else options.workers},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        simulate(scenario, Path(folder) / "run")
        total = time.perf_counter() - started
        log = [json.loads(line) for line in (Path(folder) / "run/log.jsonl").open()]
    times = [entry["seconds"] for entry in log if entry["event"] == "round"]
    later = times[-1] - times[1]
    return total - later, (options.rounds - 1) * options.clients / later


results = {engine: measure(engine) for engine in ("inline", "ray", "flower")}
_, stock = results["flower"]
print(f"{options.clients} clients a round, batch {options.batch}, {options.workers} workers")
print(f"{'engine':<8} {'start-up s':>10} {'clients/s':>10} {'ratio to stock Flower':>22}")
for engine, (start, rate) in results.items():
    print(f"{engine:<8} {start:>10.1f} {rate:>10.1f} {rate / stock:>22.2f}")
