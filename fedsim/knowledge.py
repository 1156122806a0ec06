"""What a threat model can grant an adversary: flags, and presets of them."""

import enum
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from fedsim.errors import ScenarioError, did_you_mean


class Knowledge(enum.Flag):
    """What a threat model can grant. Combine with `|`."""

    HEAD_GRADIENT = enum.auto()
    GRADIENT = enum.auto()
    BUFFERS = enum.auto()
    MODEL = enum.auto()
    BATCH_SIZE = enum.auto()
    LOCAL_STEPS = enum.auto()
    LEARNING_RATE = enum.auto()
    LABELS = enum.auto()
    LENGTHS = enum.auto()
    AUXILIARY = enum.auto()
    PRIOR = enum.auto()
    DEFENSE = enum.auto()
    HISTORY = enum.auto()

    @classmethod
    def parse(cls, grants: str | Iterable[str]) -> "Knowledge":
        """Read a preset's name or a list of knowledge names; GRADIENT includes HEAD_GRADIENT.

        Raises:
            ScenarioError: There is no preset or knowledge of that name.
        """
        if isinstance(grants, str):
            if grants not in PRESETS:
                raise ScenarioError(
                    f"threat.grants: there is no preset '{grants}'. {did_you_mean(grants, PRESETS)}"
                    " Or give a list of knowledge names."
                )
            return PRESETS[grants]
        granted = cls(0)
        for name in grants:
            if name not in cls.__members__:
                raise ScenarioError(
                    f"threat.grants: there is no knowledge '{name}'. "
                    f"{did_you_mean(name, cls.__members__)}"
                )
            granted |= cls[name]
        return granted.closed()

    def closed(self) -> "Knowledge":
        """Add what follows: the whole gradient includes the head's."""
        return self | Knowledge.HEAD_GRADIENT if Knowledge.GRADIENT in self else self

    def names(self) -> list[str]:
        """The names of the flags that are set, in declaration order."""
        return [str(flag.name) for flag in self]


_GRADIENTS = (
    Knowledge.HEAD_GRADIENT
    | Knowledge.GRADIENT
    | Knowledge.BATCH_SIZE
    | Knowledge.LOCAL_STEPS
    | Knowledge.LEARNING_RATE
)
_WHITE_BOX = _GRADIENTS | Knowledge.MODEL | Knowledge.BUFFERS

PRESETS: dict[str, Knowledge] = {
    "gradients": _GRADIENTS,
    "white-box": _WHITE_BOX,
    "auxiliary": _WHITE_BOX | Knowledge.AUXILIARY,
    "full": ~Knowledge(0),
}
"""The first three are the levels of Wainakh et al. (LLG), section 4: shared gradients only,
white-box model, auxiliary data. `full` grants everything, labels and lengths too."""


def __getattr__(name: str) -> Any:
    # They live in a module that imports this one, and have been imported from here.
    if name in ("Supplier", "ThreatModel"):
        return getattr(import_module("fedsim.threat"), name)
    raise AttributeError(f"module 'fedsim.knowledge' has no attribute '{name}'")
