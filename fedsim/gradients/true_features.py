"""The true feature vectors of a victim's examples, for the metrics of claimed ones."""

import torch
from torch import Tensor

from fedsim.gradients.head import layer_calls
from fedsim.records import Truth
from fedsim.victim import VictimModel


def true_features(model: VictimModel, truth: Truth) -> Tensor | None:
    """Compute the inputs of the head as the client's model had them in its first local step.

    Args:
        model: The model as the client received it.
        truth: Its examples, those of one step.

    Returns:
        Features (N, d); None if inputs are not known or differ in shape, if the head is called
        otherwise than once for each example, or if the model drops units at random.
    """
    if not truth.inputs or len({one.shape for one in truth.inputs}) > 1:
        return None
    if model.drops:
        return None
    layer = model.module.get_submodule(model.head)
    with torch.no_grad(), layer_calls({model.head: layer}) as calls:
        model.module(torch.stack(list(truth.inputs)))
    found = [features for features, _ in calls[model.head]]
    whole = len(found) == 1 and found[0].dim() == 2 and len(found[0]) == len(truth.inputs)
    return found[0] if whole else None
