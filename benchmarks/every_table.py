"""Reproduce every table and figure of the five papers, one after another: a run of many nights.

    python benchmarks/every_table.py [--out runs/every-table] [--minutes 0] [--only llg dlg/fig5]
        [--summary docs/results/every-table.csv]

Calls `fedsim reproduce ID --scale smoke` for each id of docs/results/README.md, those that take
least first, each in a process of its own whose output is kept under OUT/logs. A figure that is not
ready after `--minutes` (0: no limit) is stopped as by Ctrl-C, and the next one begins. After
each, its line of the summary (OUT/summary.csv) is replaced: the exit status, how many attacks have
ended, what they took, and the version. A second call goes on where the first one stopped, and
leaves out what is whole, with whatever version. With a summary from another machine it leaves out
what was whole there, and begins the rest anew. At the end a table says how many figures are whole;
the exit status is 1 if any failed.
"""

import argparse
import csv
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from fedsim.reproduce.catalogue import figures
from fedsim.reproduce.driver import unfinished
from fedsim.reproduce.tables import tables

SCALE = "smoke"
UNITS = {"minute": 1, "hour": 60, "day": 1440}
NUMBERS = {
    "half an": 0.5,
    "half a": 0.5,
    "a": 1,
    "an": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "ten": 10,
}
GRACE_S = 300
"""Seconds in which an interrupted figure writes its tables, before it is killed."""


@dataclass(frozen=True)
class Line:
    """How one figure went.

    Attributes:
        id: Its id for `fedsim reproduce`.
        state: "whole", "stopped" at the limit of time, "in part" if some points have failed or lack
            data, "not measured", or "failed" with a status of its own.
        status: The exit status of the last call.
        attacks: Rows with a value: attacks, or trainings where nothing is attacked.
        minutes: Wall time over all calls.
        version: The commit.
        said: Why it was not measured or failed.
    """

    id: str
    state: str
    status: int
    attacks: int
    minutes: float
    version: str
    said: str = ""


def expected(words: str) -> float:
    """Minutes that a figure takes at smoke scale, from the words of its scenarios; 1e9 if none."""
    part = "( and a half| and a quarter|)"
    found = re.search(rf"\b({'|'.join(NUMBERS)}|\d+){part} (minute|hour|day)s?{part}", words)
    if found is None:
        return 1e9
    number, inside, unit, after = found.groups()
    shares = [0.5 * ("half" in more) + 0.25 * ("quarter" in more) for more in (inside, after)]
    return ((NUMBERS.get(number) or float(number)) + sum(shares)) * UNITS[unit]


def chosen(only: list[str]) -> list[str]:
    """The ids of the papers' tables, those that take least first."""
    known = figures()
    ids = dict.fromkeys(id for row in tables() for id in row.ids)
    some = [id for id in ids if not only or id in only or id.partition("/")[0] in only]
    return sorted(some, key=lambda one: expected(known[one].words("takes")))


def attacks(folder: Path) -> int:
    """Ended attacks of a figure's run folders, or metrics of trainings where there are none."""
    for name, keys in (("findings.csv", ("point", "victim", "label")), ("utility.csv", ("point",))):
        found = set[tuple[str, ...]]()
        for path in folder.glob(f"*/{name}"):
            with path.open(newline="", encoding="utf-8") as file:
                found |= {(str(path), *(row[k] for k in keys)) for row in csv.DictReader(file)}
        if found:
            return len(found)
    return 0


class Ended(NamedTuple):
    """How a call of `fedsim reproduce` ended.

    Attributes:
        status: The exit status.
        interrupted: Whether the limit of time ended it.
        said: Why points are missing, or its last words.
        crashed: Whether it wrote a traceback.
    """

    status: int
    interrupted: bool
    said: str
    crashed: bool = False


def reproduce(id: str, out: Path, minutes: float) -> Ended:
    """Run a figure, with its output appended to its log."""
    command = [sys.executable, "-m", "fedsim.cli", "reproduce", id, "--scale", SCALE]
    log = out / "logs" / f"{id.replace('/', '-')}.log"
    before = log.stat().st_size if log.exists() else 0
    with log.open("a", encoding="utf-8") as file:
        running = subprocess.Popen(
            [*command, "--out", str(out)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "500"},  # reasons on one line
        )
        interrupted = False
        try:
            running.wait(timeout=60 * minutes or None)
        except subprocess.TimeoutExpired:
            interrupted = True
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
    text = log.read_bytes()[before:].decode("utf-8", "replace")
    words = text.strip().splitlines() or [""]
    reasons = [line for line in words if ": needs" in line or " points failed" in line]
    crashed = "Traceback (most recent call last)" in text
    last = words if crashed else reasons or words
    folder = str(Path(os.environ.get("FEDSIM_DATA") or "data").resolve())
    said = last[-1].replace(folder, "--data")[:200]
    return Ended(running.returncode, interrupted, said, crashed)


def read(path: Path) -> dict[str, Line]:
    """The lines so far."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kinds = {"status": int, "attacks": int, "minutes": float}
    made = (Line(**{name: kinds.get(name, str)(text) for name, text in r.items()}) for r in rows)
    return {line.id: line for line in made}


def write(path: Path, lines: dict[str, Line]) -> None:
    """Replace the summary."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Line)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(line) for line in sorted(lines.values(), key=lambda one: one.id))


def main() -> None:
    """Run what is not whole, and print the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/every-table"))
    parser.add_argument("--minutes", type=float, default=0.0, help="for each figure; 0: no limit")
    parser.add_argument("--only", nargs="+", default=[], help="papers or ids")
    parser.add_argument("--summary", type=Path, help="the summary; default OUT/summary.csv")
    given = parser.parse_args()
    (given.out / "logs").mkdir(parents=True, exist_ok=True)
    summary = given.summary or given.out / "summary.csv"
    summary.parent.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    lines, ids = read(summary), chosen(given.only)
    for number, id in enumerate(ids, 1):
        before = lines.get(id)
        if before and before.state == "whole":
            continue
        began = time.monotonic()
        call = reproduce(id, given.out, given.minutes)
        took = (time.monotonic() - began) / 60 + (before.minutes if before else 0)
        ended = attacks(given.out / id / SCALE)
        figure = figures()[id]
        left = sum(unfinished(figure, part, given.out, SCALE) for part in figure.parts)
        if not left:
            state = "whole"
        elif call.interrupted:
            state = "stopped"
        elif call.crashed or call.status not in {0, 1}:
            state = "failed"
        else:
            state = "in part" if ended else "not measured"
        told = "" if state in {"whole", "stopped"} else call.said
        lines[id] = Line(id, state, call.status, ended, round(took, 1), version, told)
        write(summary, lines)
        print(f"{number}/{len(ids)} {id}: {state}, {ended} attacks, {took:.1f} min", flush=True)
    states = [lines[id].state for id in ids]
    print(", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states)))
    sys.exit("failed" in states)


if __name__ == "__main__":
    main()
