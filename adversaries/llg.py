"""LLG: the labels of a batch, with multiplicity, from the projection layer's gradient alone."""

from collections import Counter
from typing import ClassVar

import torch

from fedsim.adversary import Adversary, Job
from fedsim.gradients import head_gradient
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction

__all__ = ["LLG"]


class LLG(Adversary):
    """Label counts of a batch from the sums of the last layer's gradient, and no model.

    With cross-entropy, dL/dW has a row (p_i - y_i) h' for each class i, averaged over examples.
    Where the activations h before the head are non-negative, the row's sum g_i can only be
    negative if class i occurs; and each occurrence lowers g_i by about the same amount, the
    impact m, whatever the weights. So: emit every class with g_i < 0 once and take m off; then
    keep emitting the smallest g_i, taking m off each time, until |D| labels are out.

    Units: m = (1 + 1/n) / |D| * (sum of the negative g_i) is relative to g, and the algorithm only
    compares, so a positive factor on the gradient changes nothing: the mean over local steps
    (fedsim's) and the sum over them (the paper's, under FedAvg) give the same labels, as does a
    gradient whose learning rate is not known. |D| counts all local steps: gamma B.

    Assumes: a non-negative activation before the head (sigmoid, ReLU), labels drawn from n
    classes, |D| known. No bias needed. Noise may leave more classes negative than there are
    examples: the most negative |D| are emitted.
    """

    name: ClassVar[str] = "llg"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT | Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = frozenset({"label_set", "label_counts", "labels"})
    cites: ClassVar[str] = (
        "Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning, "
        "PoPETs 2022, Algorithm 1"
    )

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Emit |D| labels; raises `ValueError` where the gradient says nothing at all."""
        size = int(seen.know(Knowledge.BATCH_SIZE))
        n = seen.spec.classes
        g = head_gradient(seen.know(Knowledge.HEAD_GRADIENT), seen.head, n).class_sums().double()
        negative = torch.nonzero(g < 0).flatten()
        m = float(g[negative].sum()) / size * (1 + 1 / n)

        present = negative[g[negative].argsort()][:size]
        emitted = Counter(present.tolist())
        rest = g.clone()
        rest[present] -= m
        for _ in range(size - len(present)):
            label = int(rest.argmin())
            emitted[label] += 1
            rest[label] -= m

        return Reconstruction(
            label_set=frozenset(emitted),
            label_counts=dict(sorted(emitted.items())),
            labels=torch.tensor(sorted(emitted.elements()), dtype=torch.int64),
            diagnostics={"impact": m, "negative_classes": len(negative)},
        )
