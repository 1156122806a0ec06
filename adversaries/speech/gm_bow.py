"""gm-bow: a whole transcript from the decoder's gradient, its words known as a bag."""

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator

from adversaries.speech.transcript_attack import TranscriptAttack, claim
from fedsim.adversary import Job
from fedsim.gradients import (
    LBFGS,
    Adam,
    Checks,
    Comparison,
    LabelBag,
    Restarts,
    Rules,
    SequenceProblem,
    minimise,
)
from fedsim.records import END, Observation, Reconstruction

__all__ = ["GMBoW"]

MATCHED = {"float32": 1e-7, "float64": 1e-9}
"""Squared distance, as a share of the gradient's squared norm, that wrong orders do not reach."""

PATIENCE = 100
"""Iterations in which L-BFGS must bring the distance down by 5 %."""


class GMBoW(TranscriptAttack):
    """The transcript of one utterance: the labels that the gradient reveals, put into order.

    A decoder with attention takes from the encoder nothing but a context vector a_i a step. Of
    dummy context vectors A (S x d_A) and smooth labels P (S x |set|), fed back to the decoder as
    e_i = sum_k p_i^k E(c_k), it seeks those whose decoder gradient is the one observed. The set of
    labels is another attack's, as is S, or else the rank of the head's gradient; the input and its
    length are not needed. Of `starts` starts, run side by side, the one with the lowest distance is
    claimed: in variant "paper" of the points they ended at, without the penalty.

    variant "paper" (Eq. 8): all of A and P are free, ||g' - g|| + `penalty` sum_i |1 - ||p_i||_1|
    is minimised by Adam. Variant "span" solves the same problem in far fewer variables: the rows
    [s_i; a_i] that enter the layer behind the attention span its weight's gradient (of rank S), so
    A is sought in that span, S x S coefficients; P is a softmax; L-BFGS on the squared distance.

    Only layers behind the attention are matched by default: what A and P explain. The gradient of
    the decoder's LSTM came through the attention too, which asked with its state; no A removes
    that distance, small while the attention is untrained.

    Assumes one utterance in one step, whose last label is known to be 0, the end. Claims every
    label, the end included.
    """

    name: ClassVar[str] = "gm-bow"
    keywords = (
        "gradient matching",
        "bag of words",
        "transcript reconstruction",
        "speech recognition",
    )
    cites: ClassVar[str] = (
        "Dang et al., Revealing and Protecting Labels in Distributed Training, NeurIPS 2021, "
        "section 4"
    )

    variant: Literal["span", "paper"] = "span"
    """ "paper": every variable free, by Adam; "span": the few that can differ, by L-BFGS."""

    restrict: bool = True
    """To the set; false: all C labels, the baseline without BoW."""

    normalise: Literal["all", "set"] = "all"
    """Softmax over all C labels, as the client's, or over the set alone (the paper's L_BoW:
    cheaper, another gradient)."""

    starts: int = Field(default=5, ge=1)
    """Random starts."""

    iterations: int = Field(default=20_000, ge=1)
    """Steps a start."""

    lr: float = Field(default=0.05, gt=0)
    """First step length of "paper"."""

    halved_every: int = Field(default=4000, ge=1)
    """Steps after which "paper" halves its step length."""

    lowest_lr: float = Field(default=0.005, gt=0)
    """Least step length of "paper"."""

    unchanged: int = Field(default=2000, ge=0)
    """a start ends when its transcript is the same for so many steps; 0: never."""

    penalty: float = Field(default=1.0, ge=0)
    """Weight of sum_i |1 - ||p_i||_1| in "paper" (lambda)."""

    spread: float = Field(default=0.2, gt=0)
    """Standard deviation of the first context vectors' entries, or coefficients."""

    parameters: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default={"*head.*": 1.0, "*projection.*": 1.0}
    )
    """What each parameter's squared distance counts, by name pattern; a parameter that no
    pattern fits is left out."""

    precision: Literal["float32", "float64"] = "float64"
    """floating-point type of the optimisation."""

    @model_validator(mode="after")
    def _a_set_to_normalise_over(self) -> Self:
        if self.normalise == "set" and not self.restrict:
            raise ValueError('normalise = "set" is for restrict = true: there is no set otherwise')
        return self

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient; raises `ValueError` where model or update are of another kind."""
        model, gradient = self.decoder(seen)
        revealed, length, source = self.bag(seen, job)
        span = self.variant == "span"
        bag = sorted(revealed | {END}) if self.restrict else list(range(seen.spec.classes))
        problem = SequenceProblem(
            model,
            gradient,
            seen.head,
            bag=LabelBag(torch.tensor(bag), length, END),
            rng=job.rng,
            penalty=None if span else self.penalty,
            normalise=self.normalise,
            comparison=Comparison(
                parameters=self.parameters,
                device=job.device,
                dtype=getattr(torch, self.precision),
            ),
        )

        def factor(step: int) -> float:
            return max(0.5 ** (step // self.halved_every), min(1.0, self.lowest_lr / self.lr))

        rules = Rules(
            self.iterations, evaluations=1, patience=self.iterations, unchanged=self.unchanged
        )
        if span:
            rules = replace(rules, patience=PATIENCE, matched=MATCHED[self.precision])
        [match] = minimise(
            problem,
            lambda _: problem.start(job.rng, self.spread),
            [job],
            LBFGS if span else partial(Adam, lr=self.lr, schedule=factor),
            [rules],
            restarts=Restarts(self.starts - 1, together=True, ends=not span),
            checks=Checks(judge=problem.distance, reading=problem.read),
        )
        labels = problem.read(match.point[None])[0].cpu()
        return claim(
            labels,
            objective=match.value,
            outcomes=tuple(match.outcomes),
            trace=tuple(job.trace),
            diagnostics={
                "variables": problem.size,
                "bag": len(bag),
                "length_from": source,
                "closures": match.evaluations,
                "exact_gradient": seen.exact,
            },
        )
