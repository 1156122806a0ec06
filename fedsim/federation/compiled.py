"""Calls of models that were compiled in place (`net.compile()`), of which torch calls no hooks."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

_COMPILE = nn.Module.compile
_HOOKS: list[tuple[Callable[..., None], Callable[..., None]]] = []


def _compile(module: nn.Module, *args: Any, **settings: Any) -> None:
    """Compile a module in place, and let what watches hear of its calls."""
    _COMPILE(module, *args, **settings)
    compiled: Any = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        hooks, ended = [*_HOOKS], tuple[Any, ...]()
        for before, _ in hooks:
            before(module, args)
        try:
            output = compiled(*args, **kwargs)
            ended = (kwargs, output)
        finally:
            for _, behind in hooks:
                behind(module, args, *ended)
        return output

    module._compiled_call_impl = call


@contextlib.contextmanager
def compiled_calls(before: Callable[..., None], behind: Callable[..., None]) -> Iterator[None]:
    """Call hooks around each call of a module that is compiled in place from now on.

    Args:
        before: Called with the module and its arguments.
        behind: Called with the module, its arguments and, unless the call raised, its keyword
            arguments and its output.
    """
    hooks = before, behind
    _HOOKS.append(hooks)
    nn.Module.compile = _compile  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        _HOOKS.remove(hooks)
        if not _HOOKS:
            nn.Module.compile = _COMPILE  # type: ignore[method-assign]
