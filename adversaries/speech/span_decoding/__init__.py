"""span-decoding: transcripts label by label, checked against the row spaces of the gradient."""

import math
from collections.abc import Callable, Mapping

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from adversaries.speech.span_decoding.decoder_steps import Walk
from adversaries.speech.transcript_attack import TranscriptAttack, claim
from fedsim import Job, VictimModel
from fedsim.records import END, Observation, Reconstruction

MATCHED = 1e-6
"""Squared distance, as a share of the gradient's squared norm, below which labels are correct."""

NOTHING = 1.0
"""The same share for a gradient of zero; transcripts beyond it are unrelated to the gradient."""

MISJUDGED = (0, 1, -1, 2, -2, 3, -3)
"""Corrections of the number of labels, in the order in which they are tried."""

APART = 1e3
"""Factor of the lowest residual beyond which a hypothesis is dropped."""


class SpanDecoding(TranscriptAttack):
    """Recovers the exact transcript of one utterance by decoding it step by step.

    The inputs of a layer lie in the row space of its weight gradient. Given the labels and context
    vectors before step i, the decoder's state s_i is known. The layer behind the attention receives
    [s_i; a_i; 1], so its row space determines the context vector a_i. A wrong label is detected one
    step later, when the inputs of the layers leave their row spaces. Nothing is optimised, and
    repeated labels need no special treatment. Each step runs the decoder from the start for every
    label of the set.

    Another attack provides the set of labels. Their number follows from the search: after each step
    the gradient of the transcript that would end there is compared with the one observed.

    The attack assumes one utterance in one local step whose last label is 0 (the end of the
    sentence). It claims every label, the end included.
    """

    name = "span-decoding"
    keywords = (
        "exact recovery",
        "transcript reconstruction",
        "speech recognition",
        "low rank",
        "row space",
    )
    recovers = TranscriptAttack.recovers - {"outcomes"}
    cites = (
        "This project's, after the span check of Petrov et al., DAGER: Exact Gradient Inversion "
        "for Large Language Models, NeurIPS 2024"
    )

    beam: int = Field(default=8, ge=1)
    """The largest number of hypotheses that are followed."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Decode the transcript.

        Raises:
            ValueError: The model has no attention, the update holds several examples or steps, or
                the decoder is too narrow for the number of labels.
        """
        model, gradient = self.decoder(seen)
        revealed, number, source = self.bag(seen, job)
        bag = torch.tensor(sorted(revealed | {END}))
        walk = Walk(model, gradient, bag, device=job.device)
        apart = _distance_to(model, {name: gradient[name] for name in walk.matched}, job.device)
        found: list[tuple[float, int, Tensor, float]] = []
        # If noise hides the number of labels, its neighbours are tried as well.
        for length in (n for n in (number + by for by in MISJUDGED) if n > 0):
            try:
                counted = walk.cut(length)
            except ValueError:
                if length == number:
                    raise
                continue
            kept, distance = walk.start(), math.inf
            for step in job.steps(walk.longest):
                if step:
                    kept = walk.step(kept).best(self.beam, APART)
                labels = functional.pad(bag[kept.labels[0].cpu()], (0, 1), value=END)
                distance = apart(kept.contexts[0], labels)
                found.append((distance, len(found), labels, float(kept.residuals[0])))
                job.progress(len(found), distance)
                if distance < MATCHED:
                    break
            closest = min((one[0] for one in found), default=math.inf)
            if distance < MATCHED or not counted or closest > NOTHING:
                break
        if not found:
            raise ValueError("the budget was used up before the first step; raise it")
        distance, _, labels, residual = min(found, key=lambda one: one[:2])
        return claim(
            labels,
            objective=distance,
            trace=tuple(job.trace),
            diagnostics={
                "bag": len(bag),
                "labels_told": number,
                "told_by": source,
                "residual": residual,
                "exact_gradient": seen.exact,
            },
        )


def _distance_to(
    model: VictimModel, gradient: Mapping[str, Tensor], device: torch.device
) -> Callable[[Tensor, Tensor], float]:
    """Make the distance between a transcript's gradient and an observed one.

    Args:
        model: The victim's model.
        gradient: The gradient of layers behind the attention.
        device: Device of the computation.

    Returns:
        Maps context vectors (S, d_A) and labels (S,) to the squared distance, relative to the
        squared norm of the observed gradient.

    Raises:
        ValueError: The gradient is zero.
    """
    own = model.copy().to(device)
    own.module.double()
    theirs = {name: value.to(device).double() for name, value in gradient.items()}
    whole = sum(float(one.square().sum()) for one in theirs.values())
    if not whole:
        raise ValueError("the gradient is zero throughout: nothing was learned")

    def distance(contexts: Tensor, labels: Tensor) -> float:
        ours = own.gradient(contexts[None], labels[None].to(device), at="context", names=theirs)
        apart = [(one - theirs[k]).square().sum() for k, one in ours.items()]
        return float(sum(torch.stack(apart).tolist()) / whole)

    return distance
