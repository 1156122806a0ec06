"""A module's parameters, buffers and submodules, found without walking it at each use.

`nn.Module` walks all submodules for each of `named_parameters`, `named_buffers`, `state_dict` and
`train`, which for a small model takes a tenth of its training step.
"""

import itertools
import operator
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module


@dataclass(frozen=True, slots=True)
class Parts:
    """What a module consists of.

    Attributes:
        parameters: As of `named_parameters()`.
        buffers: As of `named_buffers()`.
        state: As of `state_dict(keep_vars=True)`.
        submodules: All modules within it.
        registries: Views of the dictionaries in which these and the module itself register their
            parts.
        registered: What was in them.
    """

    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    submodules: Sequence[nn.Module]
    registries: Sequence[Collection[Any]]
    registered: Sequence[Any]


# Values must not refer to their key, or it would stay for ever.
PURE = frozenset(
    {
        *[nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear],
        *[nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ZeroPad2d, nn.MaxPool2d, nn.AvgPool2d],
        *[nn.AdaptiveAvgPool2d, nn.LayerNorm, nn.GroupNorm, nn.ReLU, nn.LeakyReLU, nn.ELU],
        *[nn.GELU, nn.SiLU, nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus],
    }
)
"""Layers that compute their output from their input and parameters alone, and change nothing."""

_GLOBAL_HOOKS: Sequence[Collection[Any]] = (
    torch_module._global_forward_pre_hooks,
    torch_module._global_forward_hooks,
    torch_module._global_backward_pre_hooks,
    torch_module._global_backward_hooks,
)
"""Hooks of all modules, which PyTorch has no public function to read."""

_KNOWN: weakref.WeakKeyDictionary[nn.Module, Parts] = weakref.WeakKeyDictionary()


def parts(module: nn.Module) -> Parts:
    """The parts of a module, which is walked again once one of them was added or replaced."""
    known = _KNOWN.get(module)
    if known is not None:
        same = sum(map(len, known.registries)) == len(known.registered)
        if same and all(map(operator.is_, _registered(known.registries), known.registered)):
            return known
    submodules = list(module.modules())[1:]
    registries = [
        kind.values()
        for one in (module, *submodules)
        for kind in (one._modules, one._parameters, one._buffers)
    ]
    known = _KNOWN[module] = Parts(
        dict(module.named_parameters()),
        dict(module.named_buffers()),
        dict(module.state_dict(keep_vars=True)),
        submodules,
        registries,
        [*_registered(registries)],
    )
    return known


def training_mode(module: nn.Module) -> None:
    """Call `module.train()`, unless all of its modules are in training mode.

    A module with a `train` of its own is asked again: it may hold some layers in evaluation mode.
    """
    if not all(
        part.training and getattr(part.train, "__func__", None) is nn.Module.train
        for part in (module, *parts(module).submodules)
    ):
        module.train()


def is_pure(module: nn.Module) -> bool:
    """Whether a forward and backward pass is known to change nothing and draw no random number.

    So is what consists of the layers in `PURE` and of plain parameters, without buffers, hooks or a
    `forward` of its own.
    """
    known = parts(module)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        not known.buffers
        and not any(_GLOBAL_HOOKS)
        and all(
            type(one) is nn.Parameter and not one._backward_hooks
            for one in known.parameters.values()
        )
        and all(
            type(one) in PURE
            and "forward" not in vars(one)
            and not any(vars(one)[k] for k in hooks)
            for one in (module, *known.submodules)
        )
    )


def _registered(registries: Iterable[Collection[Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(registries)
