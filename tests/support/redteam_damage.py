"""Tricks of the red team (`redteam.py`) that do damage. A test copies both files."""

import ctypes
import fcntl
import importlib
import json
import multiprocessing.shared_memory
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from fedsim.adversary import Job
from fedsim.records import Observation, Reconstruction

try:
    from places import DATA, RUN  # type: ignore[import-not-found]
except ImportError:  # here, not beside a scenario
    DATA = RUN = ""

Trick = Callable[[Observation, Job], Any]
TRICKS: dict[str, Trick] = {}


def trick(function: Trick) -> Trick:
    """Register a trick by its function's name."""
    TRICKS[function.__name__.replace("_", "-")] = function
    return function


@trick
def patch_metrics(seen: Observation, job: Job) -> Any:
    metrics = importlib.import_module("fedsim.metrics")
    scoring = importlib.import_module("fedsim.metric")
    scoring.Metric.score = lambda *given: 1.0  # type: ignore[attr-defined]
    metrics.applicable = lambda *given: []  # type: ignore[attr-defined]
    torch.Tensor.__eq__ = lambda *given: True  # type: ignore[method-assign,assignment]
    return None


@trick
def fork_and_stay(seen: Observation, job: Job) -> Any:
    if not os.fork():
        while True:
            time.sleep(1)
    return ["forked"]


@trick
def thread_and_stay(seen: Observation, job: Job) -> Any:
    threading.Thread(target=lambda: time.sleep(10**6)).start()
    return None


@trick
def other_program(seen: Observation, job: Job) -> Any:
    return subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout


@trick
def replace_itself(seen: Observation, job: Job) -> Any:
    return os.execv("/bin/true", ["true"])  # noqa: S606


@trick
def exit_quietly(seen: Observation, job: Job) -> Any:
    os._exit(0)


@trick
def base_exception(seen: Observation, job: Job) -> Any:
    class Worse(BaseException):
        pass

    raise Worse("not an Exception")


@trick
def interrupt(seen: Observation, job: Job) -> Any:
    raise KeyboardInterrupt


@trick
def ten_gigabytes(seen: Observation, job: Job) -> Any:
    return Reconstruction(inputs=[torch.ones(10 * 2**28)], label_counts={0: 1})


@trick
def two_hundred_megabytes(seen: Observation, job: Job) -> Any:
    return Reconstruction(inputs=[torch.ones(50 * 2**20)], label_counts={0: 1})


@trick
def many_labels(seen: Observation, job: Job) -> Any:
    return Reconstruction(label_counts={0: 10**15})


@trick
def memory(seen: Observation, job: Job) -> Any:
    kept = []
    while True:
        kept.append(bytearray(2**28))


@trick
def native_loop(seen: Observation, job: Job) -> Any:
    return re.match(r"(a+)+$", "a" * 60 + "b")


@trick
def for_ever(seen: Observation, job: Job) -> Any:
    while True:
        job.progress(0, 1.0)


@trick
def delete_files(seen: Observation, job: Job) -> Any:
    shutil.rmtree(RUN)
    return ["deleted"]


@trick
def write_rows(seen: Observation, job: Job) -> Any:
    with open(f"{RUN}/attacks.jsonl", "a") as log:
        log.write("{}\n")
    return ["written"]


@trick
def make_readable(seen: Observation, job: Job) -> Any:
    os.chmod(DATA, 0o777)  # noqa: S103
    return ["changed"]


@trick
def kill_parents(seen: Observation, job: Job) -> Any:
    os.kill(os.getppid(), signal.SIGKILL)
    return ["killed"]


@trick
def kill_all(seen: Observation, job: Job) -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    return ["killed"] if libc.kill(-1, signal.SIGKILL) == 0 else None


@trick
def network(seen: Observation, job: Job) -> Any:
    return socket.create_connection(("127.0.0.1", 22), timeout=1)


@trick
def shared_memory(seen: Observation, job: Job) -> Any:
    return multiprocessing.shared_memory.SharedMemory(name="fedsim", create=True, size=8).name


@trick
def forged_frames(seen: Observation, job: Job) -> Any:
    text = json.dumps([{"label_counts": [[0, 10**15]], "inputs": 10**9}]).encode()
    body = struct.pack(">Q", len(text)) + text
    os.write(3, b"r" + struct.pack(">Q", len(body)) + body)
    return None


@trick
def endless_frame(seen: Observation, job: Job) -> Any:
    os.write(3, b"r" + struct.pack(">Q", 2**62))
    return None


@trick
def deep_json(seen: Observation, job: Job) -> Any:
    text = b"[" * 10**5
    os.write(3, b"p" + struct.pack(">Q", len(text)))
    left = memoryview(text)
    while left:
        left = left[os.write(3, left) :]
    return None


@trick
def claims_denial(seen: Observation, job: Job) -> Any:
    text = json.dumps(
        {"kinds": ["DiskFull", "RunFolderError"], "text": "\ud800 <script>red()"}
    ).encode()
    os.write(3, b"e" + struct.pack(">Q", len(text)) + text)
    return None


@trick
def lift_limits(seen: Observation, job: Job) -> Any:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return ["lifted"]


@trick
def become_root(seen: Observation, job: Job) -> Any:
    os.setuid(0)
    return ["root"]


@trick
def leave_the_socket(seen: Observation, job: Job) -> Any:
    os.close(3)
    time.sleep(10**6)


@trick
def deep_folders(seen: Observation, job: Job) -> Any:
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    return None


@trick
def pages_in_pipes(seen: Observation, job: Job) -> Any:
    _, end = os.pipe()
    page = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(4096)), 4096)
    return ["kept"] if ctypes.CDLL(None).vmsplice(end, page, 1, 0) > 0 else None


@trick
def signals_of_files(seen: Observation, job: Job) -> Any:
    fcntl.ioctl(3, 0x8901, struct.pack("i", os.getppid()))
    return ["owned by", fcntl.fcntl(3, fcntl.F_GETOWN)]


@trick
def emptied_files(seen: Observation, job: Job) -> Any:
    return os.open(__file__, os.O_RDONLY | os.O_TRUNC)


@trick
def long_progress(seen: Observation, job: Job) -> Any:
    os.write(3, b"p" + struct.pack(">Q", 2**25) + b"[" * 1000)
    return None


@trick
def nameless_error(seen: Observation, job: Job) -> Any:
    text = b'{"kinds": [], "text": ""}'
    os.write(3, b"e" + struct.pack(">Q", len(text)) + text)
    return None
