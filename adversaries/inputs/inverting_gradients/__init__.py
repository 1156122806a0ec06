"""inverting-gradients: images by matching the gradient's direction, with total variation."""

from collections.abc import Hashable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.inputs.input_matching import (
    POOLED,
    SENT,
    TRAINED,
    InputMatching,
    known_statistics,
)
from adversaries.inputs.inverting_gradients.objective import nearest_order, regularized
from adversaries.inputs.known_features import KnownBatch
from fedsim import ImageSpec, Knowledge, Observation, Requirement
from fedsim.adversary import Job, Source
from fedsim.gradients import (
    Adam,
    Match,
    Problem,
    Restarts,
    Rules,
    compiled,
    minimise,
)

DECAYS = (3 / 8, 5 / 8, 7 / 8)
"""Shares of the iterations after which the step length is cut to a tenth (the paper's schedule)."""


class InvertingGradients(InputMatching):
    """Reconstruct images by cosine similarity of gradients and total variation.

    Minimises 1 - cos(g', g) + `tv` TV(x) over dummy inputs x, where g' is the gradient of x, g
    the victim's, all parameters concatenated, and TV the mean absolute difference of neighbouring
    pixels. The cosine does not depend on the gradient's norm, which decreases as a model is
    trained. The optimizer is Adam on the sign of the gradient, with step length `lr`, divided by
    ten after 3/8, 5/8 and 7/8 of the iterations. Inputs start uniformly in the input range and
    are clamped to it after every step. All restarts are run, and the lowest objective is claimed.

    Needs the whole gradient, the model and the number of examples. ReLU and max-pooling are no
    obstacle: the gradient g' is piecewise smooth in x, and descent by signs crosses the kinks that
    mislead DLG's L-BFGS.

    Labels are inferred first, by default by LLG; right labels matter more than any other setting.
    If K local steps were taken, and K and the learning rate are known, g' is the average gradient
    of K simulated steps on the dummy examples (`unroll`), split into batches in their order. The
    step of each label is unknown: every start draws `orders` random orders of the labels, and
    begins with the one of the lowest objective. Otherwise, and for another optimizer than SGD, all
    steps count as one batch at the initial weights.

    If `BUFFERS` is granted and one local step was taken, the running statistics of BatchNorm layers
    give the mean and the variance of the batch at each of these layers, and `statistics` times the
    distance of the dummy batch's own (`fedsim.gradients.statistics`) is added to the objective.
    After several steps they are only averages over batches at changing weights, and are not used.

    Claims one float32 tensor of `spec.input_shape` for each example, within the input range, and
    its label. The order of the examples is unknown.
    """

    name = "inverting-gradients"
    keywords = (
        "gradient inversion",
        "cosine similarity",
        "total variation",
        "image reconstruction",
    )
    suits = (ImageSpec,)
    cites = (
        "Geiping et al., Inverting Gradients: How easy is it to break privacy in federated "
        "learning?, NeurIPS 2020, Eq. 4; batch statistics: Yin et al., See Through Gradients, CVPR "
        "2021, Eq. 9, and Hatamizadeh et al., Do Gradient Inversion Attacks Make Federated "
        "Learning Unsafe?, IEEE TMI 2023"
    )
    requirements = (
        Requirement("examples", "every example adds unknowns, and no equations", most=6),
        Requirement("steps", "simulated steps are of SGD, in an unknown order", most=4),
        *SENT,
        POOLED,
        *TRAINED,
    )

    iterations: int = Field(default=2000, ge=1)
    """Steps a start; the paper takes 4,800 to 24,000."""

    restarts: int = Field(default=1, ge=0)
    """Starts besides the first; all are run."""

    orders: int = Field(default=24, ge=1)
    """Different random orders of known labels that a start looks at where local steps are
    simulated; it begins with the one of the lowest objective."""

    lr: float = Field(default=0.025, gt=0, le=1)
    """First step length, as a share of the input range; the paper's 0.1 is in standard
    deviations of the pixels, about a quarter of the range each."""

    distance: Literal["cosine", "l2", "l1+l2"] = "cosine"
    """Between gradients: 1 - cosine, or summed squares, or TAG's; the last two as shares of
    the gradient's squared norm."""

    tv: float = Field(default=1e-3, ge=0)
    """Weight of the total variation, inputs as shares of their range; more helps where the
    gradient says little, such as behind max-pooling."""

    statistics: float = Field(default=0.3, ge=0)
    """Weight of the distance of batch statistics, where BUFFERS is granted, the model has BatchNorm
    layers in training mode, and one local step was taken; 0: they are not used."""

    features_from: Source | None = None
    """Where the features before the head come from, with their labels, in place of `labels_from`:
    "none", or another adversary by name, such as "feature-separation". Local steps are then not
    simulated."""

    features: float = Field(default=1.0, ge=0)
    """Weight of the distance of features, where they are known."""

    labels_from: Source | None = "llg"
    """Where the labels come from: another adversary by name, "given" (the threat model grants
    LABELS), or "none" (optimised with the inputs)."""

    unroll: bool | Literal["auto"] = "auto"
    """Simulate the local steps of SGD: true (needs LOCAL_STEPS and LEARNING_RATE), false, or "auto"
    (wherever both are granted, unless the optimizer is known to be another one)."""

    precision: Literal["float32", "float64"] = "float32"
    """floating-point type of the optimisation."""

    def requires(self) -> Knowledge:
        """Also `LOCAL_STEPS` and `LEARNING_RATE` where the local steps must be simulated."""
        more = Knowledge.LOCAL_STEPS | Knowledge.LEARNING_RATE
        return super().requires() | (more if self.unroll is True else Knowledge(0))

    def passes(self, seen: Observation) -> int:
        """Those of all steps, of all starts."""
        return (1 + self.restarts) * super().passes(seen)

    def training(self, seen: Observation) -> tuple[int, float]:
        """Local steps to simulate, and their learning rate; 1 and 0 where there is none.

        Raises:
            ValueError: They are to be simulated, and are steps of another optimizer than SGD.
        """
        steps, lr = seen.steps, seen.lr
        another = seen.optimizer not in (None, "sgd", "unknown")
        if self.unroll is True:
            steps, lr = seen.know(Knowledge.LOCAL_STEPS), seen.know(Knowledge.LEARNING_RATE)
            if another:
                raise ValueError(
                    f'unroll = true simulates steps of SGD, and the client took "{seen.optimizer}" '
                    'steps; set unroll = "auto" or false'
                )
        if (
            another
            or self.features_from is not None
            or self.unroll is False
            or seen.exact
            or steps is None
            or steps == 1
            or lr is None
        ):
            return 1, 0.0
        return steps, lr

    def alike(self, seen: Observation) -> Hashable:
        """Victims in one optimisation also have known statistics of the same layers."""
        return super().alike(seen), tuple(self._known(seen))

    def notes(self, match: Match, seen: Observation) -> dict[str, Any]:
        """The number of local steps that were simulated, and of layers with known statistics."""
        known = {"batch_statistics": layers} if (layers := len(self._known(seen))) else {}
        return {"unrolled_steps": self.training(seen)[0], **known}

    def _known(self, seen: Observation) -> dict[str, tuple[Tensor, Tensor]]:
        """The batch's statistics by layer; empty if they are not used."""
        return known_statistics(seen) if self.statistics else {}

    def match(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        seen: Sequence[Observation],
        known: Sequence[KnownBatch | None],
    ) -> list[Match]:
        """Minimise by Adam on the sign of the gradient."""
        spec = problem.spec
        low, high = spec.input_range or (0.0, 1.0)
        objective = regularized(
            problem,
            [self._known(one) for one in seen],
            known,
            tv=self.tv,
            statistics=self.statistics,
            features=self.features,
        )

        def start(victim: int) -> Tensor:
            rng = jobs[victim].rng
            point = problem.start(victim, rng)
            if spec.input_range is not None:
                uniform = torch.special.ndtr(point[: problem.pixels])
                point[: problem.pixels] = low + (high - low) * uniform
            if not problem.shuffled:
                return point
            return nearest_order(point, problem, objective, victim, rng, self.orders)

        return minimise(
            compiled(objective, jobs[0]),
            start,
            jobs,
            lambda starts: Adam(
                starts,
                lr=self.lr * (high - low),
                schedule=lambda step: 0.1 ** sum(step >= at * self.iterations for at in DECAYS),
                signed=True,
                low=low,
                high=high,
                clamped=problem.pixels if spec.input_range is not None else 0,
            ),
            [Rules(self.iterations, evaluations=1, patience=self.iterations)] * len(jobs),
            restarts=Restarts(self.restarts, together=True),
        )
