"""A process without data and without a run, which forks one child for each call of an adversary.

It is started by `fedsim.isolation.process` with a cleared environment, in an empty folder. It
imports what attacks need once, so that a fork, which takes milliseconds, does not have to. Its
children talk to the process that asked for them, over a socket that it passes on; what they say
never comes through the server.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedsim import libraries
from fedsim.isolation import child
from fedsim.isolation.walls import standing
from fedsim.temporary import remove

PRELOADED = ("fedsim.", "transformers.")
"""Packages of which modules are imported before a fork, if they are asked for."""

WAIT = 0.1
"""Seconds between two looks for children that ended, where processes have no descriptors."""


def main(control: int) -> None:
    """Import what attacks need, then fork children until the other end is closed; do not return.

    The current folder is removed then: whoever made it may have been killed.

    Args:
        control: Descriptor of the socket over which children are asked for.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = Path.cwd()
    try:
        with socket.socket(fileno=control) as asked:
            _say(asked, walls=standing())
            _serve(asked)
    finally:
        remove(folder)
    os._exit(0)  # at once: the process of the run waits for that


@functools.cache
def warm() -> None:
    """Import what attacks use, once, and use what imports more when it is used."""
    import scipy.linalg
    import scipy.optimize
    import torch
    import torch._dynamo

    from fedsim import plugin
    from fedsim.errors import PluginError

    torch.set_num_threads(1)
    values = torch.ones(4, 4, requires_grad=True)
    optimizer = torch.optim.LBFGS([values], max_iter=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = values.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    torch.func.vmap(torch.sin)(values.detach())
    torch.linalg.qr(torch.eye(4))
    scipy.optimize.nnls(torch.eye(2).numpy(), torch.ones(2).numpy())
    for name in plugin.names("adversaries"):
        if plugin.is_built_in("adversaries", name):
            with contextlib.suppress(PluginError):  # it needs an extra that is not installed
                plugin.find("adversaries", name)
    gc.collect()
    gc.freeze()  # children share what is there


def _serve(asked: socket.socket) -> None:
    children: dict[int, tuple[int, int | None]] = {}
    rest, channels = b"", list[int]()
    try:
        while True:
            watched = [handle for _, handle in children.values() if handle is not None]
            slow = len(watched) < len(children)
            poll = select.poll()  # `select.select` takes no descriptors beyond 1023
            for one in (asked.fileno(), *watched):
                poll.register(one, select.POLLIN)
            ready = [one for one, _ in poll.poll(1000 * WAIT if slow else None)]
            _reap(asked, children)
            if asked.fileno() not in ready:
                continue
            part, more, _, _ = socket.recv_fds(asked, 2**16, 16)
            if not part:
                return
            rest, channels = rest + part, channels + more
            *lines, rest = rest.split(b"\n")
            for line in lines:
                request = json.loads(line)
                if request["attacks"]:
                    warm()
                if "number" in request:  # a child is asked for, not only that modules be imported
                    _fork(asked, request, channels.pop(0), children)
    except ConnectionError:
        return
    finally:
        for process in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _fork(
    asked: socket.socket,
    request: dict[str, Any],
    channel: int,
    children: dict[int, tuple[int, int | None]],
) -> None:
    """Fork a child, which gets a socket, and say so."""
    _preload(request["modules"])
    process = os.fork()
    if not process:
        try:
            asked.close()
            child.main(channel)
        finally:
            os._exit(1)
    os.close(channel)
    handle = os.pidfd_open(process) if hasattr(os, "pidfd_open") else None
    children[process] = request["number"], handle
    handles = [] if handle is None else [handle]
    _say(asked, *handles, forked=request["number"], process=process, handles=len(handles))


def _preload(modules: Iterable[str]) -> None:
    for name in modules:
        if name.startswith(PRELOADED):
            with contextlib.suppress(Exception):
                if name.startswith("transformers."):
                    libraries.transformers()  # whichever torchaudio is installed
                importlib.import_module(name)


def _reap(asked: socket.socket, children: dict[int, tuple[int, int | None]]) -> None:
    """Tell how children ended."""
    for process, (number, handle) in list(children.items()):
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            del children[process]
            if handle is not None:
                os.close(handle)
            _say(asked, ended=number, status=os.waitstatus_to_exitcode(status))


def _say(asked: socket.socket, *handles: int, **message: Any) -> None:
    line = json.dumps(message).encode() + b"\n"
    with contextlib.suppress(OSError):
        socket.send_fds(asked, [line], list(handles))


if __name__ == "__main__":
    main(int(sys.argv[1]))
