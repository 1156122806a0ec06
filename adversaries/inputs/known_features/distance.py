"""How far the features of dummy batches are from known ones."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adversaries.inputs.known_features import KnownBatch
from fedsim import VictimModel


class FeatureDistance:
    """The squared distance of features from the known ones, relative to how much these differ.

    Args:
        model: The model that computes the dummies' gradients.
        known: The batch of each victim, all of one size.
    """

    def __init__(self, model: VictimModel, known: Sequence[KnownBatch]) -> None:
        like = next(model.module.parameters())
        self._known = torch.stack([one.features for one in known]).to(like)
        apart = self._known
        if apart.shape[1] > 1:
            apart = apart - apart.mean(dim=1, keepdim=True)
        sizes = apart.square().sum(dim=(1, 2))
        self._sizes = sizes.clamp(min=torch.finfo(like.dtype).tiny)

    def __call__(self, calls: Sequence[tuple[Tensor, Tensor]], victims: Tensor) -> Tensor:
        """Compute the distances of R dummy batches.

        Args:
            calls: Calls of the head, for all batches at once or one for each (`head_calls`).
            victims: Index of each batch's victim, (R,) int64.

        Returns:
            Distances (R,), differentiable.
        """
        features = torch.cat([entered.flatten(1) for entered, _ in calls])
        known = self._known[victims]
        missed = features.view_as(known) - known
        return missed.square().sum(dim=(1, 2)) / self._sizes[victims]
