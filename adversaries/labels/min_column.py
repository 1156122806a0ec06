"""The min-column rule: a batch's labels from the lowest entries of the head's gradient."""

from typing import ClassVar, Literal

import torch

from fedsim.adversary import Adversary, Job
from fedsim.gradients import head_gradient
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction

__all__ = ["MinColumn"]


class MinColumn(Adversary):
    """The classes whose column of the head's gradient reaches lowest, one example each.

    Written features x classes, as in the paper, the gradient has a column h (p_i - y_i) for each
    class, averaged over examples. Where the activations h are non-negative, only examples of the
    class itself push its entries down.

    `rule` says which are claimed: `lowest`, the first |D| by the least entry of their column; or
    `negative`, as Dang et al. (NeurIPS 2021, Eq. 5) put it, all whose least entry is below zero,
    however many they are.

    `lowest` assumes labels that do not repeat in the batch: of a batch with repeats, classes that
    are not in it are claimed in place of the second occurrence. Of more examples than classes,
    every class is claimed once. Both assume cross-entropy and a non-negative activation before the
    head; `lowest` that |D| is known.
    """

    name: ClassVar[str] = "min-column"
    keywords = ("label inference", "label leakage", "label set", "GradInversion", "Yin")
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_set", "label_counts", "labels"})
    cites: ClassVar[str] = (
        "Yin et al., See through Gradients: Image Batch Recovery via GradInversion, CVPR 2021, "
        "section 3 (label restoration)"
    )

    rule: Literal["lowest", "negative"] = "lowest"
    """Which classes are claimed: "lowest": the |D| whose column reaches lowest; "negative":
    all whose column has an entry below zero."""

    def requires(self) -> Knowledge:
        """Beside `needs`, how many labels to claim, where the rule does not say it itself."""
        counts = self.rule == "lowest"
        return super().requires() | (Knowledge.BATCH_SIZE if counts else Knowledge(0))

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim labels; raises `ValueError` where the gradient says nothing at all."""
        n = seen.spec.classes
        head = head_gradient(seen.know(Knowledge.HEAD_GRADIENT), seen.head, n)
        least = head.weight.amin(dim=1)
        diagnostics = {}
        if self.rule == "negative":
            claimed = torch.nonzero(least < 0).flatten().tolist()
        else:
            size = int(seen.know(Knowledge.BATCH_SIZE))
            claimed = sorted(least.argsort()[:size].tolist())
            if size > n:
                diagnostics["note"] = (
                    f"the rule claims each of {n} classes once at most; {size} examples have "
                    "repeats"
                )
        return Reconstruction(
            label_set=frozenset(claimed),
            label_counts=dict.fromkeys(claimed, 1),
            labels=torch.tensor(claimed, dtype=torch.int64),
            diagnostics=diagnostics,
        )
