"""Scenarios and faults of chaos.py, and how a process of fedsim is started and disturbed."""

import atexit
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
PATIENCE = 300.0
"""Seconds after which a process counts as hanging."""

TABLE: dict[str, Any] = {
    "task": {"name": "images", "data": "digits", "model": "cnn", "test_examples": 20},
    "training": {
        "algorithm": "fedsgd", "rounds": 4, "clients": 4, "clients_per_round": 3, "batch_size": 4,
    },
    "threat": {"grants": "full"},
    "adversaries": [{"name": "llg"}, {"name": "dlg", "iterations": 3, "restarts": 0, "victims": 2}],
}  # fmt: skip

FEDAVG = {"algorithm": "fedavg", "local_steps": 2}


def client(how: str, then: str) -> dict[str, Any]:
    table = {"name": "chaos_plugins:Client", "how": how}
    return {"defenses": [table], "training": {"on_failure": then}}


def attack(how: str, **more: Any) -> dict[str, Any]:
    return {"adversaries": [{"name": "llg"}, {"name": "chaos_plugins:Attack", "how": how, **more}]}


SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {
        "training": {**FEDAVG, "evaluate_clients": 2,
                     "strategy": {"name": "FedAvgM", "server_momentum": 0.5}},
        "defenses": [{"name": "deep-gradient-compression"}],
        "record": {"keep": "all"},
    },
    "adam": {
        "training": {**FEDAVG, "strategy": "FedAdam"},
        "threat": {"follow": [1]},
        "adversaries": [{"name": "llg"}, {"name": "random"}],
    },
    "sweep": {"sweep": {"training.lr": [0.1, 0.2]}, "training": {"rounds": 2}},
    "masked-sum": {"training": {**FEDAVG, "secure_aggregation": "masked-sum"}},
    "secagg+": {"training": {**FEDAVG, "secure_aggregation": "secagg+"}},
    "client raises": client("raises", "drop"),
    "client sends NaN": client("nan", "drop"),
    "client sends other names": client("names", "drop"),
    "client hangs": client("hangs", "drop"),
    "client raises once": client("once", "stop"),
    "attack raises": attack("raises"),
    "attack hangs": attack("hangs", timeout=0.2, victims=1),
    "attack eats memory": attack("memory"),
    "attack dies": attack("dies", victims=1),
    "isolation server killed": {"threat": {"isolation": "process"}},
}  # fmt: skip
SECURE = ("masked-sum", "secagg+")
USUAL = ("plain", "momentum", "adam", "sweep", *SECURE)


def scenario(name: str, seed: int) -> dict[str, Any]:
    """A scenario's tables."""
    table: dict[str, Any] = {"name": "chaos", "seed": seed, **TABLE}
    for key, value in SCENARIOS[name].items():
        merged = isinstance(value, dict) and key != "sweep"
        table[key] = {**table.get(key, {}), **value} if merged else value
    return table


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status (negative: a signal) and what it printed."""

    status: int
    said: str
    hung: bool = False


class Process:
    """A `fedsim` command in a process forked from this one, which has imported the libraries.

    Args:
        words: The words of the command.
        folder: Its current folder, with the file `said` of what it prints.
        largest: Bytes of the largest file that it may write; 0: any.
        environment: More variables.
    """

    def __init__(
        self, words: list[str], folder: Path, environment: dict[str, str], largest: int = 0
    ) -> None:
        self._said = folder / f"said-{time.monotonic_ns()}"
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _become(words, folder, environment, largest, self._said)
        self._ended: int | None = None

    def running(self) -> bool:
        if self._ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._ended = os.waitstatus_to_exitcode(status) if pid else None
        return self._ended is None

    def children(self) -> list[psutil.Process]:
        """All processes below it."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def send(self, number: int) -> None:
        if self.running():
            os.kill(self.pid, number)

    def end(self) -> Ended:
        """Wait until it has ended; kill it when the patience is over."""
        deadline, hung = time.monotonic() + PATIENCE, False
        while self.running():
            if not hung and time.monotonic() > deadline:
                hung = True
                self.send(signal.SIGKILL)
            time.sleep(0.01)
        said = self._said.read_text(errors="replace") if self._said.exists() else ""
        assert self._ended is not None
        return Ended(self._ended, said, hung)


