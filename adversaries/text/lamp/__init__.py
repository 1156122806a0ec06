"""LAMP: text by gradient matching, with a language prior for the order of the tokens."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.text.dummy_texts import DummyTexts
from adversaries.text.lamp.reordering import Reordering
from adversaries.text.text_matching import TextMatching
from fedsim import Job, Knowledge, Observation, TextSpec, VictimModel
from fedsim.errors import DataError
from fedsim.gradients import Adam, Match, Optimizer, TextMetric
from fedsim.priors import NGRAM, causal_model, language_prior

PRIOR_WEIGHT = {"cosine": 0.2, "l1+l2": 60.0, "l2": 60.0}
NORM_WEIGHT = {"cosine": 1.0, "l1+l2": 25.0, "l2": 25.0}
"""The paper's weights of the prior and of the regulariser (appendix), by distance."""

DECAY_EVERY = 50
"""Steps after which the learning rate is lowered."""

BURN_IN = 0.1
"""Share of the steps before the authors' code reorders for the first time."""


class LAMP(TextMatching):
    """Recovers texts by continuous steps for the tokens and discrete steps for their order.

    Continuous steps: Adam minimises the gradient distance plus (mean ||x|| - mean ||e||)^2, which
    keeps dummy embeddings x as long as those of the vocabulary e. Discrete steps, one after every
    `continuous` steps: of `candidates` reorderings the one with the lowest sum of gradient distance
    and negative log-likelihood under the language prior is taken (`Reordering`). The start is the
    best of `starts` random points, and then the best of `permutations` orders of it. A start ends
    early if its tokens have the observed gradient.

    The prior is fitted on the public texts that PRIOR grants, or is a causal language model, which
    needs no texts.

    fidelity "authors" begins with embeddings as long as the vocabulary's, does not reorder in the
    first tenth of the steps, and claims the point with the lowest distance. "paper" begins at
    N(0, I), which needs far more steps, and claims the last point (Algorithm 1, line 20), of
    several starts the one with the lowest final distance.
    """

    name = "lamp"
    keywords = (*TextMatching.keywords, "language prior", "transformer")
    cites = (
        "Balunovic et al., LAMP: Extracting Text from Gradients with Language Model Priors, "
        "NeurIPS 2022"
    )

    steps: int = Field(default=2000, ge=1)
    """Number of continuous steps for each start."""

    lr: float = Field(default=0.01, gt=0)
    """Initial learning rate."""

    decay: float = Field(default=0.89, gt=0, le=1)
    """Factor of the learning rate every 50 steps."""

    distance: Literal["cosine", "l1+l2", "l2"] = "cosine"
    """Distance between gradients: mean of 1 - cosine over layers, TAG's ("l1+l2"), or DLG's
    ("l2")."""

    l1: float = Field(default=0.01, ge=0)
    """Weight of the L1 norm for distance "l1+l2"."""

    norm_weight: float | None = Field(default=None, ge=0)
    """Weight of the regulariser; by default 1 for distance "cosine", else 25."""

    prior: str = NGRAM
    """Language prior: "n-gram" (fitted on the public texts), a folder with a causal language model,
    or "hub:NAME"."""

    prior_weight: float | None = Field(default=None, ge=0)
    """Weight of the prior's negative log-likelihood per token; by default 0.2 for "cosine", else
    60."""

    discrete: Literal["alternating", "end", "none"] = "alternating"
    """When tokens are reordered: between continuous steps, as often at the "end", or not at all."""

    continuous: int = Field(default=75, ge=1)
    """Number of continuous steps between two discrete steps."""

    candidates: int = Field(default=200, ge=1)
    """Number of reorderings that a discrete step evaluates."""

    starts: int = Field(default=500, ge=1)
    """Number of random points, the best of which is the start."""

    permutations: int = Field(default=500, ge=0)
    """Number of random orders of the start's embeddings, the best of which is taken."""

    polish: int = Field(default=0, ge=0)
    """Number of final discrete steps that reorder the claimed tokens by the gradient distance of
    their own embeddings, without the prior; not in the paper."""

    fidelity: Literal["paper", "authors"] = "authors"
    """Start, first reordering and claimed point as in the paper, or as in the authors' code."""

    @property
    def ends(self) -> bool:
        """Whether the final point is claimed, as in the paper."""
        return self.fidelity == "paper"

    @property
    def settles_after(self) -> int:
        """The step of the first reordering, if there are any."""
        if self.discrete != "alternating":
            return 0
        return self.continuous * (int(self._burn_in) // self.continuous + 1)

    @property
    def _burn_in(self) -> float:
        """Steps after which tokens are reordered for the first time."""
        return BURN_IN * self.steps if self.fidelity == "authors" else 0.0

    @property
    def _weight(self) -> float:
        """Weight of the prior; 0 if no tokens are reordered."""
        if self.discrete == "none":
            return 0.0
        return PRIOR_WEIGHT[self.distance] if self.prior_weight is None else self.prior_weight

    def requires(self) -> Knowledge:
        """Public texts too, if the prior is fitted on them."""
        fitted = self._weight > 0 and self.prior == NGRAM
        return super().requires() | (Knowledge.PRIOR if fitted else Knowledge(0))

    def cautions(self, model: VictimModel) -> list[str]:
        """The warnings of every text matching attack.

        Raises:
            DataError: The causal language model cannot be loaded, or nobody knows the words behind
                the victim's tokens.
        """
        if self._weight and self.prior != NGRAM:
            if isinstance(model.spec, TextSpec) and not model.spec.tokens.spelled:
                raise DataError(
                    "lamp: the words behind the model's tokens are not known, so that a language "
                    'model says nothing of them; set discrete = "none"'
                )
            causal_model(self.prior)
        return super().cautions(model)

    def metric(self) -> tuple[TextMetric, float, float]:
        """Distance between gradients, weight of its L1 norm, weight of the length penalty."""
        weight = NORM_WEIGHT[self.distance] if self.norm_weight is None else self.norm_weight
        return self.distance, self.l1, weight

    def schedule(self, step: int) -> float:
        """Factor of the learning rate at a step: `decay` to the power of step // 50."""
        return float(self.decay ** (step // DECAY_EVERY))

    def spread(self, texts: DummyTexts) -> float:
        """Standard deviation of initial embeddings; the authors' code takes the vocabulary's."""
        scaled = self.start_length is None and self.fidelity == "authors"
        return texts.spread if scaled else super().spread(texts)

    def first(self, texts: DummyTexts, candidate: int, job: Job) -> Tensor:
        """The best of `starts` random points, and then of `permutations` orders of it."""
        drawn = texts.start(job.rng, candidate, self.starts, self.spread(texts))
        best = _best(drawn, texts, candidate)
        batch = best.view(texts.shape)
        others = [best]
        for _ in range(self.permutations):
            other = batch.clone()
            for text, sought in enumerate(texts.sought[candidate]):
                places = sought.nonzero().flatten()
                order = torch.randperm(len(places), generator=job.rng)
                other[text, places] = batch[text, places[order]]
            others.append(other.flatten())
        return _best(torch.stack(others), texts, candidate)

    def ready(self, texts: DummyTexts, seen: Observation, job: Job) -> None:
        """Evaluate the prior on the longest text, so that one for shorter texts fails at once."""
        prior = self._reordering(texts, seen, job).prior
        if prior is not None:
            candidate, text = divmod(int(texts.lengths.argmax()), texts.shape[0])
            at = torch.tensor([candidate], device=texts.words.device)
            anything = texts.words.mean(dim=0).expand(1, *texts.shape).flatten(1)
            prior.surprise(
                texts.read(anything, at)[:, text], texts.lengths[candidate, text : text + 1]
            )

    def optimizer(
        self, starts: Tensor, texts: DummyTexts, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> Optimizer:
        """Adam, with the discrete reordering every `continuous` steps (LAMP, Algorithm 1)."""
        reordering = self._reordering(texts, seen[0], jobs[0])

        def revise(points: Tensor, rows: Tensor, steps: Tensor) -> Tensor:
            due = (steps % self.continuous == 0) & (steps > self._burn_in)
            if not bool(due.any()):
                return points
            which = (rows % len(jobs))[due]
            rngs = [jobs[candidate].rng for candidate in which.tolist()]
            found = points.clone()
            found[due] = reordering(points[due], which, rngs)
            return found

        return Adam(
            starts,
            lr=self.lr,
            schedule=self.schedule,
            revise=revise if self.discrete == "alternating" else None,
        )

    def finished(
        self, match: Match, candidate: int, texts: DummyTexts, seen: Observation, job: Job
    ) -> dict[str, Any]:
        """Reorder the claimed tokens if the settings say so, and return the prior's diagnostics.

        Tokens that have the observed gradient stay in their order, whatever the prior says of it.
        """
        reordering = self._reordering(texts, seen, job)
        prior = reordering.prior
        if self.discrete == "end" and "matched" not in match.outcomes:
            rounds = self.steps // self.continuous
            match.point = reordering.repeated(match.point, candidate, job.rng, rounds)
        if self.polish:
            at = torch.tensor([candidate], device=texts.words.device)
            tokens = texts.fed(texts.read(match.point[None], at), at)[0]
            alone = Reordering(texts, None, candidates=self.candidates, weight=0.0)
            match.point = alone.repeated(tokens, candidate, job.rng, self.polish)
        if self.polish or self.discrete == "end":
            with torch.no_grad():
                at = torch.tensor([candidate], device=texts.words.device)
                match.value = float(texts(match.point[None], at))
        return {
            "prior": None if prior is None else prior.description,
            "prior_deviation": None if prior is None else prior.deviation,
        }

    def _reordering(self, texts: DummyTexts, seen: Observation, job: Job) -> Reordering:
        prior = None
        if self._weight:
            tokens = seen.spec.require(TextSpec).tokens
            public = seen.know(Knowledge.PRIOR) if self.prior == NGRAM else None
            prior = language_prior(self.prior, public, tokens, job.device)
        return Reordering(texts, prior, candidates=self.candidates, weight=self._weight)


def _best(points: Tensor, texts: DummyTexts, candidate: int) -> Tensor:
    """The point (n,) of points (K, n) with the lowest distance."""
    which = torch.full((len(points),), candidate, device=points.device)
    with torch.no_grad():
        return points[int(texts.distance(points, which).argmin())]
