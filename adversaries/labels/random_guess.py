"""Labels at random: what an adversary scores that has seen no gradient."""

from collections import Counter
from typing import ClassVar

import torch

from fedsim.adversary import Adversary, Job
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction

__all__ = ["RandomGuess"]


class RandomGuess(Adversary):
    """|D| labels, uniform over the classes.

    The curve beside LLG's in the paper's figures: an attack that is no better has learned nothing
    from the gradient. Every finding has the expected value of such a guess as its `baseline`; this
    attack is for a curve of its own, with its spread.
    """

    name: ClassVar[str] = "random"
    keywords = ("label inference", "baseline", "random guess", "chance")
    needs: ClassVar[Knowledge] = Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = frozenset({"label_set", "label_counts", "labels"})
    cites: ClassVar[str] = (
        "Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning, "
        "PoPETs 2022, section 6.1 (baselines)"
    )

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Draw |D| labels from `job.rng`."""
        size = int(seen.know(Knowledge.BATCH_SIZE))
        labels = torch.randint(seen.spec.classes, (size,), generator=job.rng).sort().values
        counts = Counter(labels.tolist())
        return Reconstruction(
            label_set=frozenset(counts), label_counts=dict(sorted(counts.items())), labels=labels
        )
