"""Random labels: the baseline of label inference, which uses no gradient."""

import torch

from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction
from fedsim.gradients import claim_labels


class RandomGuess(Adversary):
    """Random labels, uniform over the classes: a baseline that uses no gradient.

    It is the baseline in the figures of LLG's paper: an attack that scores no better has learned
    nothing from the gradient. Every finding has the expected score of such a guess as its
    `baseline`; this adversary adds a curve of its own, with its spread.
    """

    name = "random"
    keywords = ("label inference", "baseline", "random guess", "chance")
    needs = Knowledge.BATCH_SIZE
    recovers = frozenset({"label_set", "label_counts", "labels"})
    cites = (
        "Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning, "
        "PoPETs 2022, section 6.1 (baselines)"
    )

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Draw a label for each of the |D| examples from `job.rng`."""
        size = int(seen.know(Knowledge.BATCH_SIZE))
        labels = torch.randint(seen.spec.classes, (size,), generator=job.rng)
        return claim_labels(labels.sort().values)
