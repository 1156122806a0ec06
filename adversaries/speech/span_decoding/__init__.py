"""span-decoding: a whole transcript label by label, checked against the gradient's row spaces."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from adversaries.speech.span_decoding.decoder_steps import Walk
from adversaries.speech.transcript_attack import TranscriptAttack, claim
from fedsim.adversary import Job
from fedsim.records import END, Observation, Reconstruction
from fedsim.victim import VictimModel

__all__ = ["SpanDecoding"]

MATCHED = 1e-6
"""Squared distance, as a share of the gradient's squared norm, that wrong transcripts exceed."""

NOTHING = 1.0
"""The same of a gradient that is zero: what is further away has nothing in common."""

MISJUDGED = (0, 1, -1, 2, -2, 3, -3)
"""How far the number of labels may be off, in the order in which it is tried."""

APART = 1e3
"""How many times the lowest residual a hypothesis may have and still be followed."""


class SpanDecoding(TranscriptAttack):
    """The transcript of one utterance, exactly: the decoder is run again, its layers as checks.

    What entered a layer lies in its gradient's row space. Given the labels and context vectors
    before a step, the decoder's state s_i is known, and the layer behind the attention took
    [s_i; a_i; 1]: its row space tells a_i. What the next label was shows one step later: with a
    wrong one, what enters the layers has left their row spaces. Nothing is optimised, and repeated
    labels make no difference. Each step runs the decoder from the start for every label of the set.

    The set of labels is another attack's. Their number shows by itself: after each step the
    gradient of the transcript that would end there is compared with the one observed.

    Assumes one utterance in one step, whose last label is known to be 0, the end. Claims every
    label, the end included.
    """

    name: ClassVar[str] = "span-decoding"
    keywords = (
        "exact recovery",
        "transcript reconstruction",
        "speech recognition",
        "low rank",
        "row space",
    )
    recovers: ClassVar[frozenset[str]] = TranscriptAttack.recovers - {"outcomes"}
    cites: ClassVar[str] = (
        "This project's, after the span check of Petrov et al., DAGER: Exact Gradient Inversion "
        "for Large Language Models, NeurIPS 2024"
    )

    beam: int = Field(default=8, ge=1)
    """Beginnings that are followed, at most."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Decode; raises `ValueError` where the decoder is too narrow for so many labels."""
        model, gradient = self.decoder(seen)
        revealed, told, source = self.bag(seen, job)
        bag = torch.tensor(sorted(revealed | {END}))
        walk = Walk(model, gradient, bag, device=job.device)
        ended = _Ended(model, gradient, walk.matched, job.device)
        found: list[tuple[float, int, Tensor, float]] = []
        # Where noise hides the number of labels, the next ones on both sides are tried as well.
        for length in (n for n in (told + by for by in MISJUDGED) if n > 0):
            try:
                counted = walk.cut(length)
            except ValueError:
                if length == told:
                    raise
                continue
            kept = walk.start()
            for step in job.steps(walk.longest):
                if step:
                    kept = walk.step(kept).best(self.beam, APART)
                labels = functional.pad(bag[kept.labels[0].cpu()], (0, 1), value=END)
                distance = ended(kept.contexts[0], labels)
                found.append((distance, len(found), labels, float(kept.residuals[0])))
                job.progress(len(found), distance)
                if distance < MATCHED:
                    break
            if distance < MATCHED or not counted or min(one[0] for one in found) > NOTHING:
                break
        distance, _, labels, residual = min(found, key=lambda one: one[:2])
        return claim(
            labels,
            objective=distance,
            trace=tuple(job.trace),
            diagnostics={
                "bag": len(bag),
                "labels_told": told,
                "told_by": source,
                "residual": residual,
                "exact_gradient": seen.exact,
            },
        )


class _Ended:
    """How far from the gradient observed that of a transcript is, behind the attention."""

    def __init__(
        self,
        model: VictimModel,
        gradient: Mapping[str, Tensor],
        names: list[str],
        device: torch.device,
    ) -> None:
        self._model = model.copy().to(device)
        self._model.module.double()
        self._theirs = {name: gradient[name].to(device).double() for name in names}
        self._whole = sum(float(one.square().sum()) for one in self._theirs.values())
        if not self._whole:
            raise ValueError("the gradient is zero throughout: nothing was learned")

    def __call__(self, contexts: Tensor, labels: Tensor) -> float:
        """contexts (S, d_A), labels (S,): squared distance, as a share of the squared norm."""
        ours = self._model.gradient(
            contexts[None], labels[None].to(contexts.device), at="context", names=self._theirs
        )
        apart = sum(float((one - self._theirs[name]).square().sum()) for name, one in ours.items())
        return apart / self._whole
