"""Batch statistics of BatchNorm layers: what running statistics give away, and how far a dummy is.

A BatchNorm layer in training mode normalises by the mean and the variance of its batch, and moves
its running statistics towards them: after = (1 - m) before + m batch, with the layer's momentum m.
The server knows both sides, so that it has the batch's own statistics (Hatamizadeh et al., Do
Gradient Inversion Attacks Make Federated Learning Unsafe?, IEEE TMI 2023). Matching them was
introduced with the running statistics in their place (Yin et al., See Through Gradients, CVPR 2021,
Eq. 9).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedsim.gradients.head import Calls
from fedsim.victim import VictimModel

Statistics = Mapping[str, tuple[Tensor, Tensor]]
"""By the layer's name, mean and unbiased variance of a batch for each channel, both (C,)."""


def batch_statistics(
    model: VictimModel, after: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute a batch's statistics from the running statistics before and after one step.

    Several steps leave a weighted mean of their batches' statistics, each at other weights, which
    this does not undo.

    Args:
        model: The victim's model before the step, in the mode of the training.
        after: Buffers after the step, by name, as `Observation.buffers` holds them.

    Returns:
        Statistics in float64 by the layer's name, in the model's order. Layers that did not move
        their running statistics by a momentum are left out.
    """
    found = {}
    for name, layer in model.module.named_modules():
        if not isinstance(layer, _BatchNorm) or not layer.training or not layer.momentum:
            continue
        moved = []
        for key in ("running_mean", "running_var"):
            before, now = getattr(layer, key), after.get(f"{name}.{key}")
            if before is None or now is None or torch.equal(before, now.to(before)):
                break
            before, now = before.double(), now.to(before.device).double()
            moved.append(before + (now - before) / layer.momentum)
        else:
            found[name] = (moved[0], moved[1])
    return found


class StatisticsDistance:
    """How far the batch statistics of dummy batches are from those observed, for V victims.

    A layer's distance is ||mean' - mean||^2 / ||std||^2 + ||var' - var||^2 / ||var||^2 over its
    channels; the result is the mean over layers, which does not depend on the layers' widths.

    Args:
        model: The model that computes the dummies' gradients.
        observed: Each victim's statistics; those of the layers that all have are compared.
    """

    def __init__(self, model: VictimModel, observed: Sequence[Statistics]) -> None:
        like = next(model.module.parameters())
        self._dtype = like.dtype
        shared = [name for name in observed[0] if all(name in one for one in observed)]
        self.layers = {name: model.module.get_submodule(name) for name in shared}
        """The layers that are compared, by name; their calls are what is measured."""
        self._observed = {
            name: [torch.stack([one[name][at] for one in observed]).to(like) for at in (0, 1)]
            for name in shared
        }

    def __call__(self, calls: Mapping[str, Calls], victims: Tensor) -> Tensor:
        """Compute the distances of R dummy batches.

        Args:
            calls: Calls of `layers`, one for each batch in turn (`layer_calls`). A layer with
                another number of calls is not compared.
            victims: Index of each batch's victim, (R,) int64.

        Returns:
            Distances (R,), differentiable; zeros if no layer can be compared.
        """
        found = []
        for name, uses in calls.items():
            if len(uses) != len(victims):
                continue
            entered = [inputs.transpose(0, 1).flatten(1) for inputs, _ in uses]
            mean = torch.stack([values.mean(dim=1) for values in entered])
            var = torch.stack([values.var(dim=1) for values in entered])
            their_mean, their_var = (one[victims] for one in self._observed[name])
            shift = (mean - their_mean).square() / _size(their_var.abs())
            spread = (var - their_var).square() / _size(their_var.square())
            found.append((shift + spread).sum(dim=1))
        return (
            torch.stack(found).mean(dim=0)
            if found
            else victims.new_zeros(len(victims), dtype=self._dtype)
        )


def _size(values: Tensor) -> Tensor:
    """Sums over channels (V, 1), above zero."""
    return values.sum(dim=1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
