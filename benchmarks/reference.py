"""Regression check: run a set of scenarios before and after a change and compare their tables.

    python benchmarks/reference.py run OUT [NAME ...] --data DIR
    python benchmarks/reference.py compare BEFORE AFTER

`run` uses the fedsim of the interpreter that executes it. Run once before a change that must not
change results and once after, on the same machine. All columns except seconds are compared.
Scenarios whose results exist are skipped, and so are those that need local data if --data is not
given. All of them take about an hour of one core.
"""

import argparse
import csv
import shutil
import subprocess
import sys
from pathlib import Path

NOISE = """
seed = 7
[task]
name = "images"
data = "digits"
model = "cnn"
partition = {kind = "dirichlet", alpha = 0.5}
[training]
algorithm = "fedavg"
rounds = 5
clients = 20
clients_per_round = 5
batch_size = 8
[threat]
grants = "white-box"
victims = 2
[[defenses]]
name = "gaussian-noise"
[[adversaries]]
name = "llg"
[sweep]
"defenses.0.sigma" = [0.0, 0.01, 0.1]
"""
"""The README's noise sweep."""

SECURE = """
seed = 7
[task]
name = "images"
data = "digits"
model = "cnn"
[training]
algorithm = "fedsgd"
rounds = 3
clients = 6
batch_size = 2
secure_aggregation = "secagg+"
[[adversaries]]
name = "llg"
[[adversaries]]
name = "rlg"
"""

ONE = ["paper.repetitions=1", "threat.victims=all"]
RUNS: dict[str, tuple[list[str], list[str], bool]] = {
    "quickstart": (["run", "quickstart"], [], False),
    "first-rounds": (["run", "first-rounds"], [], False),
    "first-rounds-ray": (["run", "first-rounds"], ["engine.workers=2"], False),
    "defenses": (["run", "defenses"], [], False),
    "text": (["run", "text"], [], False),
    "speech": (["run", "speech"], [], False),
    "transcripts": (["run", "transcripts"], [], False),
    "eavesdrop": (["run", "eavesdrop"], [], False),
    "speakers": (["run", "speakers"], [], False),
    "noise": (["run", NOISE], ["engine.workers=1"], False),
    "secure": (["run", SECURE], ["engine.workers=1"], False),
    "secure-ray": (["run", SECURE], ["engine.workers=2"], False),
    "llg": (["reproduce", "llg/fig4a"], ONE, True),
    "dlg": (["reproduce", "dlg/size"], ONE, True),
    "rlg": (
        ["reproduce", "rlg/table2"],
        [*ONE, "training.clients=20", "training.clients_per_round=20"],
        True,
    ),
    "dager": (["reproduce", "dager/encoder"], [*ONE, "training.clients=4"], True),
    "hfgm": (
        ["reproduce", "hfgm/batch-dropout"],
        [*ONE, "training.clients=1", "adversaries.2.inputs_from.iterations=50"],
        True,
    ),
    "lamp": (
        ["reproduce", "lamp/table9"],
        [*ONE, "training.clients=1", "threat.timeout=7200"],
        True,
    ),
}
"""Of each run: the command, with a scenario's name or text, its settings, whether it needs data."""

TABLES = ("findings.csv", "utility.csv")


def run(out: Path, names: list[str], data: str) -> None:
    """Run what has no results yet, each into a folder of its name."""
    for name in names or RUNS:
        (command, what), settings, needs = RUNS[name]
        folder = out / name
        if folder.is_dir() or (needs and not data):
            why = "its results exist" if folder.is_dir() else "needs --data"
            print(f"{name}: skipped, {why}", flush=True)
            continue
        if "\n" in what:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{name}.toml").write_text(what)
            what = str(out / f"{name}.toml")
        partial = out / f"{name}.part"
        shutil.rmtree(partial, ignore_errors=True)
        words = [command, what, "--out", str(partial), *(["--data", data] if data else [])]
        words += [word for setting in settings for word in ("--set", setting)]
        print(f"{name}: fedsim {' '.join(words)}", flush=True)
        subprocess.run([sys.executable, "-m", "fedsim.cli", *words], check=True, stdout=-3)
        partial.rename(folder)


def rows(folder: Path) -> dict[str, list[dict[str, str]]]:
    """The tables below a folder by their path, without seconds."""
    found = {}
    for path in sorted(folder.rglob("*.csv")):
        if path.name in TABLES:
            with path.open(newline="") as file:
                table = [{**row, "seconds": ""} for row in csv.DictReader(file)]
            found[str(path.relative_to(folder))] = table
    return found


def compare(before: Path, after: Path) -> int:
    """Print, a run a line, whether its rows are equal; returns how many runs differ."""
    different = 0
    for name in RUNS:
        if not (before / name).is_dir() or not (after / name).is_dir():
            print(f"{name:16} has not been run in both")
            continue
        old, new = rows(before / name), rows(after / name)
        if old == new:
            print(f"{name:16} equal, {sum(map(len, old.values()))} rows")
            continue
        different += 1
        print(f"{name:16} DIFFERENT")
        for path in sorted(old.keys() | new.keys()):
            one, other = old.get(path, []), new.get(path, [])
            if len(one) != len(other):
                print(f"  {path}: {len(one)} and {len(other)} rows")
            for number, (a, b) in enumerate(zip(one, other, strict=False)):
                if a != b:
                    keys = [key for key in a.keys() | b.keys() if a.get(key) != b.get(key)]
                    told = {key: (a.get(key), b.get(key)) for key in sorted(keys)}
                    print(f"  {path}, row {number}: {told}")
                    break
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    player = commands.add_parser("run")
    player.add_argument("out", type=Path)
    player.add_argument("names", nargs="*", choices=[[], *RUNS])
    player.add_argument("--data", default="")
    comparer = commands.add_parser("compare")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "run":
        run(given.out, given.names, given.data)
    else:
        sys.exit(bool(compare(given.before, given.after)))


if __name__ == "__main__":
    main()
