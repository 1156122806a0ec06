"""How Ray starts a session that is for one run on this machine, and no cluster for others."""

import contextlib
import os
import signal
from collections.abc import Iterator

from ray._private import ray_constants
from ray._private.node import Node


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Let Ray, which runs whatever it is sent, listen on loopback alone, and not on every network.

    It replaces a `_node_ip_address` of 127.0.0.1 by the machine's address, unless clusters are
    disabled, as by default on macOS.
    """
    key = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before = os.environ.get(key)
    clusters = ray_constants.ENABLE_RAY_CLUSTER
    os.environ[key], ray_constants.ENABLE_RAY_CLUSTER = "0", False  # Ray's processes inherit it
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        del os.environ[key]
        if before is not None:
            os.environ[key] = before


@contextlib.contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Block SIGTERM in the processes that Ray starts meanwhile.

    `timeout`, systemd and Slurm send it to all processes of a run. Without Ray's processes, the one
    that trains would wait for a minute, and be ended by Ray without a report.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def without_helpers(*, shows_output: bool) -> Iterator[None]:
    """Let Ray start without processes that a session of one run does not need.

    They are the autoscaler, the server of the dashboard's interface (also without a dashboard), and
    the reader of workers' output. Each takes more than a second of CPU and 80 MB, and `ray.init`
    waits for them. `ray start` has options for them, and `ray.init` has none.

    Args:
        shows_output: Whether workers' output is shown, which takes its reader.
    """
    helpers = ["start_monitor", "start_api_server"]
    with contextlib.ExitStack() as stack:
        for start in helpers if shows_output else [*helpers, "start_log_monitor"]:
            if hasattr(Node, start):  # another version of Ray may start with all of them
                stack.callback(setattr, Node, start, getattr(Node, start))
                setattr(Node, start, lambda node, **options: None)
        yield
