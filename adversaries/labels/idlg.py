"""iDLG's label inference: the label of a single example, from the signs of the head's gradient."""

from typing import ClassVar

import torch

from fedsim.adversary import Adversary, Job
from fedsim.gradients import head_gradient
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction


class IDLG(Adversary):
    """Label of a single example: the class with the smallest row sum in the head's gradient.

    With cross-entropy and one example, row i of dL/dW is (p_i - y_i) h', where p_i - y_i is
    negative for the label and positive for every other class. With non-negative activations h, only
    the label's row sum is negative. The result is exact and needs neither model nor optimisation.

    The attack assumes one example and a non-negative activation before the head. For a larger batch
    it claims a single label, that of the smallest row sum, and `diagnostics["note"]` says so.
    """

    name: ClassVar[str] = "idlg"
    keywords = (
        "label inference",
        "label leakage",
        "improved deep leakage from gradients",
        "single label",
    )
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_set", "label_counts", "labels"})
    cites: ClassVar[str] = "Zhao et al., iDLG: Improved Deep Leakage from Gradients, 2020, Eq. 4-5"

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim one label.

        Raises:
            ValueError: The head's gradient is missing, is zero, or holds NaN or Inf.
        """
        head = head_gradient(seen.know(Knowledge.HEAD_GRADIENT), seen.head, seen.spec.classes)
        g = head.class_sums()
        label = int(g.argmin())
        diagnostics: dict[str, object] = {"negative_classes": int((g < 0).sum())}
        if seen.num_examples is not None and seen.num_examples > 1:
            diagnostics["note"] = (
                f"iDLG is a rule for one example; this update holds {seen.num_examples}, "
                "so one label is claimed and the others are missed"
            )
        return Reconstruction(
            label_set=frozenset({label}),
            label_counts={label: 1},
            labels=torch.tensor([label], dtype=torch.int64),
            diagnostics=diagnostics,
        )
