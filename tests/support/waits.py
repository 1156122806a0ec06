"""What in a computation would wait for a GPU, or leave it, seen on a CPU.

A GPU works through a queue. Python waits for all of it whenever it reads a value, or asks for a
shape that depends on values (an index by a mask). Two of torch's modes see every such call.
"""

import re
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

OWN = re.compile(r"/(fedsim|adversaries)/")
"""In the path of fedsim's own modules."""

READS = {"item", "tolist", "numpy", "cpu", "__array__",
         "__bool__", "__float__", "__int__", "__index__", "__contains__"}  # fmt: skip
SHAPES = {"nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim"}
"""Operations whose result's shape depends on values."""

MAKES = {"zeros", "ones", "empty", "full", "arange", "eye", "linspace", "scalar_tensor",
         "tril_indices", "tensor", "rand", "randn", "randint", "randperm"}  # fmt: skip
"""Functions that allocate on the CPU if no device is named."""


class _Calls(TorchFunctionMode):
    """Python's own reads of tensors, and tensors made on no device in particular."""

    def __init__(self, seen: Counter[str], made: Counter[str]) -> None:
        super().__init__()
        self.seen, self.made, self.inside = seen, made, False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in READS and not self.inside:
            self.seen[f"{name} at {_place()}"] += 1
        given = kwargs or {}
        # Random numbers are drawn on the CPU from a job's generator, to be the same everywhere.
        if name in MAKES and given.get("device") is None and given.get("generator") is None:
            self.made[f"{name} at {_place()}"] += 1
        outer, self.inside = self.inside, self.inside or name in READS
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.inside = outer


class _Operations(TorchDispatchMode):
    """Shapes that depend on values."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation._schema.name.split("::")[1]
        masks = name in ("index", "index_put", "index_put_") and any(
            one is not None and one.dtype is torch.bool for one in args[1]
        )
        if name in SHAPES or masks:
            self.seen[f"{name} at {_place()}"] += 1
        return operation(*args, **(kwargs or {}))


def _place() -> str:
    """The innermost line of fedsim's own code."""
    for frame in reversed(traceback.extract_stack()):
        if "/tests/" not in frame.filename and OWN.search(frame.filename):
            return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
    return "elsewhere"


def waits(call: Callable[[], Any]) -> tuple[Counter[str], Counter[str]]:
    """What a call waits for, and what it makes on the CPU: how often, by operation and line."""
    seen, made = Counter[str](), Counter[str]()
    with _Operations(seen), _Calls(seen, made):
        call()
    return seen, made
