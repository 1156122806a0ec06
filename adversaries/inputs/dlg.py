"""DLG: the training inputs and labels, by matching the shared gradient."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedsim.adversary import Adversary, Job, Source
from fedsim.gradients import LBFGS, Comparison, Problem, Restarts, Rules, in_groups, minimise
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.spec import ImageSpec, TabularSpec
from fedsim.victim import VictimModel

RELATIVE = {"float64": 1e-9, "float32": 5e-9}
"""Share of the gradient's squared norm below which a match must be, besides `tolerance`. Gradients
shrink as a model is trained, so that an absolute threshold alone means nothing."""

FLOOR = 1e-8
"""A start that stalls below this share has reached the rounding of what was sent, not failed."""

ORDER = {"l2": 1.0, "cosine": 1.0, "l1+l2": 0.5}
"""Exponent that converts a share of a squared distance to a share of this one: near a match "l2"
and "cosine" decrease with the square of the error, "l1+l2" with the error."""

MEMORY = 2**30
"""Bytes that the L-BFGS history of one optimisation may take, for all its victims together."""


class DLG(Adversary):
    """Reconstruct the inputs and labels of a batch by optimising a dummy batch's gradient.

    Dummy inputs x' and label logits y' start from N(0, 1); L-BFGS minimises D = sum over
    parameters of ||dL(x', softmax(y'))/dW - dL(x, y)/dW||^2. A start that diverges (D is NaN, Inf,
    or above `diverged` times that of a gradient of zeros after 10 outer steps) or stalls (D falls
    by less than 5 % in 25 outer steps) is restarted; the restart with the lowest D is kept. Victims
    of one round are attacked in one batched optimisation, which does not change any result.

    The authors' code takes steps of length 1 (`line_search = "none"`) and one start; the default
    here backtracks (Armijo), so that most starts converge.

    Needs the whole gradient, the model the client started from (twice differentiable: sigmoid or
    tanh, no ReLU or max-pooling for good results) and the number of examples. Assumes that the
    gradient is the mean over one batch; after several local steps it is matched as if the whole
    were one batch at the initial weights, an approximation that gets worse with every step.

    Claims one float32 tensor of `spec.input_shape` for each example, not clamped to the input
    range, and its label. The order of the examples is unknown.
    """

    name: ClassVar[str] = "dlg"
    keywords = (
        "gradient inversion",
        "deep leakage from gradients",
        "gradient matching",
        "image reconstruction",
    )
    suits = (ImageSpec, TabularSpec)
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = frozenset(
        {"inputs", "labels", "label_counts", "label_set", "objective", "outcomes"}
    )
    cites: ClassVar[str] = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, Algorithm 1"
    group: ClassVar[int] = 10

    iterations: int = Field(default=300, ge=1)
    """L-BFGS outer steps a start, of 20 evaluations each."""

    restarts: int = Field(default=3, ge=0)
    """New starts when one diverges or stalls; 0: a single start."""

    line_search: Literal["armijo", "none"] = "armijo"
    """L-BFGS step length: "armijo" (backtracking), or "none" as in the authors' code (diverges
    more often)."""

    history: int = Field(default=100, ge=1)
    """Pairs that L-BFGS remembers."""

    batch_rule: Literal["joint", "cyclic"] = "joint"
    """ "joint": every step moves all examples; "cyclic": outer step i moves example i mod N
    alone (the paper's Eq. 5)."""

    distance: Literal["l2", "cosine", "l1+l2"] = "l2"
    """Between gradients: summed squares, 1 - cosine, or TAG's."""

    parameters: dict[str, Annotated[float, Field(ge=0)]] = Field(default={"*": 1.0})
    """What each parameter's distance counts, by name pattern; a parameter that no pattern fits
    is left out, such as {"head.*" = 10.0, "*" = 1.0}."""

    labels_from: Source | None = None
    """Where the labels come from: "none" (optimised with the inputs), "given" (the threat
    model grants LABELS), or another adversary by name, such as "idlg" or "llg"."""

    tolerance: float = Field(default=4e-6, ge=0)
    """Gradient distance at which the match is done (of "l1+l2" its square), if that is also
    below 1e-9 of the gradient's squared norm (5e-9 in float32)."""

    diverged: float = Field(default=1.0, gt=0)
    """Gradient distance, as a share of that of a gradient of zeros, beyond which a start is
    given up after 10 outer steps; 1: no closer than those."""

    precision: Literal["float32", "float64"] = "float64"
    """floating-point type of the optimisation; float32 is faster and comes less close."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient; raises `ValueError` where gradient and model do not fit."""
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Match many at once: those with the same model and batch size in one optimisation."""
        labels = [self.labels(one, job) for one, job in zip(seen, jobs, strict=True)]
        return in_groups(
            [one.know(Knowledge.MODEL) for one in seen],
            [one.know(Knowledge.BATCH_SIZE) for one in seen],
            lambda some: self._match(
                [seen[i] for i in some], [labels[i] for i in some], [jobs[i] for i in some]
            ),
            most=lambda victim: self._at_once(seen[victim]),
        )

    def _at_once(self, seen: Observation) -> int:
        """Victims whose curvature fits into `MEMORY`."""
        coordinates = math.prod(seen.spec.input_shape or ()) + seen.spec.classes
        pairs = 2 * self.history * int(seen.know(Knowledge.BATCH_SIZE)) * coordinates
        return max(1, MEMORY // (8 * pairs))

    def _match(
        self, seen: Sequence[Observation], labels: Sequence[Tensor | None], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        problem = Problem(
            seen[0].know(Knowledge.MODEL),
            [one.know(Knowledge.GRADIENT) for one in seen],
            seen[0].spec,
            size=int(seen[0].know(Knowledge.BATCH_SIZE)),
            labels=labels,
            comparison=Comparison(
                self.distance, self.parameters, jobs[0].device, getattr(torch, self.precision)
            ),
        )
        order = ORDER[self.distance]
        rules = [
            Rules(
                iterations=self.iterations,
                matched=min(self.tolerance**order, RELATIVE[self.precision] ** order * scale),
                floor=FLOOR**order * scale,
                hopeless=self.diverged * scale,
            )
            for scale in problem.scales
        ]
        matches = minimise(
            problem,
            lambda victim: problem.start(victim, jobs[victim].rng),
            jobs,
            lambda starts: LBFGS(
                starts, history=self.history, backtracking=self.line_search == "armijo"
            ),
            rules,
            restarts=Restarts(self.restarts),
            blocks=problem.blocks() if self.batch_rule == "cyclic" else None,
        )
        notes = self.cautions(seen[0].know(Knowledge.MODEL))
        return [
            problem.claim(
                victim,
                match,
                jobs[victim].trace,
                restarts=len(match.outcomes) - 1,
                exact_gradient=seen[victim].exact,
                **({"notes": notes} if notes else {}),
            )
            for victim, match in enumerate(matches)
        ]

    def cautions(self, model: VictimModel) -> list[str]:
        """Layers that hinder matching by second derivatives."""
        kinds = {type(part).__name__ for part in model.module.modules()}
        flat = sorted(
            kinds & {"ReLU", "ReLU6", "LeakyReLU", "PReLU", "RReLU", "Hardtanh", "Threshold"}
        )
        pooled = sorted(kind for kind in kinds if "MaxPool" in kind)
        found = super().cautions(model)
        if flat:
            found.append(
                f"the model has {', '.join(flat)}, whose second derivative is zero: DLG finds its "
                "way by second derivatives and mostly fails. Give the model sigmoids, or use "
                "inverting-gradients"
            )
        if pooled:
            found.append(
                f"the model has {', '.join(pooled)}: only the largest pixel of each window reaches "
                "the gradient, and which one it is changes in jumps that no derivative sees. Use "
                "strides instead of pooling, or inverting-gradients"
            )
        batch_norm = any(
            isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training
            for part in model.module.modules()
        )
        if batch_norm:
            found.append(
                "the model normalises by batch statistics, which the dummy batch has to hit as well"
            )
        return found
