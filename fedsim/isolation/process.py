"""The other end of isolated adversaries: start the server, ask it for children, talk to them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import EngineError
from fedsim.isolation import frames
from fedsim.temporary import ISOLATION, TemporaryFolder, remove

STARTS_WITHIN = 120.0
"""Seconds within which the server has to be ready; a busy machine imports slowly."""

ENDS_WITHIN = 2.0
"""Seconds in which a child that closed its socket has to end."""

KEPT = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
"""Variables of the environment that the server gets."""

SET = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables that are set for it."""

SYSTEM = (
    *(
        f"{root}/{name}"
        for root in ("", "/usr", "/usr/local")
        for name in ("lib", "lib32", "lib64")
    ),
    *("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"),
    *("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"),
)
"""Shared libraries and devices, which each child may read."""


class ServerDied(Exception):
    """The server ended while a child of it worked."""


class Server:
    """The process that forks children for adversaries; see `fedsim.isolation.server`.

    Attributes:
        walls: The walls that stand around its children, in words.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._folder = TemporaryFolder(ISOLATION)
        self._number = 0
        self._lines: list[dict[str, Any]] = []
        self._handles: list[int] = []
        self._rest = b""
        self._open: set[int] = set()
        self._gone = False
        self._ended: dict[int, int] = {}
        self._control, theirs = socket.socketpair()
        code = (
            "import sys, json; sys.path[:] = json.loads(sys.argv[2]);"
            "from fedsim.isolation.server import main; main(int(sys.argv[1]))"
        )
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-I", "-c", code, str(theirs.fileno()), json.dumps(search_path())],
                cwd=self._folder.path,
                env=SET | {name: os.environ[name] for name in KEPT if name in os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._end = weakref.finalize(
            self, _end, self._owner, self._control, self._process, self._folder
        )
        self.walls: tuple[str, ...] = tuple(self._ready()["walls"])

    def _ready(self) -> dict[str, Any]:
        try:
            return self._line(STARTS_WITHIN)
        except (ServerDied, TimeoutError) as error:
            self._process.kill()
            said = self._process.communicate()[1].decode(errors="replace").strip()
            self._end()
            last = said.splitlines()[-1:] or [f"nothing within {STARTS_WITHIN:g} s"]
            raise EngineError(
                f"the process for isolated adversaries cannot start: {last[0]}. "
                'Set threat.isolation = "none" to do without it'
            ) from error

    @property
    def alive(self) -> bool:
        """Whether it can be asked, by this process.

        A process that was killed closes its socket some time before it has ended.
        """
        ours = self._owner == os.getpid() and self._folder.path.is_dir()
        return ours and not self._gone and self._process.poll() is None

    @contextlib.contextmanager
    def child(self, modules: Sequence[str] = (), *, attacks: bool) -> Iterator["Child"]:
        """Fork a child, and kill it in the end.

        Args:
            modules: Installed modules that it will need, which the server imports before.
            attacks: Whether it will attack, for which the server has to have got ready.

        Raises:
            ServerDied: There is no server any more.
        """
        try:
            folder = tempfile.mkdtemp(dir=self._folder.path)
        except OSError as error:
            raise ServerDied from error
        ours, theirs = socket.socketpair()
        number, told = 0, dict[str, Any]()
        try:
            with theirs, self._lock:
                self._number = number = self._number + 1
                request = {"number": number, "modules": list(modules), "attacks": attacks}
                self._send(request, [theirs.fileno()])
                told = self._told(lambda line: line.get("forked") == number)
                self._open.add(number)
            yield Child(self, ours.fileno(), told, folder)
        finally:
            ours.close()
            if os.getpid() == self._owner:  # not in a process that was forked meanwhile
                _kill(told)
                remove(Path(folder))
            if told.get("handle") is not None:
                os.close(told["handle"])
            self._open.discard(number)

    def get_ready(self) -> None:
        """Let the server import what attacks use, without waiting for it."""
        with self._lock, contextlib.suppress(ServerDied):
            self._send({"attacks": True})

    def _send(self, request: dict[str, Any], handles: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._control, [json.dumps(request).encode() + b"\n"], list(handles))
        except OSError as error:
            self._gone = True
            raise ServerDied from error

    def ending(self, told: dict[str, Any]) -> int:
        """How a child ended: its exit status, or minus the number of the signal that killed it.

        A child that closed its socket and stays is killed.

        Args:
            told: What the server told when it forked the child.

        Raises:
            ServerDied: The server ended, which ends its children.
        """
        number: int = told["forked"]
        with self._lock:
            if number not in self._ended:
                try:
                    self._told(lambda line: number in self._ended, ENDS_WITHIN)
                except ServerDied:
                    _kill(told)
                    self._told(lambda line: number in self._ended)
            return self._ended.pop(number)

    def _told(
        self, wanted: Callable[[dict[str, Any]], bool], seconds: float = STARTS_WITHIN
    ) -> dict[str, Any]:
        """The next line that is wanted; endings on the way are remembered."""
        while True:
            try:
                line = self._line(seconds)
            except TimeoutError as error:
                self._gone |= seconds == STARTS_WITHIN
                raise ServerDied from error
            if line.get("handles"):
                line["handle"] = self._handles.pop(0)
            if line.get("ended") in self._open:
                self._ended[line["ended"]] = line["status"]
            if wanted(line):
                return line
            if "forked" in line:  # whoever asked for it was interrupted
                _kill(line)
                if line.get("handle") is not None:
                    os.close(line["handle"])

    def _line(self, seconds: float) -> dict[str, Any]:
        """The next line of the server."""
        self._control.settimeout(seconds)
        while b"\n" not in self._rest:
            try:
                part, handles, _, _ = socket.recv_fds(self._control, 2**16, 16)
            except TimeoutError:
                raise
            except OSError as error:
                self._gone = True
                raise ServerDied from error
            if not part:
                self._gone = True
                raise ServerDied
            self._handles += handles
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


class Child:
    """A forked child, over its socket.

    Attributes:
        folder: Its empty temporary folder.
    """

    def __init__(self, server: Server, channel: int, told: dict[str, Any], folder: str) -> None:
        self._server, self._channel, self._told = server, channel, told
        self.folder = folder

    def ask(self, *parts: bytes | memoryview) -> None:
        """Send a request."""
        with contextlib.suppress(OSError):  # how it ended shows in `answers`
            frames.send(self._channel, frames.REQUEST, *parts)

    def answer(self, seconds: float) -> tuple[bytes, bytes]:
        """The next frame of the child.

        Args:
            seconds: How long to wait for it.

        Raises:
            EOFError: The child ended; the argument is how.
            ServerDied: So did the server.
            frames.Silent: It said nothing for so long.
            frames.TooLong: It sends too much.
        """
        try:
            return frames.receive(self._channel, until=time.monotonic() + seconds)
        except EOFError:
            status = self._server.ending(self._told)
            how = f"exit status {status}" if status >= 0 else f"signal {-status}"
            raise EOFError(how) from None


_running: Server | None = None
_starting = threading.Lock()


def server() -> Server:
    """The server of this process, which is started at the first call and stays."""
    global _running
    with _starting:
        if _running is None or not _running.alive:
            _running = Server()
        return _running


def stop() -> None:
    """End the server of this process, if there is one."""
    global _running
    if _running is not None:
        _running._end()
        _running = None


def search_path() -> list[str]:
    """`sys.path` with absolute folders; the current one comes last, if it is on it."""
    own = str(Path(__file__).parents[2])
    folders = [os.path.abspath(one) for one in sys.path if one]
    found = [one for one in folders if os.path.exists(one)]
    return list(dict.fromkeys([*found, own]))


def readable() -> list[str]:
    """What each child may read: the standard library, installed packages and shared libraries."""
    scheme = sysconfig.get_paths()
    own = Path(__file__).parents[2]
    packages = [str(own / name) for name in ("fedsim", "adversaries", "defenses")]
    installed = [
        one for one in search_path() if Path(one).name in ("site-packages", "dist-packages")
    ]
    library = [scheme["stdlib"], scheme["platstdlib"], f"{sys.base_prefix}/lib"]
    return [*SYSTEM, *library, *installed, *packages]


def _kill(told: dict[str, Any]) -> None:
    """Kill a child of which the server told."""
    with contextlib.suppress(OSError):
        if told.get("handle") is not None:
            signal.pidfd_send_signal(told["handle"], signal.SIGKILL)
        elif "process" in told:
            os.kill(told["process"], signal.SIGKILL)


def _end(
    owner: int,
    control: socket.socket,
    process: "subprocess.Popen[bytes]",
    folder: TemporaryFolder,
) -> None:
    control.close()
    if os.getpid() != owner:  # a forked process, whose parent goes on with the server
        process.returncode = 0
        return
    with contextlib.suppress(Exception):
        process.wait(2)
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stderr is not None:
        process.stderr.close()
    folder.close()
