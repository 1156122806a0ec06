"""Flower's own processes on this host, for tests."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from support.processes import kill_marked
from support.processes import needs_proc as needs_proc


class Processes:
    """Processes of Flower's with an environment and a log of their own.

    Attributes:
        home: Flower's own folder.
        log: What all of them print.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.home, self.log = folder / "flwr", folder / "log"
        self.home.mkdir()
        self._mark, self._started = f"FEDSIM_{uuid.uuid4().hex}", list[subprocess.Popen[bytes]]()
        self._environment = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            self._mark: "1",
            **environment,
        }

    def superlink(self, settings: str, *, name: str = "here") -> None:
        """State the SuperLink that `flwr` commands talk to."""
        text = f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\n{settings}\n'
        (self.home / "config.toml").write_text(text)

    def begin(self, *command: str) -> None:
        """Start a process that goes on."""
        with self.log.open("ab") as log:
            self._started.append(
                subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
            )

    def run(self, *command: str, seconds: float) -> None:
        """Run a process to its end."""
        with self.log.open("ab") as log:
            subprocess.run(
                command, env=self._environment, stdout=log, stderr=log, timeout=seconds, check=False
            )

    def said(self) -> str:
        """All that they printed."""
        return self.log.read_text() if self.log.exists() else ""

    def end(self) -> None:
        """Kill every process that inherited the mark of these."""
        kill_marked(self._mark)
        for one in self._started:
            one.wait()


@contextlib.contextmanager
def processes(folder: Path, **environment: str) -> Iterator[Processes]:
    """Flower's processes, which end with the block.

    Args:
        folder: A new folder for their own files.
        environment: More variables of their environment.
    """
    made = Processes(folder, **environment)
    try:
        yield made
    finally:
        made.end()


def free_ports(number: int) -> list[int]:
    """Ports of this host on which nothing listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(port: int, seconds: float = 60) -> None:
    """Wait until something listens on a port of this host."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
