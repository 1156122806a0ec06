"""What attacks share that seek texts whose gradient is the one observed."""

from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from adversaries.dummy_texts import MATCHED, Case, DummyTexts
from fedsim.adversary import Adversary, Job
from fedsim.gradients import (
    Adam,
    Match,
    Optimizer,
    Rules,
    TextDistance,
    TextMetric,
    in_groups,
    minimise,
    numerical_rank,
)
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction, Tokens
from fedsim.victim import VictimModel

__all__ = ["TextMatching"]

TOGETHER = 1024
"""Tokens of dummy texts that one optimisation holds at most, all its victims together."""

PADDED = 4
"""Victims whose longest texts end in the same so many tokens are attacked together."""

MOST_LABELS = 64
"""Labels of a batch that are tried at most where they are not known."""


class TextMatching(Adversary):
    """Seeks the texts of a batch by making dummy embeddings whose gradient is the same.

    Word embeddings of the tokens that are sought start at random and are moved by Adam; the tokens
    with the largest cosine are claimed, of the point with the lowest distance that any start came
    to. Tokens around every text are known; so are those that were masked, to who has the labels.

    Labels and lengths must be granted, or with `unknown` = "enumerate" all labels are tried, and
    of a single text all lengths, or the one that the rank of the gradient tells.

    Assumes one step on one batch, without dropout; after several local steps the mean gradient is
    matched as if it were that of one. Victims of a round with the same number of texts are
    attacked in one batched optimisation.
    """

    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = frozenset({"tokens", "text", "objective", "outcomes"})
    group: ClassVar[int] = 20

    steps: int = Field(default=2500, ge=1, description="steps of Adam a start")
    lr: float = Field(default=0.1, gt=0, description="step length")
    restarts: int = Field(
        default=0, ge=0, description="further starts, side by side; the lowest distance is claimed"
    )
    labels_from: str = Field(
        default="given",
        description='"given" (the threat model grants LABELS), or another adversary by name',
    )
    unknown: Literal["refuse", "enumerate"] = Field(
        default="refuse",
        description="what of labels and lengths that are not granted: try all of them (as many "
        "attacks), or be denied",
    )
    parameters: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default={"*": 1.0},
        description="what each parameter's distance counts, by name pattern; one that no pattern "
        "fits is left out, as are word embeddings and the biases of key projections",
    )
    precision: Literal["float32", "float64"] = Field(
        default="float32", description="floating-point type of the optimisation"
    )

    def requires(self) -> Knowledge:
        """Labels and lengths too, unless they are to be tried."""
        required = super().requires()
        if self.unknown == "refuse":
            return required | Knowledge.LENGTHS
        return required if self.labels_from != "given" else required & ~Knowledge.LABELS

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient; raises `ValueError` where model or update are of another kind."""
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Match many at once: those with the same model, and as many texts of about one length."""
        cases = [self._cases(one, job) for one, job in zip(seen, jobs, strict=True)]
        longest = [max(int(case.lengths.max()) for case in some) for some in cases]
        keys = [
            (len(some[0].lengths), some[0].labels.ndim, -(-most // PADDED))
            for some, most in zip(cases, longest, strict=True)
        ]

        def width(at: int) -> int:
            tokens = len(cases[at]) * (1 + self.restarts) * keys[at][0] * longest[at]
            return max(1, TOGETHER // tokens)

        return in_groups(
            [one.know(Knowledge.MODEL) for one in seen],
            keys,
            lambda some: self._match(
                [seen[i] for i in some], [jobs[i] for i in some], [cases[i] for i in some]
            ),
            most=width,
        )

    def metric(self) -> tuple[TextMetric, float, float]:
        """The distance, TAG's weight of ||.||_1, and that of LAMP's regulariser."""
        raise NotImplementedError

    def schedule(self, step: int) -> float:
        """Factor of the step length."""
        return 1.0

    def first(self, texts: DummyTexts, case: int, job: Job) -> Tensor:
        """A starting point (n,)."""
        return texts.start(job.rng, case, 1, texts.typical / texts.shape[2] ** 0.5)[0]

    def optimizer(
        self, starts: Tensor, texts: DummyTexts, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> Optimizer:
        """One of all starts (R, n), of which start i is of case i mod len(jobs)."""
        return Adam(starts, lr=self.lr, schedule=self.schedule)

    def finished(
        self, match: Match, case: int, texts: DummyTexts, seen: Observation, job: Job
    ) -> dict[str, Any]:
        """Do what is left to do to a match, in place; further diagnostics."""
        return {}

    def cautions(self, model: VictimModel) -> list[str]:
        """Dropout that is on."""
        if any(
            isinstance(part, nn.Dropout) and part.training and part.p
            for part in model.module.modules()
        ):
            return [
                "the model drops units at random: its gradient is that of masks nobody knows, and "
                f"{self.name} matches the gradient of a model without"
            ]
        return []

    def _match(
        self, seen: Sequence[Observation], jobs: Sequence[Job], known: Sequence[Sequence[Case]]
    ) -> list[Reconstruction]:
        model = seen[0].know(Knowledge.MODEL)
        tokens, words = _text_model(self.name, seen[0], model)
        cases = [case for some in known for case in some]
        of = [victim for victim, some in enumerate(known) for _ in some]
        longest = max(int(case.lengths.max()) for case in cases)
        metric, l1, norm_weight = self.metric()
        dtype, device = getattr(torch, self.precision), jobs[0].device
        gradients = [one.know(Knowledge.GRADIENT) for one in seen]
        far = TextDistance(
            model,
            [gradients[victim] for victim in of],
            [_padded(case.labels, longest) for case in cases],
            [case.lengths for case in cases],
            distance=metric,
            parameters=self.parameters,
            l1=l1,
            device=device,
            dtype=dtype,
        )
        texts = DummyTexts(far, cases, tokens, words.to(device, dtype), norm_weight=norm_weight)
        own, views = [jobs[victim] for victim in of], [seen[victim] for victim in of]
        matches = minimise(
            texts,
            lambda case: self.first(texts, case, own[case]),
            own,
            lambda starts: self.optimizer(starts, texts, views, own),
            [
                Rules(
                    self.steps,
                    evaluations=1,
                    matched=float(texts.matched[case]),
                    patience=self.steps,
                )
                for case in range(len(cases))
            ],
            restarts=self.restarts,
            all_starts=True,
        )
        told = [
            self.finished(match, case, texts, views[case], own[case])
            for case, match in enumerate(matches)
        ]
        found = []
        for victim, (one, job) in enumerate(zip(seen, jobs, strict=True)):
            mine = [case for case, whose in enumerate(of) if whose == victim]
            best = min(mine, key=lambda case: matches[case].value)
            more = {
                "cases": len(mine),
                "labels": cases[best].labels.tolist(),
                "lengths": cases[best].lengths.tolist(),
                **told[best],
            }
            found.append(self._claim(matches[best], best, texts, one, job, more))
        return found

    def _claim(
        self,
        match: Match,
        case: int,
        texts: DummyTexts,
        seen: Observation,
        job: Job,
        more: dict[str, Any],
    ) -> Reconstruction:
        at = torch.tensor([case], device=texts.words.device)
        read = texts.read(match.point[None], at)
        ids = [
            one[:length] for one, length in zip(read[0], texts.lengths[case].tolist(), strict=True)
        ]
        tokens = seen.spec.tokens
        assert tokens is not None  # noqa: S101 - `_text_model` has looked
        with torch.no_grad():
            exact = texts.embedded(texts.fed(read, at), at)
            apart = float(texts.far(exact, at) / texts.far.none[case])
        return Reconstruction(
            tokens=ids,
            text=[tokens.spell(one.tolist()) for one in ids],
            objective=match.value,
            outcomes=tuple(match.outcomes),
            trace=tuple(job.trace),
            diagnostics={
                "evaluations": match.evaluations,
                "token_distance": apart,
                "verified": apart < MATCHED,
                "exact_gradient": seen.exact,
                **more,
            },
        )

    def _cases(self, seen: Observation, job: Job) -> list[Case]:
        """What the batch may be: one case where labels and lengths are known."""
        size = int(seen.know(Knowledge.BATCH_SIZE))
        tokens, _ = _text_model(self.name, seen, seen.know(Knowledge.MODEL))
        found = []
        for labels, lengths in product(
            self._labels(seen, job, size), self._lengths(seen, job, tokens, size)
        ):
            least = len(tokens.prefix) + len(tokens.suffix) + 1
            if int(lengths.min()) < least or int(lengths.max()) > tokens.longest:
                raise ValueError(
                    f"texts of {lengths.tolist()} tokens; expected {least} to {tokens.longest}, "
                    "those around a text included"
                )
            if labels.ndim == 1 and not (
                int(labels.min()) >= 0 and int(labels.max()) < seen.spec.classes
            ):
                raise ValueError(f"labels {labels.tolist()}; expected 0 to {seen.spec.classes - 1}")
            found.append(Case(labels, lengths))
        return found

    def _labels(self, seen: Observation, job: Job, size: int) -> list[Tensor]:
        if self.labels_from != "given" or Knowledge.LABELS in seen.granted:
            given = self.labels(seen, job)
            assert given is not None  # noqa: S101 - `labels_from` names a source
            return [given]
        if seen.spec.classes**size > MOST_LABELS:
            raise ValueError(
                f"{seen.spec.classes} labels of {size} texts are too many to try "
                f"(over {MOST_LABELS}): grant LABELS, or name an attack on labels in labels_from"
            )
        every = range(seen.spec.classes)
        return [torch.tensor(one) for one in product(every, repeat=size)]

    def _lengths(self, seen: Observation, job: Job, tokens: Tokens, size: int) -> list[Tensor]:
        if Knowledge.LENGTHS in seen.granted:
            return [torch.tensor([int(length) for length in seen.know(Knowledge.LENGTHS)])]
        if size > 1:
            raise ValueError(
                f"the lengths of {size} texts are not known, and {self.name} tries those of a "
                "single one: grant LENGTHS"
            )
        least = len(tokens.prefix) + len(tokens.suffix) + 1
        rank = _rank(seen, job)
        if least <= rank <= tokens.longest:
            return [torch.tensor([rank])]
        return [torch.tensor([length]) for length in range(least, tokens.longest + 1)]


def _text_model(name: str, seen: Observation, model: VictimModel) -> tuple[Tokens, Tensor]:
    """Tokens and word embeddings (V, d); raises `ValueError` where the task is none of text."""
    tokens, words = seen.spec.tokens, model.embedding
    if tokens is None or words is None or "embedding" not in model.points:
        raise ValueError(f"this task's inputs are no text, and {name} finds nothing else")
    return tokens, words


def _padded(labels: Tensor, longest: int) -> Tensor:
    """Labels (B,) as they are; those of masked words (B, longest), -100 beyond."""
    if labels.ndim == 1:
        return labels
    found = labels.new_full((len(labels), longest), -100)
    width = min(longest, labels.shape[1])
    found[:, :width] = labels[:, :width]
    return found


def _rank(seen: Observation, job: Job) -> int:
    """How many tokens a gradient's matrices say there are; 0 where they are full of noise."""
    model, gradient = seen.know(Knowledge.MODEL), seen.know(Knowledge.GRADIENT)
    ranks = [0]
    for name, value in gradient.items():
        if value.ndim == 2 and name != model.words and not name.startswith(f"{seen.head}."):
            rank = numerical_rank(value, job.rng)
            ranks.append(0 if rank >= min(value.shape) else rank)
    return max(ranks)
