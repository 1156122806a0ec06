"""The min-column rule: label inference from the smallest entries of the head's gradient."""

from typing import Literal

import torch

from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction, Requirement
from fedsim.gradients import HeadGradient, claim_labels


class MinColumn(Adversary):
    """Classes with the smallest entries in their columns of the head's gradient, one example each.

    Written as features x classes, as in the paper, the gradient has a column h (p_i - y_i) for each
    class, averaged over examples. If the activations h are non-negative, only examples of the class
    itself lower the column's entries.

    The setting `rule` chooses the claimed classes: "lowest" claims the |D| classes whose smallest
    entries are lowest; "negative" claims all classes whose smallest entry is below zero (Dang et
    al., NeurIPS 2021, Eq. 5).

    Both rules assume cross-entropy and a non-negative activation before the head. "lowest" also
    assumes that |D| is known and labels do not repeat in the batch. For each repeated label it
    claims a class that is not in the batch; for more examples than classes it claims all classes.
    """

    name = "min-column"
    keywords = ("label inference", "label leakage", "label set", "GradInversion", "Yin")
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"label_set", "label_counts", "labels"})
    cites = (
        "Yin et al., See through Gradients: Image Batch Recovery via GradInversion, CVPR 2021, "
        "section 3 (label restoration)"
    )
    requirements = (
        Requirement("unmarked", "labels that repeat are claimed once", most=0.3),
        Requirement("row_noise", "noise reaches the smallest entries of every class", most=0.35),
        Requirement(
            "signed_labels", "negative features turn the entries of other classes", most=0.45
        ),
    )

    rule: Literal["lowest", "negative"] = "lowest"
    """Classes that are claimed: "lowest": as many as there are examples, those with the smallest
    entries; "negative": all with an entry below zero."""

    def requires(self) -> Knowledge:
        """Return `needs`, with `BATCH_SIZE` for the rule "lowest"."""
        counts = self.rule == "lowest"
        return super().requires() | (Knowledge.BATCH_SIZE if counts else Knowledge(0))

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim labels.

        Raises:
            ValueError: The head's gradient is missing, is zero, or holds NaN or Inf.
        """
        least, n = HeadGradient.of(seen).weight.amin(dim=1).cpu(), seen.spec.classes
        if self.rule == "negative":
            return claim_labels(torch.nonzero(least < 0).flatten())
        size = int(seen.know(Knowledge.BATCH_SIZE))
        note = f"the rule claims each of {n} classes once at most; {size} examples have repeats"
        claimed = least.argsort()[:size].sort().values
        return claim_labels(claimed, diagnostics={"note": note} if size > n else {})