def _become(
    words: list[str], folder: Path, environment: dict[str, str], largest: int, said: Path
) -> None:
    """Run a command in this process, and end it."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, path in enumerate((os.devnull, said, said)):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(opened, number)
        os.environ.update(environment)
        tempfile.tempdir = None  # TMPDIR is another one now
        if largest:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        sys.argv = ["fedsim", *words]
        from fedsim.cli import main

        main()
    except SystemExit as left:
        status = int(left.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def kill_child(process: Process, name: str) -> bool:
    """Kill one process below another, by a part of its command or title."""
    for child in process.children():
        with contextlib.suppress(psutil.Error):
            if name in " ".join([child.name(), *child.cmdline()]):
                child.kill()
                return True
    return False


def tear(folder: Path, rng: np.random.Generator, command: str) -> str:
    """Cut bytes off the end of a file that a command appends to or replaces; return which."""
    training = command in ("run", "train")
    paths = [folder / name for name in ("log.jsonl", "findings.csv", "attacks.jsonl")]
    paths += [folder / name for name in ("utility.csv", "points.csv") if training]
    if command == "report":
        paths = [folder / "report.html"]
    for below in ("checkpoint", "tape") if training else ():
        paths += sorted(path for path in folder.glob(f"{below}/**/*") if path.is_file())
    there = [path for path in paths if path.exists() and path.stat().st_size > 64]
    if not there:
        return ""
    path = there[int(rng.integers(len(there)))]
    cut = int(rng.integers(1, 64))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - cut)
    return f"{path.relative_to(folder).as_posix()} -{cut}"


def size(folder: Path) -> int:
    """The bytes of a folder on a disk with blocks of 4 KiB."""
    return sum(-(-f.stat().st_size // 4096) * 4096 for f in folder.rglob("*") if f.is_file())


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """A folder on a file system with little room, or False where none may be mounted."""
    folder.mkdir(parents=True)
    mount = [
        shutil.which("mount") or "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size={size}",
        "tmpfs",
        str(folder),
    ]
    try:
        done = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        done = False
    try:
        yield done
    finally:
        if done:
            subprocess.run([shutil.which("umount") or "", "--lazy", str(folder)], check=True)


def more_room(folder: Path) -> None:
    subprocess.run(
        [shutil.which("mount") or "", "-o", "remount,size=200m", str(folder)], check=True
    )


class Cluster:
    """Two Ray nodes on this machine, the second of which can be lost and started again."""

    def __init__(self) -> None:
        self._temporary = tempfile.mkdtemp(prefix="chaos")
        port = int(np.random.default_rng().integers(20000, 30000))
        self.address, self._nodes = f"127.0.0.1:{port}", dict[str, subprocess.Popen[bytes]]()
        self._start(
            "head", "--head", f"--port={port}", "--node-ip-address=127.0.0.1",
            "--include-dashboard=false", f"--ray-client-server-port={port + 1}",
            f"--temp-dir={self._temporary}",
        )  # fmt: skip

    def _start(self, name: str, *options: str) -> None:
        ray = Path(sys.executable).with_name("ray")
        more = ["--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats"]
        self._nodes[name] = subprocess.Popen(
            [ray, "start", *options, *more, "--block"],
            env={**os.environ, "PYTHONPATH": str(HERE), "CHAOS_NODE": name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def join(self) -> None:
        """Start the second node, and wait until both are there."""
        if "second" not in self._nodes:
            self._start("second", f"--address={self.address}", "--node-ip-address=127.0.0.3")
        code = (
            "import ray, sys, time\n"
            "for _ in range(240):\n"
            "    try:\n"
            "        ray.init(address=sys.argv[1], log_to_driver=False, logging_level=50)\n"
            "        if sum(n['Alive'] for n in ray.nodes()) == 2:\n"
            "            sys.exit()\n"
            "        ray.shutdown()\n"
            "    except Exception:\n"
            "        pass\n"
            "    time.sleep(0.5)\n"
            "sys.exit('no cluster')\n"
        )
        subprocess.run([sys.executable, "-c", code, self.address], check=True, timeout=300)

    def lose(self) -> None:
        """Kill every process of the second node."""
        if "second" in self._nodes:
            node = psutil.Process(self._nodes.pop("second").pid)
            for one in [*node.children(recursive=True), node]:
                with contextlib.suppress(psutil.Error):
                    one.kill()
            node.wait()

    def end(self) -> None:
        self.lose()
        for one in self._nodes.values():
            one.terminate()
            one.wait(timeout=60)
        shutil.rmtree(self._temporary, ignore_errors=True)


def kill_worker(name: str) -> bool:
    """Kill one worker of the cluster that this process started, by a part of its title."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if name in " ".join([process.name(), *process.cmdline()]):
                process.kill()
                return True
    return False
