"""DLG: the training inputs and labels, by matching the shared gradient."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from torch import nn

from adversaries.inputs.input_matching import (
    POOLED,
    SENT,
    TRAINED,
    InputMatching,
    known_statistics,
)
from adversaries.inputs.known_features import KnownBatch
from adversaries.inputs.known_features.solve import solve_inputs
from fedsim import (
    ImageSpec,
    Job,
    Knowledge,
    Observation,
    Reconstruction,
    Requirement,
    TabularSpec,
    VictimModel,
)
from fedsim.adversary import Source
from fedsim.gradients import (
    LBFGS,
    Match,
    Problem,
    Restarts,
    Rules,
    compiled,
    minimise,
    settle_scale,
)

RELATIVE = {"float64": 1e-9, "float32": 5e-9}
"""Share of the gradient's squared norm below which a match must be, besides `tolerance`. Gradients
shrink as a model is trained, so that an absolute threshold alone means nothing."""

FLOOR = 1e-8
"""A start that stalls below this share has reached the rounding of what was sent, not failed."""

ORDER = {"l2": 1.0, "cosine": 1.0, "l1+l2": 0.5}
"""Exponent that converts a share of a squared distance to a share of this one: near a match "l2"
and "cosine" decrease with the square of the error, "l1+l2" with the error."""

OPEN = 1.6
"""Unknown input values for each value of the gradient that natural images were filled in for."""

MEMORY = 2**30
"""Bytes that the L-BFGS history of one optimisation may take, for all its victims together."""


class DLG(InputMatching):
    """Reconstruct the inputs and labels of a batch by optimising a dummy batch's gradient.

    Dummy inputs x' and label logits y' start from N(0, 1); L-BFGS minimises D = sum over
    parameters of ||dL(x', softmax(y'))/dW - dL(x, y)/dW||^2. A start that diverges (D is NaN, Inf,
    or above `diverged` times that of a gradient of zeros after 10 outer steps) or stalls (D falls
    by less than 5 % in 25 outer steps) is restarted; the restart with the lowest D is kept. Victims
    of one round are attacked in one batched optimisation, which changes results only of models with
    dropout, whose masks are drawn for all together.

    The authors' code takes steps of length 1 (`line_search = "none"`) and one start; the default
    here backtracks (Armijo), so that most starts converge.

    With `features_from`, features h_i and head errors of each example are known first, and the
    inputs solve h(x_i) = h_i and, below the head, sum_i g_i(x_i) = dL/dW by Gauss-Newton from grey
    images (`gauss_newton`).

    Needs the whole gradient, the model the client started from (twice differentiable: sigmoid or
    tanh, no ReLU or max-pooling for good results) and the number of examples. Assumes that the
    gradient is the mean over one batch; after several local steps it is matched as if the whole
    were one batch at the initial weights, an approximation that gets worse with every step.

    Batch normalisation behind the first layer makes the gradient the same at every scale of the
    inputs. The claimed inputs then have the scale of the batch's variance where `BUFFERS` is
    granted, and otherwise the largest one within the input range (`fedsim.gradients.scale`).

    Claims one float32 tensor of `spec.input_shape` for each example, not clamped to the input
    range, and its label. The order of the examples is unknown.
    """

    name = "dlg"
    keywords = (
        "gradient inversion",
        "deep leakage from gradients",
        "gradient matching",
        "image reconstruction",
    )
    suits = (ImageSpec, TabularSpec)
    cites = "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, Algorithm 1"
    requirements = (
        Requirement("examples", "every example adds unknowns, and no equations", most=8),
        Requirement("steps", "the gradient is matched as that of one step", most=1),
        *SENT,
        POOLED,
        Requirement("unknowns", "it has no prior to choose among inputs", most=1),
        Requirement("kinked_values", "no derivative shows where a ReLU switches", most=700),
        *TRAINED,
    )

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

    tolerance: float = Field(default=4e-6, ge=0)
    """Gradient distance at which the match is done (of "l1+l2" its square), if that is also
    below 1e-9 of the gradient's squared norm (5e-9 in float32)."""

    diverged: float = Field(default=1.0, gt=0)
    """Gradient distance, as a share of that of a gradient of zeros, beyond which a start is
    given up after 10 outer steps; 1: no closer than those."""

    features_from: Source | None = None
    """Where the features before the head come from, with their labels: "none", or another adversary
    by name, such as "feature-separation". With features, inputs solve the equations by Gauss-Newton
    from grey images, and `distance`, `labels_from` and all settings of L-BFGS but `iterations` are
    not used."""

    prior: Literal["smooth", "none"] = "smooth"
    """With features: which solution of the equations is taken where several fit. "smooth": the one
    nearest to grey in a norm that penalises high frequencies and colour, which are weak in natural
    images; "none": the one nearest to grey in the Euclidean norm."""

    def conditions(self) -> tuple[Requirement, ...]:
        """With features, more examples and somewhat more unknowns than equations are no obstacle.

        These were three images of 32 x 32 at DLG's LeNet, in the setting `prior = "smooth"`.
        """
        found = super().conditions()
        if self.features_from is None:
            return found
        most = OPEN if self.prior == "smooth" else 1
        return tuple(
            replace(one, most=most) if one.quantity == "unknowns" else one
            for one in found
            if one.quantity != "examples"
        )

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Match many at once, or with known features solve one after the other."""
        if self.features_from is None:
            return super().reconstruct_many(seen, jobs)
        found = []
        for one, job in zip(seen, jobs, strict=True):
            known = KnownBatch.found_by(self.parts()["features_from"], one, job)
            found.append(
                solve_inputs(
                    one,
                    job,
                    known,
                    parameters=self.parameters,
                    smooth=self.prior == "smooth",
                    iterations=self.iterations,
                )
            )
        return found

    def at_once(self, seen: Observation) -> int:
        """Victims whose passes fit into `HELD`, and whose curvature into `MEMORY`."""
        coordinates = math.prod(seen.spec.input_shape or ()) + seen.spec.classes
        pairs = 2 * self.history * int(seen.know(Knowledge.BATCH_SIZE)) * coordinates
        return min(super().at_once(seen), max(1, MEMORY // (8 * pairs)))

    def match(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        seen: Sequence[Observation],
        known: Sequence[KnownBatch | None],
    ) -> list[Match]:
        """Minimise by L-BFGS."""
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
        found = minimise(
            compiled(problem, jobs[0]),
            lambda victim: problem.start(victim, jobs[victim].rng),
            jobs,
            lambda starts: LBFGS(
                starts, history=self.history, backtracking=self.line_search == "armijo"
            ),
            rules,
            restarts=Restarts(self.restarts),
            blocks=problem.blocks() if self.batch_rule == "cyclic" else None,
        )
        settle_scale(problem, found, [known_statistics(one) for one in seen])
        return found

    def notes(self, match: Match, seen: Observation) -> dict[str, Any]:
        """The number of restarts, and what hinders the match."""
        hindered = self.cautions(seen.know(Knowledge.MODEL))
        return {"restarts": len(match.outcomes) - 1, **({"notes": hindered} if hindered else {})}

    def cautions(self, model: VictimModel) -> list[str]:
        """Layers that hinder matching by second derivatives."""
        parts = list(model.module.modules())
        kinds = {type(part).__name__ for part in parts}
        flat = model.kinks
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
        norms = [part for part in parts if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        if any(norm.training for norm in norms):
            found.append(
                "the model normalises by batch statistics, which the dummy batch has to hit as "
                "well. If they follow the first layer, no gradient tells how bright an image is: "
                "that comes from the running statistics if BUFFERS is granted, or else is assumed"
            )
        return found
