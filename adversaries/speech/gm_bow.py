"""gm-bow: transcripts by gradient matching, restricted to a known bag of words."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, Self

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

MATCHED = {"float32": 1e-7, "float64": 1e-9}
"""Squared distance, as a share of the gradient's squared norm, below which labels are correct."""

PATIENCE = 100
"""Iterations within which L-BFGS must lower the distance by 5 %; else the start has stalled."""


class GMBoW(TranscriptAttack):
    """Recovers the transcript of one utterance: the order of the labels that the gradient reveals.

    A decoder with attention receives from the encoder one context vector a_i in each step i. The
    attack optimises dummy context vectors A (S x d_A) and smooth labels P (S x |set|), which are
    fed back to the decoder as e_i = sum_k p_i^k E(c_k), until the decoder's gradient is the one
    observed. Another attack provides the set of labels and their number S, which is otherwise the
    rank of the head's gradient. The input and its length are not needed. `starts` random starts are
    optimised together, and the one with the lowest distance is claimed; variant "paper" compares
    the final points, without the penalty.

    Variant "paper" (Eq. 8): Adam minimises ||g' - g|| + `penalty` sum_i |1 - ||p_i||_1| over all
    of A and P. Variant "span" has far fewer variables: the rows [s_i; a_i] that enter the layer
    behind the attention span its weight gradient of rank S, so A is parametrised by S x S
    coefficients in that row space. P is a softmax, and L-BFGS minimises the squared distance.

    A and P determine the gradients of the layers behind the attention, which variant "span"
    matches. Variant "paper" matches the whole decoder, as the paper does: the LSTM and the
    embeddings tell which label follows which. They also receive gradient through the attention,
    whose query is the LSTM's state; no A removes that part of the distance, which is small for
    untrained attention.

    The attack assumes one utterance in one local step whose last label is 0 (the end of the
    sentence). It claims every label, the end included.
    """

    name = "gm-bow"
    keywords = (
        "gradient matching",
        "bag of words",
        "transcript reconstruction",
        "speech recognition",
    )
    cites = (
        "Dang et al., Revealing and Protecting Labels in Distributed Training, NeurIPS 2021, "
        "section 4"
    )

    variant: Literal["span", "paper"] = "span"
    """Method: "paper" optimises all variables by Adam, "span" those in the row space by L-BFGS."""

    restrict: bool = True
    """Whether labels are restricted to the set; false: all C labels, the paper's baseline."""

    normalise: Literal["all", "set"] = "all"
    """Labels of the softmax: "all" C labels, as for the client, or the "set" alone (the paper's
    L_BoW, which is cheaper, but has another gradient)."""

    starts: int = Field(default=5, ge=1)
    """Number of random starts."""

    iterations: int = Field(default=20_000, ge=1)
    """The largest number of steps of a start."""

    lr: float = Field(default=0.05, gt=0)
    """Initial learning rate of variant "paper"."""

    halved_every: int = Field(default=4000, ge=1)
    """Steps after which variant "paper" halves its learning rate."""

    lowest_lr: float = Field(default=0.005, gt=0)
    """Lowest learning rate of variant "paper"."""

    unchanged: int = Field(default=2000, ge=0)
    """A start ends when its transcript has not changed for this many steps; 0: never."""

    penalty: float = Field(default=1.0, ge=0)
    """Weight lambda of sum_i |1 - ||p_i||_1| in variant "paper"."""

    spread: float = Field(default=0.2, gt=0)
    """Standard deviation of the initial entries of the context vectors, or of their
    coefficients."""

    parameters: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Weights of the parameters' squared distances by name pattern; a parameter that matches no
    pattern is left out. None: for "paper" all of the decoder, which is the module that holds the
    head; for "span" its "*head.*" and "*projection.*"."""

    precision: Literal["float32", "float64"] = "float64"
    """Floating-point type of the optimisation."""

    @model_validator(mode="after")
    def _a_set_to_normalise_over(self) -> Self:
        if self.normalise == "set" and not self.restrict:
            raise ValueError('normalise = "set" is for restrict = true: there is no set otherwise')
        return self

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient.

        Raises:
            ValueError: The model has no attention, or the update holds several examples or steps.
        """
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
                parameters=self._weights(seen.head),
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
            checks=Checks(judge=problem.distance, reading=lambda points, _: problem.read(points)),
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

    def _weights(self, head: str) -> dict[str, float]:
        """Weights by name pattern, of the decoder whose head has that name."""
        if self.parameters is not None:
            return self.parameters
        if self.variant == "span":
            return {"*head.*": 1.0, "*projection.*": 1.0}
        decoder, dot, _ = head.rpartition(".")
        return {f"{decoder}{dot}*": 1.0}
