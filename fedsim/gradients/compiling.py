"""An objective with its gradient: evaluated by autograd, or as a compiled graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedsim.job import Job

Objective = Callable[[Tensor, Tensor], Tensor]
"""Values (R,) of points (R, n) of victims (R,) int64, differentiable.

The value of a row depends on its own point and victim only."""

Evaluation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Values (R,) and gradients (R, n) at points (R, n) of victims (R,)."""

BACKEND = "inductor"
"""The compiler, as `torch.compile` names it."""

READS = frozenset({"item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__"})
"""Methods by which Python reads a tensor's values."""


def evaluated(objective: Objective) -> Evaluation:
    """The objective with its gradient: its graph if it is `Compiled`, else by autograd."""
    if isinstance(objective, Compiled):
        return objective.evaluate

    def evaluate(points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_(True)
        values = objective(points, victims)
        (gradients,) = torch.autograd.grad(values.sum(), points)
        return values.detach(), gradients

    return evaluate


def compiled(objective: Objective, job: Job) -> Objective:
    """The objective, to be compiled if the job asks for it (`engine.compile`)."""
    return Compiled(objective) if job.compiled else objective


class Compiled:
    """An objective that has its gradient as a graph, compiled by `torch.compile` when first used.

    Autograd runs once, while the graph is recorded, so that models of any kind and second
    derivatives can be compiled. A graph has a fixed number of rows, those of the first evaluation.
    Fewer rows are filled up.

    Args:
        objective: It must not read values in Python, as these would become constants.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._graph: Callable[..., Any] | None = None
        self._rows = 0

    def __call__(self, points: Tensor, victims: Tensor) -> Tensor:
        """Values (R,) alone, which are not compiled."""
        return self._objective(points, victims)

    def evaluate(self, points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
        """Values (R,) and gradients (R, n).

        Raises:
            ValueError: The objective reads values, or the compiler fails.
        """
        points, rows = points.detach(), len(points)
        if rows > self._rows:
            self._rows, self._graph = rows, None
        filled = torch.arange(self._rows, device=points.device).clamp(max=rows - 1)
        points, victims = points[filled], victims[filled]
        if self._graph is None:
            from torch.fx.experimental.proxy_tensor import make_fx  # takes a second

            with _NoReads():
                graph = make_fx(evaluated(self._objective))(points, victims)
            # Not the module, of which torch warns if hooks are set for all modules.
            self._graph = torch.compile(graph.forward, backend=BACKEND, dynamic=False)
        try:
            with torch.no_grad():
                values, gradients = self._graph(points, victims)
        except Exception as error:
            raise ValueError(
                f"engine.compile = true, and torch.compile fails: {' '.join(str(error).split())}. "
                "On a CPU it needs a C++ compiler. Set engine.compile = false"
            ) from error
        return values[:rows], gradients[:rows]


class _NoReads(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in READS:
            raise ValueError(
                "engine.compile = true, and this objective reads values in Python "
                f"({function.__name__}), which no graph can. Set engine.compile = false"
            )
        return function(*args, **(kwargs or {}))
