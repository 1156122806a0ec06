"""Which labels a batch holds, for certain: the classes with a negative gradient at the head."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedsim.adversary import Adversary, Job
from fedsim.gradients import head_gradient
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction

__all__ = ["BiasSigns"]


class BiasSigns(Adversary):
    """The classes whose entry in the head's gradient is negative, one example each.

    With cross-entropy the gradient of the head's bias is d_i = mean (p_i - y_i): only an example
    of class i can make it negative, whatever the activations, the weights or the batch.
    `of = "weight"` reads g_i, the row sums of the weight's gradient, instead: with non-negative
    activations its sign says the same. That is the first step of LLG.

    What is claimed is in the batch (one local step, cross-entropy, no noise); what is in the batch
    need not be claimed, as p_i may outweigh the examples. |D| is not asked for and counts are not
    told. May claim nothing.
    """

    name: ClassVar[str] = "bias-signs"
    keywords = ("label inference", "label leakage", "label set")
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_set", "label_counts", "labels"})
    cites: ClassVar[str] = (
        "Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning, "
        "PoPETs 2022, Eq. 9 and Property 1"
    )

    of: Literal["bias", "weight"] = "bias"
    """ "bias": its gradient; "weight": row sums of the weight's."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim the negative classes; raises `ValueError` where there is no gradient to read."""
        g = self._signed(seen)
        claimed = torch.nonzero(g < 0).flatten().tolist()
        return Reconstruction(
            label_set=frozenset(claimed),
            label_counts=dict.fromkeys(claimed, 1),
            labels=torch.tensor(claimed, dtype=torch.int64),
            diagnostics={} if claimed else {"note": "no class has a negative gradient"},
        )

    def _signed(self, seen: Observation) -> Tensor:
        n = seen.spec.classes
        head = head_gradient(seen.know(Knowledge.HEAD_GRADIENT), seen.head, n)
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
