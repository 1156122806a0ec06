"""What a process does around a run: one thread, a report in the end, the name of its device."""

import contextlib
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fedsim.engine import engine_name
from fedsim.errors import FedsimError, ScenarioError
from fedsim.isolation import IsolatedAdversary
from fedsim.references import references
from fedsim.report import write_report
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun
from fedsim.scenario.devices import check_device, device_of, what_torch_sees
from fedsim.seeds import WIDE


@contextlib.contextmanager
def reporting(ledger: Ledger, diagnose: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Finish a run folder and write its report when the code within ends, for whatever reason.

    Args:
        ledger: The run folder.
        diagnose: Called before the report of a run that has ended well.
    """
    try:
        yield
    except BaseException:
        # The error that ended the run matters more than that of a report without rows.
        with contextlib.suppress(FedsimError):
            ledger.finish()
            write_report(ledger.folder)
        raise
    ledger.finish()
    try:
        diagnose()
    finally:
        write_report(ledger.folder)


def device_name(scenario: Scenario) -> str:
    """The name of the GPU or processor that attacks run on."""
    device = device_of(scenario.engine, "attack")
    if device.type == "cuda" and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(device))
    with contextlib.suppress(OSError):  # not on every system
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, so that sums are rounded alike on every engine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_importable(scenario: Scenario) -> None:
    """Refuse code of the running script or notebook, for engines whose workers are processes.

    Raises:
        ScenarioError: A reference names the module `__main__`.
    """
    own = [one for one in references(scenario.to_dict()) if one.startswith("__main__:")]
    if own:
        name = own[0].partition(":")[2]
        raise ScenarioError(
            f"{own[0]} is defined in the script or notebook that runs, and workers are other "
            f'processes, which cannot import it. Move it to a module (in mine.py: "mine:{name}"), '
            "or set engine.workers = 1"
        )


def check_gpus(scenario: Scenario, *, clients_too: bool) -> None:
    """Refuse GPUs that this machine does not have, unless a Ray cluster provides them.

    Args:
        scenario: What is to run.
        clients_too: Whether clients train in it, and not attacks alone.

    Raises:
        ScenarioError: It says what PyTorch finds, and how to go on.
    """
    engine = scenario.engine
    elsewhere = engine.address and engine_name(scenario) == "ray"
    if not elsewhere:
        check_device(engine)
    for key in ("gpus_per_attack", *["gpus_per_client"] * clients_too):
        asked: float = getattr(engine, key)
        if asked > 1 and not asked.is_integer():
            raise ScenarioError(
                f"engine.{key} = {asked:g}: expected a share of one GPU, below 1, or a whole number"
            )
        if asked and not elsewhere and not torch.cuda.is_available():
            raise ScenarioError(
                f"needs a GPU (engine.{key} = {asked:g}), and {what_torch_sees()}. "
                f"Set engine.{key} = 0, or engine.address to a Ray cluster that has one"
            )
        if asked and engine.device not in ("auto", "cuda"):
            raise ScenarioError(
                f"engine.{key} = {asked:g} lets Ray choose a GPU, and engine.device = "
                f'"{engine.device}". Leave out one of the two'
            )


def attack_cautions(built: BuiltRun) -> list[str]:
    """Warnings of a scenario's adversaries: properties of the model that weaken them.

    Raises:
        DataError: An attack is impossible, because something that it needs is missing.
    """
    if not built.adversaries:
        return []
    model, cautions = built.task.victim({}), []
    isolated = [label for label, _, one in built.adversaries if isinstance(one, IsolatedAdversary)]
    if isolated and built.scenario.seed < WIDE:
        cautions.append(
            f"seed = {built.scenario.seed} is below 2^32. From the initial weights an adversary "
            f"({', '.join(isolated)}) can find it by trial, and with it all draws of the clients, "
            'whatever its process may not read. Set seed = "random"'
        )
    if references(built.scenario.task) and model.drops:
        cautions.append(
            "task.model drops units at random, by masks that no adversary knows: attacks that "
            "match gradients recover less. Set p = 0 to see what leaks without it"
        )
    optimizer = built.scenario.training.optimizer
    if optimizer != "sgd":
        cautions.append(
            f'training.optimizer = "{optimizer}" scales every coordinate of a step, and one step '
            "from its new state sends little more than signs: adversaries see the change of the "
            "weights as if SGD had made it, marked as inexact, and recover less"
        )
    for label, _, adversary in built.adversaries:
        cautions += [f"{label}: {text}" for text in adversary.cautions(model)]
    return cautions
