"""iDLG's label inference: the label of a single example, from the signs of the head's gradient."""

from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction, Requirement
from fedsim.gradients import HeadGradient, claim_labels


class IDLG(Adversary):
    """Label of a single example: the class with the smallest row sum in the head's gradient.

    With cross-entropy and one example, row i of dL/dW is (p_i - y_i) h', where p_i - y_i is
    negative for the label and positive for every other class. With non-negative activations h, only
    the label's row sum is negative. The result is exact and needs neither model nor optimisation.

    The attack assumes one example and a non-negative activation before the head. For a larger batch
    it claims a single label, that of the smallest row sum, and `diagnostics["note"]` says so.
    """

    name = "idlg"
    keywords = ("label inference", "label leakage", "single label")
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"label_set", "label_counts", "labels"})
    cites = "Zhao et al., iDLG: Improved Deep Leakage from Gradients, 2020, Eq. 4-5"
    requirements = (
        Requirement("examples", "it claims one label", most=1),
        Requirement("opposite_signs", "a negative sum of features turns the sign", most=0.1),
        Requirement("row_noise", "noise turns the signs of row sums", most=0.5),
    )

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim one label.

        Raises:
            ValueError: The head's gradient is missing, is zero, or holds NaN or Inf.
        """
        g = HeadGradient.of(seen).class_sums()
        diagnostics: dict[str, object] = {"negative_classes": int((g < 0).sum())}
        if seen.num_examples is not None and seen.num_examples > 1:
            diagnostics["note"] = (
                f"iDLG is a rule for one example; this update holds {seen.num_examples}, "
                "so one label is claimed and the others are missed"
            )
        return claim_labels(g.argmin()[None].cpu(), diagnostics=diagnostics)
