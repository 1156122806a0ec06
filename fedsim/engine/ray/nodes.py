"""Check that every node of a Ray cluster runs the same code as this process."""

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.errors import EngineError

PATIENCE = 60.0
"""Seconds within which a node must answer."""


def check_nodes() -> None:
    """Compare the versions on every node of the connected cluster with this process's.

    Findings are the same wherever a client or an attack runs only if the code is the same. Ray
    itself compares its own version and Python's when a node joins.

    Raises:
        EngineError: a node has another version of fedsim or of a library that results depend on,
            lacks one of them, or does not answer.
    """

    # A nested function travels by value: a node that lacks fedsim can run it as well.
    def versions() -> dict[str, str]:
        import hashlib
        import importlib.metadata
        import importlib.util
        from pathlib import Path

        found = {}
        for name in ("fedsim", "torch", "numpy", "flwr"):
            try:
                # CPU and CUDA builds ("2.13.0+cpu") may be mixed in one cluster.
                found[name] = importlib.metadata.version(name).partition("+")[0]
            except importlib.metadata.PackageNotFoundError:
                found[name] = ""
        sources = hashlib.sha256()
        for name in ("fedsim", "adversaries", "defenses"):
            package = importlib.util.find_spec(name)
            for folder in (package.submodule_search_locations or []) if package else []:
                for path in sorted(
                    p for p in Path(folder).rglob("*") if p.suffix in (".py", ".toml")
                ):
                    sources.update(path.read_bytes())
        if found["fedsim"]:
            found["fedsim"] += f" (sources {sources.hexdigest()[:8]})"
        return found

    here = versions()
    addresses = {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}  # type: ignore[no-untyped-call]
    asked = {
        node: ray.remote(versions)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote()
        for node in addresses
    }
    for node, answer in asked.items():
        where = f"the Ray node {addresses[node]}"
        try:
            there = ray.get(answer, timeout=PATIENCE)
        except GetTimeoutError as error:
            raise EngineError(
                f"{where} did not answer within {PATIENCE:g} s. Look at its log, or stop it"
            ) from error
        except RayError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise EngineError(f"{where} cannot run anything: {reason}") from error
        for name, version in here.items():
            if there[name] != version:
                found = f"has {name} {there[name]}" if there[name] else f"has no {name}"
                raise EngineError(
                    f"{where} {found}, and this process has {version}. Start every node of the "
                    "cluster from the same image or the same installation"
                )
