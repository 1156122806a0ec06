"""How many clients a GPU trains at once (`engine.vectorize = "auto"`)."""

import math

import torch

from fedsim.engine import workers
from fedsim.engine.preflight import check_vectorize
from fedsim.engine.process import check_gpus
from fedsim.errors import FedsimError, ScenarioError
from fedsim.scenario import Scenario
from fedsim.scenario.built import build
from fedsim.scenario.devices import device_of
from fedsim.seeds import isolated
from fedsim.training.local import local_training
from fedsim.training.together import check_together, train_together

SHARE = 0.8
"""The part of a GPU's memory that clients may take; PyTorch itself needs some of the rest."""


def packed(scenario: Scenario) -> int:
    """The number of clients that fit on a GPU at once, by the memory that one of them takes.

    One client is trained for that. The result depends on the card and the scenario only, not on
    what else runs on the card; if that is too much, `train_together` halves the number.

    Args:
        scenario: The scenario, of whose clients the first is measured.

    Returns:
        The number for each worker, at most the clients that it gets in a round; 0 on a CPU, and
        if clients of the scenario, or of a point of its sweep, cannot be trained at once.

    Raises:
        ScenarioError: The GPU is not there, or is one of a Ray cluster's other machines.
    """
    device = device_of(scenario.engine, "client")
    if device.type != "cuda":
        return 0
    check_gpus(scenario, clients_too=True)
    if not torch.cuda.device_count():
        raise ScenarioError(
            'engine.vectorize = "auto" measures a GPU of this machine, which has none, and not '
            "those of a Ray cluster. State a number of clients, or 0"
        )
    built = build(scenario)
    task, settings = built.task, scenario.training
    try:
        check_together(built.defenses, settings.optimizer, drops=task.victim({}).drops)
    except ScenarioError:
        return 0
    module = task.module().train().to(device)
    batches = task.batches(0, 1, batch_size=settings.batch_size, steps=settings.local_steps)
    with isolated(scenario.seed, "packing"):
        one = local_training(scenario, task, module, batches, torch.Generator(), ())
        trained = task.trained(module)
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        try:
            train_together(one, [one.batches], task.arrays(module), loss=task.loss, trained=trained)
            each = torch.cuda.max_memory_allocated(device) - held
        except torch.OutOfMemoryError:
            each = torch.cuda.get_device_properties(device).total_memory
        except Exception:  # the model allows no batch of models, or no training at all
            return 0
    try:
        for point in scenario.points().values() if scenario.sweep else ():
            built = build(point, after=built, adversaries=())
            check_vectorize(built, built.task.module().train().to(device))
    except FedsimError:  # a point that cannot run at all is refused in its turn
        return 0
    number = workers(scenario)
    sharing = math.ceil(number / torch.cuda.device_count())
    room = SHARE * torch.cuda.get_device_properties(device).total_memory / sharing
    return max(1, min(math.ceil(settings.per_round / number), int(room / max(1, each))))
