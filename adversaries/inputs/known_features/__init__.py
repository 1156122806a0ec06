"""What another attack knows of a batch at the head: features, labels and head errors."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from fedsim import Adversary, Job, Knowledge, Observation
from fedsim.gradients import HeadGradient, two_logits

EXPLAINED = 1e-2
"""Share of the head's gradient that features and labels may miss."""


@dataclass(frozen=True, slots=True)
class KnownBatch:
    """The examples of a batch, as they reach the head.

    Attributes:
        features: The head's inputs (B, d) float64.
        labels: The labels (B,) int64, in the same order.
        errors: The part of each example in the gradient of the logits (B, classes): softmax less
            one-hot label, divided by B.
    """

    features: Tensor
    labels: Tensor
    errors: Tensor

    @classmethod
    def found_by(cls, attack: Adversary, seen: Observation, job: Job) -> "KnownBatch":
        """Run an attack that recovers features and labels, such as feature-separation.

        Raises:
            ValueError: It finds none (it says why), not those of each example, or those that do not
                explain the head's gradient.
        """
        claimed = attack.reconstruct(seen, job)
        features, labels = claimed.features, claimed.labels
        if features is None or labels is None or len(features) != len(labels):
            raise ValueError(
                f"features_from = '{attack.name}' gives no features with labels; use "
                "feature-separation"
            )
        if seen.num_examples not in (None, len(labels)):
            raise ValueError(
                f"features_from = '{attack.name}' gives {len(labels)} examples; the update holds "
                f"{seen.num_examples}"
            )
        model = seen.know(Knowledge.MODEL)
        head = model.module.get_submodule(model.head)
        rows = features.double()
        outputs, classes = len(head.weight), seen.spec.classes
        weight = two_logits(head.weight.detach().to(rows), classes)
        bias = None if head.bias is None else two_logits(head.bias.detach().to(rows), classes)
        shares = functional.linear(rows, weight, bias).softmax(dim=1)
        hot = functional.one_hot(labels, len(weight)).to(rows)
        errors = (shares - hot) / len(labels)
        sent = HeadGradient.of(seen).weight.to(rows)
        missed = float((errors.T @ rows - sent).norm() / sent.norm())
        errors = errors[:, -outputs:]  # of one logit, the part in its gradient
        if not missed < EXPLAINED:
            raise ValueError(
                f"the features and labels of '{attack.name}' miss the head's gradient by "
                f"{missed:.2g} of it: examples may be clipped, or labels smoothed"
            )
        return cls(rows, labels, errors)
