"""Where clients and attacks compute: `engine.device`, and the rule behind "auto"."""

from typing import Literal

import torch

from fedsim.errors import ScenarioError
from fedsim.scenario.settings import Engine


def device_of(engine: Engine, what: Literal["client", "attack"]) -> torch.device:
    """The device on which clients train or attacks compute.

    "auto" is the first GPU if PyTorch finds one, else the CPU. If `gpus_per_client` or
    `gpus_per_attack` is stated, only what reserves GPUs computes on one.

    Args:
        engine: The `engine` table.
        what: Whose device is asked for.
    """
    if engine.device != "auto":
        return torch.device(engine.device)
    own, other = engine.gpus_per_client, engine.gpus_per_attack
    if what == "attack":
        own, other = other, own
    wanted = bool(own) or not other
    return torch.device("cuda" if wanted and torch.cuda.is_available() else "cpu")


def device_here(engine: Engine, what: Literal["client", "attack"]) -> torch.device:
    """The same for work of this process itself: the CPU where a cluster has the GPUs."""
    device = device_of(engine, what)
    return device if device.type == "cpu" or torch.cuda.device_count() else torch.device("cpu")


def settled(engine: Engine) -> Engine:
    """The table with the device that "auto" means on this machine, which a resumed run keeps."""
    if engine.device != "auto" or engine.gpus_per_client or engine.gpus_per_attack:
        return engine
    return engine.model_copy(update={"device": str(device_of(engine, "client"))})


def check_device(engine: Engine) -> None:
    """Refuse a GPU that this process does not have.

    Raises:
        ScenarioError: PyTorch finds no GPU, or fewer than `engine.device` counts.
    """
    device = torch.device("cpu" if engine.device == "auto" else engine.device)
    if device.type == "cpu":
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not found:
        raise ScenarioError(
            f'engine.device = "{engine.device}", and {what_torch_sees()}. '
            'Set engine.device = "cpu", or leave it out'
        )
    if (device.index or 0) >= found:
        there = "cuda:0" if found == 1 else f"cuda:0 to cuda:{found - 1}"
        raise ScenarioError(
            f'engine.device = "{engine.device}", and PyTorch finds {there}. '
            'Set engine.device to a GPU that is there, or to "cpu"'
        )


def what_torch_sees() -> str:
    """Why this process has no GPU, in a clause."""
    version = torch.__version__
    if torch.version.cuda is None:
        return f"this PyTorch ({version}) is built for CPUs alone"
    return f"this PyTorch ({version}, for CUDA {torch.version.cuda}) finds no GPU"
