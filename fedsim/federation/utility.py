"""What a task's evaluation of a model returns, checked: numbers by name."""

from collections.abc import Mapping

import torch
from torch import nn

from fedsim.errors import FedsimError, PluginError
from fedsim.inert import line
from fedsim.libraries import brief
from fedsim.task import Task

TAKEN = ("event", "of", "point", "round", "seconds", "self")
"""Names of the other fields of the event that tells of a round."""


def utility(task: Task, module: nn.Module, client: int | None = None) -> dict[str, float]:
    """What `evaluate` of a task returns, as plain numbers, with `num_examples` if it returns that.

    Raises:
        PluginError: It raises an error, or returns anything but numbers by names that are free.
    """
    whose = f"evaluate() of task '{task.name}'"
    try:
        found = task.evaluate(module, client)
    except (FedsimError, MemoryError, OSError, torch.OutOfMemoryError):
        raise  # of the machine, or said already
    except Exception as error:
        raise PluginError(f"{whose} raised {brief(error)}") from error
    if not isinstance(found, Mapping):
        raise PluginError(f"{whose} returned {found!r:.80}; expected numbers by name")
    numbers = {}
    for name, value in found.items():
        if not isinstance(name, str) or name in TAKEN:
            raise PluginError(
                f"{whose} returned a value named {name!r:.80}; expected a text that is none of "
                f"{', '.join(TAKEN)}: use another name"
            )
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise PluginError(
                f"{whose} returned {value!r:.80} as '{line(name)}'; expected a number"
            ) from error
    return numbers
