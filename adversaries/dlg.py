"""DLG: the training images themselves, by matching the shared gradient."""

from collections import Counter
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.adversary import Adversary, Job
from fedsim.gradients import squared_distance
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction

__all__ = ["DLG"]

STALLED = 25
"""Outer steps without a fall of 5 % after which a restart is given up."""

RELATIVE = 1e-9
"""Share of the gradient's squared norm that a match must fall below, besides `tolerance`: as a
model is trained its gradients shrink, and an absolute threshold soon means nothing."""

FLOOR = 1e-6
"""A start that stalls below this share has reached the rounding of what was sent, not failed."""

CHECKED = 10
"""Outer steps (about 200 evaluations) after which a distance beyond `diverged` is hopeless."""


class DLG(Adversary):
    """Inputs and labels of a batch, found by making a dummy batch whose gradient is the same.

    Dummy inputs x' and label logits y' start from N(0, 1); L-BFGS (lr 1, 20 inner steps, history
    100) minimises D = sum over parameters of ||dL(x', softmax(y'))/dW - dL(x, y)/dW||^2. A start
    that diverges (D is NaN, Inf, or beyond `diverged` after 10 outer steps) or stalls (D falls by
    less than 5 % in 25 outer steps) is given up for a new one; the restart with the lowest D is
    kept. The truth has no say in that.

    Needs the whole gradient, the model the client started from (twice differentiable: sigmoid or
    tanh, no ReLU or max-pooling for good results) and the number of examples. Assumes that the
    gradient is the mean over one batch; after several local steps it is matched as if the whole
    were one batch at the initial weights, an approximation that gets worse with every step.

    Claims one float32 tensor of `spec.input_shape` an example, not clamped to the input range, and
    its label. The order of the examples cannot be told.
    """

    name: ClassVar[str] = "dlg"
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = frozenset(
        {"inputs", "labels", "label_counts", "label_set", "objective", "outcomes"}
    )
    cites: ClassVar[str] = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, Algorithm 1"

    iterations: int = Field(
        default=300, ge=1, description="L-BFGS outer steps a start, of up to 20 inner steps each"
    )
    restarts: int = Field(
        default=3, ge=0, description="new starts when one diverges or stalls; 0: a single start"
    )
    line_search: Literal["none", "strong_wolfe"] = Field(
        default="strong_wolfe",
        description='L-BFGS step length: "strong_wolfe", or "none" as in the authors\' code '
        "(diverges more often)",
    )
    labels_from: str | None = Field(
        default=None,
        description='where the labels come from: null (optimised with the inputs), "given" (the '
        'threat model grants LABELS), or another adversary by name, such as "idlg" or "llg"',
    )
    tolerance: float = Field(
        default=4e-6,
        ge=0,
        description="squared gradient distance at which the match is done, if that is also below "
        "1e-9 of the gradient's squared norm",
    )
    diverged: float = Field(
        default=10.0,
        gt=0,
        description="squared gradient distance beyond which a start is given up after 10 outer "
        "steps; raise it for models with large gradients",
    )
    precision: Literal["float32", "float64"] = Field(
        default="float64",
        description="floating-point type of the optimisation; float32 is no faster on a CPU and "
        "comes less close",
    )

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient; raises `ValueError` where gradient and model do not fit."""
        labels = self._labels(seen, job)
        match = _Match(seen, labels, job.device, getattr(torch, self.precision))
        best, best_distance = match.start(job.rng), float("inf")
        point, outcomes = best, []
        while True:
            found, distance, outcome = self._descend(match, point, job)
            outcomes.append(outcome)
            if distance < best_distance:
                best, best_distance = found, distance
            if outcome in ("matched", "budget") or len(outcomes) > self.restarts:
                break
            point = match.start(job.rng)

        inputs, soft = match.split(best)
        claimed = soft.argmax(dim=1).cpu()
        return Reconstruction(
            inputs=list(inputs.float().cpu()),
            labels=claimed,
            label_counts=dict(sorted(Counter(claimed.tolist()).items())),
            label_set=frozenset(claimed.tolist()),
            objective=best_distance,
            outcomes=tuple(outcomes),
            trace=tuple(job.trace),
            diagnostics={
                "restarts": len(outcomes) - 1,
                "closures": match.evaluations,
                "exact_gradient": seen.exact,
            },
        )

    def _descend(self, match: "_Match", start: Tensor, job: Job) -> tuple[Tensor, float, str]:
        """One start: the point with the lowest distance, that distance, and how it ended."""
        point = start.clone().requires_grad_(True)
        best, lowest, outcome = start, float("inf"), "steps"
        # L-BFGS has absolute thresholds of its own; a small gradient's match would end at once.
        scale = max(1.0, 1 / match.norm)
        search = None if self.line_search == "none" else self.line_search
        optimizer = torch.optim.LBFGS([point], history_size=100, line_search_fn=search)

        def closure() -> Tensor:
            nonlocal best, lowest
            distance = match.distance(point)
            value = float(distance.detach())
            if not value < float("inf"):
                raise _Diverged
            if value < lowest:
                best, lowest = point.detach().clone(), value
            (gradient,) = torch.autograd.grad(distance, point)
            point.grad = gradient * scale
            return distance.detach() * scale

        falls = [lowest]
        for _ in job.steps(self.iterations):
            try:
                optimizer.step(closure)  # type: ignore[no-untyped-call]
            except _Diverged:
                outcome = "diverged"
            falls.append(lowest)
            job.progress(job.iterations, lowest)
            if outcome == "diverged":
                break
            if lowest < min(self.tolerance, RELATIVE * match.norm):
                outcome = "matched"
                break
            if len(falls) > CHECKED and lowest > self.diverged:
                outcome = "diverged"
                break
            if len(falls) > STALLED and lowest > 0.95 * falls[-STALLED]:
                outcome = "stalled" if lowest > FLOOR * match.norm else "matched"
                break
        if outcome == "steps" and job.budget is not None and job.iterations >= job.budget:
            outcome = "budget"
        return best, lowest, outcome

    def _labels(self, seen: Observation, job: Job) -> Tensor | None:
        if self.labels_from is None:
            return None
        if self.labels_from == "given":
            found: Tensor | None = seen.know(Knowledge.LABELS)
        else:
            found = self.parts()["labels_from"].reconstruct(seen, job).labels
        count = 0 if found is None else len(found)
        size = seen.know(Knowledge.BATCH_SIZE)
        if found is None or count != size:
            raise ValueError(
                f"labels_from = '{self.labels_from}' gives {count} labels; the update holds "
                f"{size} examples. Use an adversary that finds one label an example, such as llg"
            )
        return found


class _Diverged(Exception):
    """The distance is NaN or Inf."""


class _Match:
    """The gradient distance as a function of one flat vector: the inputs, then label logits.

    labels: fixed hard labels (B,), or None to optimise soft ones.
    """

    def __init__(
        self, seen: Observation, labels: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> None:
        if seen.spec.input_shape is None:
            raise ValueError("DLG needs inputs of a fixed shape; this task's inputs vary")
        self.model = seen.know(Knowledge.MODEL).copy().to(device)
        self.model.module.to(dtype)
        observed = seen.know(Knowledge.GRADIENT)
        self.names = [name for name in self.model.parameters() if name in observed]
        if not self.names:
            raise ValueError("the gradient names none of the model's trained parameters")
        self.theirs = {name: observed[name].to(device, dtype) for name in self.names}
        for name, value in self.theirs.items():
            if not torch.isfinite(value).all():
                raise ValueError(f"the gradient of '{name}' holds NaN or Inf")
        self.norm = float(sum(value.square().sum() for value in self.theirs.values()))
        if not self.norm:
            raise ValueError("the gradient is zero throughout: there is nothing to match")
        size = int(seen.know(Knowledge.BATCH_SIZE))
        self.inputs_shape = (size, *seen.spec.input_shape)
        self.labels_shape = (size, seen.spec.classes)
        self.labels = None if labels is None else labels.to(device)
        self.device, self.dtype = device, dtype
        self.evaluations = 0

    def start(self, rng: torch.Generator) -> Tensor:
        """A new starting point, N(0, 1) in every coordinate, from the job's generator."""
        logits = 0 if self.labels is not None else torch.Size(self.labels_shape).numel()
        count = torch.Size(self.inputs_shape).numel() + logits
        return torch.randn(count, generator=rng).to(self.device, self.dtype)

    def split(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and targets (B, classes), soft, or one-hot where the labels are fixed."""
        count = torch.Size(self.inputs_shape).numel()
        if self.labels is not None:
            target = torch.nn.functional.one_hot(self.labels, self.labels_shape[1]).to(self.dtype)
        else:
            target = point[count:].view(self.labels_shape).softmax(dim=1)
        return point[:count].view(self.inputs_shape), target

    def distance(self, point: Tensor) -> Tensor:
        """D, a scalar that can be differentiated with respect to the point."""
        self.evaluations += 1
        inputs, target = self.split(point)
        ours = self.model.gradient(inputs, target, names=self.names, create_graph=True)
        return squared_distance(ours, self.theirs, self.names)
