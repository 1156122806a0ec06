"""The Ray cluster that `engine.address` means, and whether it is one."""

import os

import grpc
import psutil
from ray._private import services
from ray.core.generated.gcs_service_pb2 import (  # type: ignore[attr-defined]
    CheckAliveRequest,
)
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

try:
    from ray._private.grpc_utils import init_grpc_channel
except ImportError:  # older versions of Ray
    from ray._private.utils import (  # type: ignore[attr-defined, no-redef]
        init_grpc_channel,
    )

from fedsim.errors import EngineError
from fedsim.temporary import RAY

SILENT = (
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""What a call ends with where no Ray cluster answers."""


def found_cluster() -> tuple[str, str]:
    """Find the address as Ray does, which would then try for minutes to reach it.

    It is that of RAY_ADDRESS, or else of the only cluster with a node on this machine, or of the
    last one that `ray start` started or joined. A session that fedsim started for one run, which
    Ray would join as well, is none; it is known by its temporary folder, if that path is short
    enough for Ray to use it.

    Returns:
        The address that Ray would connect to, and where it is stated.

    Raises:
        EngineError: No cluster is stated or has a node here, or several have one.
    """
    stated = os.environ.get("RAY_ADDRESS", "")
    if stated == "local":
        raise EngineError(
            'engine.address = "auto" means RAY_ADDRESS, which is "local" and no cluster. Unset '
            "RAY_ADDRESS, state engine.address = HOST:PORT of the head, or leave out the address"
        )
    if stated not in ("", "auto"):
        return _reachable(stated), "RAY_ADDRESS"
    running, latest = _running(), services.find_bootstrap_address(None)
    if len(running) == 1:
        return _reachable(running.pop()), "the node on this machine"
    if latest:
        return _reachable(latest), "the last ray start on this machine"
    if running:
        raise EngineError(
            f'engine.address = "auto", and this machine has nodes of {len(running)} Ray clusters: '
            f"{', '.join(sorted(running))}. State one of them as engine.address"
        )
    raise EngineError(
        'engine.address = "auto", and Ray finds no node on this machine. Start one (ray '
        "start --head, or ray start --address=HEAD:6379), state HOST:PORT of the head, or leave "
        "out the address"
    )


def check_head(address: str, named: str) -> None:
    """Check that a Ray cluster's head answers where something accepts connections.

    Args:
        address: HOST:PORT.
        named: What the error calls it.

    Raises:
        EngineError: Something else accepts them, or there is no answer within 5 s.
    """
    channel = init_grpc_channel(address, options=[("grpc.enable_http_proxy", 0)])
    try:
        NodeInfoGcsServiceStub(channel).CheckAlive(CheckAliveRequest(), timeout=5)  # type: ignore[no-untyped-call]
    except grpc.RpcError as error:
        if error.code() in SILENT:
            raise EngineError(
                f"something accepts connections at engine.address = {named}, but no Ray "
                "cluster's head answers there. State the HOST:PORT that `ray start --head` prints "
                "(its port is 6379 by default; the dashboard's and Ray Client's are others)"
            ) from error
    finally:
        channel.close()


def _running() -> set[str]:
    """The clusters whose nodes run on this machine."""
    found = set()
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        of_a_run = any(f"{os.sep}{RAY}" in word for word in words)
        if (process.info["name"] or "").startswith("raylet") and not of_a_run:
            found |= {word.partition("=")[2] for word in words if word.startswith("--gcs-address=")}
    return found - {""}


def _reachable(address: str) -> str:
    """The address with this machine's own in place of loopback, which Ray does not connect to."""
    host, _, port = address.rpartition(":")
    stated = host.strip("[]")
    own = services.resolve_ip_for_localhost(stated) if stated else stated
    if own == stated:
        return address
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
