"""Python as a subprocess that need not import the libraries again.

One process imports them and is forked for each command: a Python that starts from nothing spends
three seconds of CPU on imports. A command has its own folder, environment, path, exit code and
output, and imports fedsim's plugins itself. Tests of the start itself begin with a fresh process.
"""

import functools
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

LOADED = (
    "fedsim.cli.display",
    "fedsim.engine.simulate",
    "fedsim.report",
    "fedsim.testing",
    "flwr_datasets.partitioner",
    "plotly.offline",
    "pytest",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.datasets",
    "torchmetrics.functional.image",
)


def python(*words: str, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `python *words` in a process forked from the one that has imported the libraries.

    Args:
        *words: They begin with a script, with `-m` and a module, or with `-c` and code.
        folder: The current folder of the command.
        env: Its whole environment.
    """
    with tempfile.TemporaryDirectory() as outputs:
        out, err = (Path(outputs) / name for name in ("out", "err"))
        asked = [words, str(folder), {**env}, str(out), str(err)]
        server = _server()
        assert server.stdin
        assert server.stdout
        try:
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
        except BaseException:
            server.kill()
            end()
            raise
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


@functools.cache
def _server() -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", __file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end() -> None:
    """End the process that is forked, if there is one."""
    if _server.cache_info().currsize:
        _server().communicate()
        _server.cache_clear()


def _serve() -> None:
    """Answer each line of standard input with the exit code of a command; return in a command."""
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()  # or every command that ends looks for garbage in all of it
    while line := sys.stdin.readline():
        if not (child := os.fork()):
            _become(*json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


def _become(words: list[str], folder: str, env: dict[str, str], out: str, err: str) -> None:
    """Run a command in this process."""
    for number, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins' modules are imported already
    path = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    if words[0] == "-c":
        sys.path[:0] = [folder, *path]
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    elif words[0] == "-m":
        sys.path[:0] = [folder, *path]
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [str(Path(words[0]).resolve().parent), *path]
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve()
