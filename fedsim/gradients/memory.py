"""What a pass of a model keeps in memory for its derivatives."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedsim.victim import VictimModel


def kept_values(model: VictimModel, shape: Sequence[int], classes: int) -> int:
    """Count the values that a pass of one example keeps for the backward pass.

    Weights and buffers do not count, and what several layers keep counts once. The model is not
    changed: its copy makes the pass, without dropout.

    Args:
        model: The model; its loss takes soft labels.
        shape: That of an example, without the batch.
        classes: The number of classes.
    """
    one = model.copy()
    state = list(one.module.eval().state_dict().values())
    owned = {value.untyped_storage().data_ptr() for value in state}
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes() // value.element_size()
        return value

    weight = next(iter(one.parameters().values()))
    inputs, target = weight.new_zeros(1, *shape), weight.new_full((1, classes), 1 / classes)
    with torch.enable_grad(), saved_tensors_hooks(keep, lambda value: value):
        loss = one.loss(inputs.requires_grad_(), target)
    del loss  # not earlier: an address could be used again
    return sum(kept.values())
