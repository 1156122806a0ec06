"""The engine that runs Flower's own simulation engine, unchanged, in a process of its own.

Flower's simulation cannot be interrupted (its server thread goes on after Ctrl-C), shuts down the
Ray session of its process, and uses more memory with every run.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
import torch

from fedsim.attacking.executor import Observer
from fedsim.engine import Engine, workers
from fedsim.engine.session_folder import SessionFolder, kill_children
from fedsim.errors import ClientError, EngineError
from fedsim.records import Finding
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.scenario.devices import device_of
from fedsim.temporary import keep_in

MARK = "\x1efedsim "

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables by which torch sums in one thread, in the server and in Ray's workers, as elsewhere."""


class FlowerEngine(Engine):
    """Starts a simulation process, reads its events, and ends it on Ctrl-C."""

    def run(self, built: BuiltRun, ledger: Ledger, point: str, observer: Observer) -> None:
        """Run clients on Flower's Ray backend, and attacks in the server's process."""
        command = [sys.executable, "-m", "fedsim.engine.flower", str(ledger.folder), point]
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        session = SessionFolder()
        if session.path is not None and _environment()["RAY_ADDRESS"] == "local":
            command.append(str(session.path))
        with contextlib.closing(session), tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=_environment() | quiet,
            )
            assert process.stdin is not None  # noqa: S101 - both are pipes, as asked for
            assert process.stdout is not None  # noqa: S101
            try:
                with contextlib.suppress(BrokenPipeError):  # it says itself why it ended
                    process.stdin.write(built.scenario.model_dump_json() + "\n")
                    process.stdin.flush()
                failure, of_client = "", False
                for line in process.stdout:
                    if line.startswith(MARK):
                        event = json.loads(line.removeprefix(MARK))
                        kind = event.pop("event")
                        if kind == "findings":
                            event["findings"] = [Finding(**row) for row in event["findings"]]
                        if kind == "failure":
                            failure, of_client = event["reason"], event.get("client", False)
                        else:
                            observer(kind, **event)
                if process.wait() and of_client:  # of this point alone
                    raise ClientError(failure)
                if process.poll() or failure:
                    errors.seek(0)
                    tail = failure or errors.read()[-2000:]
                    raise EngineError(f"Flower's simulation ended with an error: {tail}")
            finally:
                if process.poll() is None:
                    kill_children(psutil.Process(process.pid))
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                process.stdout.close()


def _environment() -> dict[str, str]:
    """The environment of a simulation, whose Ray listens on loopback unless it joins a cluster."""
    own = {**os.environ, **ONE_THREAD}
    if os.environ.get("RAY_ADDRESS", "local") != "local":
        return own
    return {
        **own,
        "RAY_ADDRESS": "local",  # or Ray would join whatever cluster it finds on this machine
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Flower's actors have a `runtime_env`: workers that Ray starts before it stay idle.
        "RAY_prestart_worker_first_driver": "0",
    }


def _gpus(scenario: Scenario) -> float:
    """The GPUs that Flower reserves for a client: those stated, or an equal share."""
    engine = scenario.engine
    if engine.gpus_per_client or device_of(engine, "client") != torch.device("cuda"):
        return engine.gpus_per_client
    return 1 / math.ceil(workers(scenario) / max(1, torch.cuda.device_count()))


def _end_with_parent() -> None:
    """End this process and those below it when standard input ends: its parent was killed.

    It would go on writing to a run folder whose lock is free, beside a run that resumes.
    """

    def wait() -> None:
        sys.stdin.read()
        kill_children(psutil.Process())
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _child(folder: Path, point: str, temporary: str = "") -> None:
    """Run one point of a sweep on Flower's engine, in this process.

    The scenario is the first line of standard input, which stays open. Events go to standard
    output, one line of JSON each.

    Args:
        folder: The run folder.
        point: The name of the point.
        temporary: The folder of Ray's session; Ray chooses one if it is empty.
    """
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from fedsim.attacking.attack import AttackRunner
    from fedsim.attacking.executor import InlineExecutor
    from fedsim.engine.ray.local import without_helpers
    from fedsim.federation import federate
    from fedsim.federation.client import Answering
    from fedsim.federation.other_grids import OrderedGrid

    keep_in(temporary)
    scenario = Scenario.model_validate_json(sys.stdin.readline())
    _end_with_parent()
    ledger = Ledger(folder)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def emit(event: str, **fields: Any) -> None:
        if event == "findings":
            fields["findings"] = [dataclasses.asdict(row) for row in fields["findings"]]
        out.write(MARK + json.dumps({"event": event, **fields}, default=str) + "\n")

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            built = build(scenario)
            runner = AttackRunner(built, point)
            ordered = OrderedGrid(grid, scenario.training.clients)
            federate.run(built, ledger, ordered, InlineExecutor(runner), point, emit)
        except BaseException as error:
            client = isinstance(error, ClientError)
            reason = str(error) if client else f"{type(error).__name__}: {error}"
            emit("failure", reason=reason, client=client)
            raise

    with without_helpers(shows_output=True):
        run_simulation(
            server_app=server,
            client_app=Answering(),
            num_supernodes=scenario.training.clients,
            backend_config={
                "init_args": {
                    "num_cpus": workers(scenario),
                    **({"_temp_dir": temporary} if temporary else {}),
                },
                "client_resources": {
                    "num_cpus": scenario.engine.cpus_per_client,
                    "num_gpus": _gpus(scenario),
                },
            },
        )


if __name__ == "__main__":
    _child(Path(sys.argv[1]), *sys.argv[2:])
