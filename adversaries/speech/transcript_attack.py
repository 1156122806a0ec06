"""What attacks on the decoder of a recogniser share: the kind of update, the bag, the claim."""

from collections import Counter
from typing import Any, ClassVar

from torch import Tensor

from fedsim.adversary import Adversary, Job, Source
from fedsim.gradients import head_gradient, numerical_rank
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.spec import SpeechSpec
from fedsim.victim import VictimModel

__all__ = ["TranscriptAttack", "claim"]


class TranscriptAttack(Adversary):
    """An attack on the transcript of one utterance, from the gradient of a decoder with attention.

    Such a decoder takes from the encoder nothing but a context vector a_i a step, so that neither
    the frames nor their number have to be found. Assumes one utterance in one step, whose last
    label is 0, the end; a model with the point "context" that says by `context_size` what d_A is.
    """

    suits = (SpeechSpec,)
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL
    recovers: ClassVar[frozenset[str]] = frozenset(
        {"sequences", "num_labels", "labels", "label_counts", "label_set", "objective", "outcomes"}
    )

    labels_from: Source = "rlg"
    """The set of labels: another adversary by name, or "given" (the threat model grants
    LABELS, of which only the set and the number are used)."""

    def cautions(self, model: VictimModel) -> list[str]:
        """A model without attention, and what its parts say."""
        return [*filter(None, [self._unfit(model)]), *super().cautions(model)]

    def _unfit(self, model: VictimModel) -> str | None:
        if "context" in model.points and hasattr(model.module, "context_size"):
            return None
        return (
            f"the model has no point 'context' to feed context vectors at; {self.name} is for "
            "recognisers with attention, such as las"
        )

    def decoder(self, seen: Observation) -> tuple[VictimModel, dict[str, Tensor]]:
        """Model and gradient; raises `ValueError` where they are of another kind."""
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
        """The set of labels, how many there are in all, and who says so: the attack, or "rank"."""
        if self.labels_from == "given":
            given = seen.know(Knowledge.LABELS).flatten()
            given = given[given >= 0].tolist()
            return frozenset(given), len(given), "given"
        head = head_gradient(seen.know(Knowledge.GRADIENT), seen.head, seen.spec.classes)
        source = self.source("labels_from")
        claimed = self.parts()["labels_from"].reconstruct(seen, job)
        if claimed.label_set is None:
            raise ValueError(
                f"labels_from = '{source}' claims no set of labels; use an adversary "
                "that does, such as rlg"
            )
        if claimed.num_labels is None:
            return claimed.label_set, numerical_rank(head.weight, job.rng), "rank"
        return claimed.label_set, claimed.num_labels, source


def claim(labels: Tensor, **more: Any) -> Reconstruction:
    """Labels (S,) int64 of one utterance, the end included, and what else is known of them."""
    return Reconstruction(
        sequences=[labels],
        num_labels=len(labels),
        labels=labels,
        label_counts=dict(sorted(Counter(labels.tolist()).items())),
        label_set=frozenset(labels.tolist()),
        **more,
    )
