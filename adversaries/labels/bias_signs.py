"""Label inference by signs: the classes with a negative gradient at the head."""

from typing import Literal

import torch
from torch import Tensor

from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction, Requirement
from fedsim.gradients import HeadGradient, claim_labels


class BiasSigns(Adversary):
    """Classes whose entry in the gradient of the head's bias is negative, one example each.

    With cross-entropy the gradient of the head's bias is d_i = mean (p_i - y_i). Only an example
    of class i can make it negative, whatever the activations, the weights or the batch. With
    `of = "weight"` the signs are those of g_i, the row sums of the weight's gradient, which are
    the same if activations are non-negative. This is the first step of LLG.

    With one local step, cross-entropy without label smoothing, no weight decay and no noise, every
    claimed class is in the batch. A class of the batch may be missed, because p_i may outweigh its
    examples. The attack neither needs the number of examples nor estimates counts, and it may claim
    no class at all.
    """

    name = "bias-signs"
    keywords = ("label inference", "label leakage", "label set")
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"label_set", "label_counts", "labels"})
    cites = (
        "Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning, "
        "PoPETs 2022, Eq. 9 and Property 1"
    )
    requirements = (
        Requirement("missing_bias", "the signs are those of the bias", most=0),
        Requirement("unmarked", "it claims one example for a negative class", most=0.4),
        Requirement("imbalance", "noise turns the signs of small entries", most=1.0),
    )

    of: Literal["bias", "weight"] = "bias"
    """Gradient whose signs are used: "bias": that of the head's bias; "weight": the row sums of the
    gradient of the head's weight."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim the classes with a negative gradient.

        Raises:
            ValueError: The head's gradient is missing, is zero, or holds NaN or Inf.
        """
        claimed = torch.nonzero(self._signed(seen) < 0).flatten().cpu()
        notes = {} if len(claimed) else {"note": "no class has a negative gradient"}
        return claim_labels(claimed, diagnostics=notes)

    def _signed(self, seen: Observation) -> Tensor:
        n, head = seen.spec.classes, HeadGradient.of(seen)
        if self.of == "weight":
            return head.class_sums()
        if head.bias is None:
            raise ValueError(
                f"the head '{seen.head}' sends no gradient of a bias; expected '{seen.head}.bias'. "
                'Set of = "weight", which does without'
            )
        if head.bias.shape != (n,):
            raise ValueError(
                f"'{seen.head}.bias' has shape {tuple(head.bias.shape)}, expected {(n,)}"
            )
        if not torch.isfinite(head.bias).all() or not head.bias.any():
            raise ValueError(f"the gradient of '{seen.head}.bias' holds NaN or Inf, or only zeros")
        return head.bias
