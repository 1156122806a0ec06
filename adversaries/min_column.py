"""The min-column rule: a batch's labels from the lowest entries of the head's gradient."""

from typing import ClassVar

import torch

from fedsim.adversary import Adversary, Job
from fedsim.gradients import head_gradient
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction

__all__ = ["MinColumn"]


class MinColumn(Adversary):
    """The |D| classes whose column of the head's gradient reaches lowest, one example each.

    Written features x classes, as in the paper, the gradient has a column h (p_i - y_i) for each
    class, averaged over examples. Where the activations h are non-negative, only examples of the
    class itself push its entries down; so the classes are ranked by the least entry of their
    column, and the first |D| are claimed.

    Assumes labels that do not repeat in the batch: of a batch with repeats, classes that are not
    in it are claimed in place of the second occurrence. Of more examples than classes, every class
    is claimed once. Assumes cross-entropy, a non-negative activation before the head, |D| known.
    """

    name: ClassVar[str] = "min-column"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT | Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = frozenset({"label_set", "label_counts", "labels"})
    cites: ClassVar[str] = (
        "Yin et al., See through Gradients: Image Batch Recovery via GradInversion, CVPR 2021, "
        "section 3 (label restoration)"
    )

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim min(|D|, n) labels; raises `ValueError` where the gradient says nothing at all."""
        size, n = int(seen.know(Knowledge.BATCH_SIZE)), seen.spec.classes
        head = head_gradient(seen.know(Knowledge.HEAD_GRADIENT), seen.head, n)
        claimed = sorted(head.weight.amin(dim=1).argsort()[:size].tolist())
        diagnostics = {}
        if size > n:
            diagnostics["note"] = (
                f"the rule claims each of {n} classes once at most; {size} examples have repeats"
            )
        return Reconstruction(
            label_set=frozenset(claimed),
            label_counts=dict.fromkeys(claimed, 1),
            labels=torch.tensor(claimed, dtype=torch.int64),
            diagnostics=diagnostics,
        )
