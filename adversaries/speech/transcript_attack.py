"""Base class of attacks on transcripts, from the gradient of a decoder with attention."""

from typing import Any

from torch import Tensor
from torch.linalg import svdvals

from fedsim import Knowledge, Observation, Reconstruction, Requirement, SpeechSpec, VictimModel
from fedsim.adversary import Adversary, Job, Source
from fedsim.gradients import HeadGradient, claim_labels, filled_sides, rank_above, rank_of, rounding


class TranscriptAttack(Adversary):
    """Base class of attacks on the transcript of one utterance through the decoder's gradient.

    A decoder with attention receives nothing from the encoder but one context vector a_i of d_A
    values in each step. So neither the frames nor their number have to be found. The attacks assume
    one utterance in one local step whose last label is 0 (the end of the sentence), and a model
    with the feeding point "context" whose attribute `context_size` is d_A.
    """

    suits = (SpeechSpec,)
    needs = Knowledge.GRADIENT | Knowledge.MODEL
    recovers = frozenset(
        {"sequences", "num_labels", "labels", "label_counts", "label_set", "objective", "outcomes"}
    )
    requirements = (
        Requirement("examples", "it decodes one utterance", most=1),
        Requirement("optimizer", "other optimizers change the row spaces", only=("sgd",)),
        Requirement("head_fill", "the labels are those that the head's rank shows", most=0.95),
    )

    labels_from: Source = "rlg"
    """Source of the set of labels: another adversary by name, or "given" (the threat model grants
    LABELS; only their set and number are used)."""

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of a model without attention, and pass on the warnings of `labels_from`."""
        return [*filter(None, [self._unfit(model)]), *super().cautions(model)]

    def _unfit(self, model: VictimModel) -> str | None:
        if "context" in model.points and hasattr(model.module, "context_size"):
            return None
        return (
            f"the model has no point 'context' to feed context vectors at; {self.name} is for "
            "recognisers with attention, such as las"
        )

    def decoder(self, seen: Observation) -> tuple[VictimModel, dict[str, Tensor]]:
        """The model and its gradient.

        Raises:
            ValueError: The model has no attention, or the update holds several examples or steps.
        """
        model, gradient = seen.know(Knowledge.MODEL), seen.know(Knowledge.GRADIENT)
        if unfit := self._unfit(model):
            raise ValueError(unfit)
        if seen.num_examples not in (None, 1):
            raise ValueError(
                f"{seen.num_examples} examples are behind this gradient, and {self.name} reads "
                "one: set training.batch_size = 1"
            )
        if seen.steps not in (None, 1):
            raise ValueError(
                f"{seen.steps} local steps are behind this gradient, and {self.name} reads one: "
                "set training.local_steps = 1"
            )
        return model, dict(gradient)

    def bag(self, seen: Observation, job: Job) -> tuple[frozenset[int], int, str]:
        """The bag of labels.

        Returns:
            The set of labels, their number with multiplicity, and the source of the number: an
            adversary, "given", "rank" (of the head's gradient), or "full rank" (the rank tells
            noise from labels no longer, and there may be more).

        Raises:
            ValueError: The adversary in `labels_from` claims no set of labels.
        """
        if self.labels_from == "given":
            given = seen.know(Knowledge.LABELS).flatten()
            given = given[given >= 0].tolist()
            return frozenset(given), len(given), "given"
        weight = HeadGradient.of(seen).weight
        source = self.source("labels_from")
        claimed = self.parts()["labels_from"].reconstruct(seen, job)
        if claimed.label_set is None:
            raise ValueError(
                f"labels_from = '{source}' claims no set of labels; use an adversary "
                "that does, such as rlg"
            )
        if claimed.num_labels is None:
            # A transcript's sums are short, and a label that is missed spoils it.
            above = rank_above(svdvals(weight.double()), absolute=rounding(weight, sums=False))
            full = above == min(filled_sides(weight))
            rank = rank_of(weight, sums=False)
            return claimed.label_set, max(1, rank), "full rank" if full else "rank"
        return claimed.label_set, claimed.num_labels, source


def claim(labels: Tensor, **more: Any) -> Reconstruction:
    """Claim the labels of one utterance.

    Args:
        labels: (S,) int64, with the end label.
        **more: Further fields of `Reconstruction`.
    """
    return claim_labels(labels, sequences=[labels], num_labels=len(labels), **more)
