"""Base class of gradient matching attacks on text."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.text.dummy_texts import MATCHED, DummyTexts
from adversaries.text.text_attack import Candidate, TextAttack, padded
from fedsim import Job, Knowledge, Observation, Reconstruction, Requirement, VictimModel
from fedsim.gradients import (
    Adam,
    Checks,
    Comparison,
    Match,
    Optimizer,
    Restarts,
    Rules,
    TextDistance,
    TextMetric,
    in_groups,
    minimise,
)
from fedsim.gradients.problem import unmatched_patterns

TOGETHER = 1024
"""The largest number of dummy tokens in one optimisation, over all its victims."""

PADDED = 8
"""Victims are attacked together if their longest texts, rounded up to multiples of this number of
tokens, are equally long."""

READ_EVERY = 25
"""Steps from one comparison of the nearest tokens to the next. Each is a product of all positions
with the whole vocabulary."""


class TextMatching(TextAttack):
    """Base class of attacks that match the observed gradient with dummy embeddings.

    Embeddings of unknown tokens start at N(0, I) and are optimised, by Adam unless an attack says
    otherwise. The embeddings with the lowest distance over all starts are mapped to the tokens with
    the largest cosine. Special tokens around a text are known, and so are masked words if their
    labels are.

    The attack assumes one local step on one batch, without dropout. The mean gradient of several
    local steps is matched as if it were that of one. Victims of a round with the same number of
    texts are attacked in one batched optimisation.
    """

    keywords: ClassVar[tuple[str, ...]] = (
        "gradient inversion",
        "gradient matching",
        "text reconstruction",
    )
    recovers = frozenset({"tokens", "text", "objective", "outcomes"})
    requirements = (
        Requirement("examples", "every text adds unknowns, and no equations", most=4),
        Requirement("steps", "the gradient is matched as that of one step", most=1),
        Requirement("optimizer", "it matches a gradient, not steps of it", only=("sgd",)),
        Requirement("dropout", "the masks are not known", most=0),
    )
    group = 8

    @property
    def ends(self) -> bool:
        """Whether the final point of a start is claimed instead of its lowest one."""
        return False

    @property
    def settles_after(self) -> int:
        """Steps before which `unchanged` does not count."""
        return 0

    steps: int = Field(default=2500, ge=1)
    """Number of steps of the optimizer for each start."""

    lr: float = Field(default=0.1, gt=0)
    """Learning rate of Adam."""

    unchanged: int = Field(default=0, ge=0)
    """Number of steps without a change of the nearest tokens after which a start ends, compared
    every 25 steps; 0: it takes all steps. Of lamp's steps those before the first reordering do not
    count."""

    restarts: int = Field(default=0, ge=0)
    """Number of further starts, optimised together; the lowest distance is claimed."""

    start_length: Literal["normal", "vocabulary"] | None = None
    """Length of initial embeddings: that of N(0, I) ("normal"), or scaled to the mean length of the
    vocabulary's ("vocabulary"); by default normal, for lamp according to `fidelity`."""

    parameters: dict[str, Annotated[float, Field(ge=0)]] = Field(default={"*": 1.0})
    """Weights of the parameters' distances by name pattern; a parameter that matches no pattern is
    left out, as are word embeddings and the biases of key projections."""

    precision: Literal["float32", "float64"] = "float32"
    """Floating-point type of the optimisation."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient.

        Raises:
            ValueError: The inputs of the task are no text, or the candidates are not valid.
        """
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Match the gradients of victims with equal models and similar batches together."""
        candidates = [self.candidate_batches(one, job) for one, job in zip(seen, jobs, strict=True)]
        longest = [max(int(candidate.lengths.max()) for candidate in some) for some in candidates]
        keys = [
            (len(some[0].lengths), some[0].labels.ndim, -(-most // PADDED))
            for some, most in zip(candidates, longest, strict=True)
        ]

        def width(at: int) -> int:
            tokens = len(candidates[at]) * (1 + self.restarts) * keys[at][0] * longest[at]
            return max(1, TOGETHER // tokens)

        return in_groups(
            [one.know(Knowledge.MODEL) for one in seen],
            keys,
            lambda some: self._match(
                [seen[i] for i in some], [jobs[i] for i in some], [candidates[i] for i in some]
            ),
            most=width,
        )

    @abstractmethod
    def metric(self) -> tuple[TextMetric, float, float]:
        """Distance between gradients, weight of its L1 norm, and weight of LAMP's regulariser."""

    def schedule(self, step: int) -> float:
        """Factor of the step length at a step; 1 by default."""
        return 1.0

    def first(self, texts: DummyTexts, candidate: int, job: Job) -> Tensor:
        """Draw an initial point (n,)."""
        return texts.start(job.rng, candidate, 1, self.spread(texts))[0]

    def spread(self, texts: DummyTexts) -> float:
        """Standard deviation of the coordinates of initial points."""
        return texts.spread if self.start_length == "vocabulary" else 1.0

    def ready(self, texts: DummyTexts, seen: Observation, job: Job) -> None:
        """Check before the first step what would otherwise fail after many steps."""

    def optimizer(
        self, starts: Tensor, texts: DummyTexts, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> Optimizer:
        """The optimizer of all starts (R, n); start i belongs to candidate i mod len(jobs)."""
        return Adam(starts, lr=self.lr, schedule=self.schedule)

    def finished(
        self, match: Match, candidate: int, texts: DummyTexts, seen: Observation, job: Job
    ) -> dict[str, Any]:
        """Finish a match in place, and return further diagnostics."""
        return {}

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of dropout and unmatched patterns; pass on the warnings of `labels_from`."""
        found = [*super().cautions(model), *unmatched_patterns(model, self.parameters)]
        if model.drops:
            found.append(
                "the model drops units at random: its gradient is that of masks nobody knows, and "
                f"{self.name} matches the gradient of a model without"
            )
        return found

    def _match(
        self, seen: Sequence[Observation], jobs: Sequence[Job], known: Sequence[Sequence[Candidate]]
    ) -> list[Reconstruction]:
        model = seen[0].know(Knowledge.MODEL)
        tokens, words = self.texts(seen[0])
        candidates = [candidate for some in known for candidate in some]
        of = [victim for victim, some in enumerate(known) for _ in some]
        longest = max(int(candidate.lengths.max()) for candidate in candidates)
        metric, l1, norm_weight = self.metric()
        dtype, device = getattr(torch, self.precision), jobs[0].device
        gradients = [one.know(Knowledge.GRADIENT) for one in seen]
        far = TextDistance(
            model,
            [gradients[victim] for victim in of],
            [padded(candidate.labels, longest) for candidate in candidates],
            [candidate.lengths for candidate in candidates],
            comparison=Comparison(metric, self.parameters, device, dtype),
            l1=l1,
        )
        texts = DummyTexts(
            far, candidates, tokens, words.to(device, dtype), norm_weight=norm_weight
        )
        own, views = [jobs[victim] for victim in of], [seen[victim] for victim in of]
        self.ready(texts, seen[0], jobs[0])
        rules = Rules(self.steps, evaluations=1, patience=self.steps, unchanged=self.unchanged)
        matches = minimise(
            texts,
            lambda candidate: self.first(texts, candidate, own[candidate]),
            own,
            lambda starts: self.optimizer(starts, texts, views, own),
            [rules] * len(candidates),
            restarts=Restarts(self.restarts, together=True, ends=self.ends),
            checks=Checks(
                proof=texts.proof,
                reading=texts.read if self.unchanged else None,
                every=READ_EVERY,
                after=self.settles_after,
            ),
        )
        finished = [
            self.finished(match, candidate, texts, views[candidate], own[candidate])
            for candidate, match in enumerate(matches)
        ]
        found = []
        for victim, (one, job) in enumerate(zip(seen, jobs, strict=True)):
            mine = [candidate for candidate, whose in enumerate(of) if whose == victim]
            best = min(
                mine, key=lambda at: ("matched" not in matches[at].outcomes, matches[at].value)
            )
            match = matches[best]
            ids, apart = texts.claimed(match.point, best)
            found.append(
                Reconstruction(
                    tokens=ids,
                    text=[tokens.spell(text.tolist()) for text in ids],
                    objective=match.value,
                    outcomes=tuple(match.outcomes),
                    trace=tuple(job.trace),
                    diagnostics={
                        "evaluations": match.evaluations,
                        "token_distance": apart,
                        "verified": apart < MATCHED[texts.far.distance],
                        "exact_gradient": one.exact,
                        "cases": len(mine),
                        "labels": candidates[best].labels.tolist(),
                        "lengths": candidates[best].lengths.tolist(),
                        **finished[best],
                    },
                )
            )
        return found
