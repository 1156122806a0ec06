"""A module's parameters, buffers and submodules, found without walking it at each use.

`nn.Module` walks all submodules for each of `named_parameters`, `named_buffers`, `state_dict` and
`train`, which for a small model takes a tenth of its training step.
"""

import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Parts:
    """What a module consists of.

    Attributes:
        parameters: As of `named_parameters()`.
        buffers: As of `named_buffers()`.
        state: As of `state_dict(keep_vars=True)`.
        submodules: All modules within it.
        registries: Return what is in each dictionary in which these and the module itself register
            their parts.
        registered: What was in them.
    """

    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    submodules: Sequence[nn.Module]
    registries: Sequence[Callable[[], Iterable[Any]]]
    registered: Sequence[Any]


# Values must not refer to their key, or it would stay for ever.
_KNOWN: weakref.WeakKeyDictionary[nn.Module, Parts] = weakref.WeakKeyDictionary()


def parts(module: nn.Module) -> Parts:
    """The parts of a module, which is walked again once one of them was added or replaced."""
    known = _KNOWN.get(module)
    if known is not None:
        registered = _registered(known.registries)
        same = len(registered) == len(known.registered)
        if same and all(map(operator.is_, registered, known.registered)):
            return known
    submodules = list(module.modules())[1:]
    registries = [
        kind.values
        for one in (module, *submodules)
        for kind in (one._modules, one._parameters, one._buffers)
    ]
    known = _KNOWN[module] = Parts(
        dict(module.named_parameters()),
        dict(module.named_buffers()),
        dict(module.state_dict(keep_vars=True)),
        submodules,
        registries,
        _registered(registries),
    )
    return known


def training_mode(module: nn.Module) -> None:
    """Call `module.train()`, unless all of its modules are in training mode."""
    if not (module.training and all(part.training for part in parts(module).submodules)):
        module.train()


def _registered(registries: Sequence[Callable[[], Iterable[Any]]]) -> list[Any]:
    return list(itertools.chain.from_iterable([values() for values in registries]))
