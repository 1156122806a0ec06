"""bias-sign: the label of one example, from the signs of the head's bias gradient."""

from typing import ClassVar

import torch

from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction


class BiasSign(Adversary):
    """The labels that occur in a batch: the classes whose bias gradient is negative.

    With cross-entropy, entry i of dL/db is the mean of p_i - y_i. It can only be negative where
    class i occurs. Nothing is assumed of the activations before the head. A class that occurs can
    be missed in a batch of several examples.
    """

    name: ClassVar[str] = "bias-sign"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_set"})

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim every class with a negative entry."""
        bias = seen.know(Knowledge.HEAD_GRADIENT).get(f"{seen.head}.bias")
        if bias is None:
            raise ValueError(
                f"the head '{seen.head}' has no bias, and this attack reads nothing else"
            )
        return Reconstruction(label_set=frozenset(torch.nonzero(bias < 0).flatten().tolist()))
