"""What the head's gradient shows of a single example."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adversaries.inputs.feature_separation.head_equations import HeadEquations
from adversaries.inputs.feature_separation.reduced_head import ReducedHead
from fedsim import Observation, VictimModel
from fedsim.gradients import HeadGradient, rank_of, two_logits, with_two_rows


@dataclass(frozen=True, slots=True)
class HeadExample:
    """What the head's gradient shows of one example.

    Attributes:
        features: The inputs of the head (d,).
        errors: The gradient of the loss by the logits (classes,).
        label: The label.
    """

    features: Tensor
    errors: Tensor
    label: int


def head_example(
    seen: Observation, gradient: Mapping[str, Tensor], model: VictimModel
) -> HeadExample:
    """Read the head's gradient.

    Raises:
        ValueError: It is that of several examples, or none.
    """
    sent = HeadGradient.of(seen)
    size = seen.num_examples or rank_of(sent.weight)
    if not size:
        raise ValueError(
            f"the gradient of '{seen.head}.weight' shows no example: it is zero, or noise hides it"
        )
    if size != 1:
        raise ValueError(
            f"the update holds {size} examples, and r-gap solves for one. exact-batch recovers "
            "batches behind perceptrons, feature-separation their features, and dlg and "
            "inverting-gradients search for inputs"
        )
    weight, bias = gradient[f"{seen.head}.weight"], gradient.get(f"{seen.head}.bias")
    if bias is not None:
        if not bias.any():
            raise ValueError(f"the gradient of '{seen.head}.bias' is zero: nothing was learned")
        label = int(bias.argmin()) if len(bias) > 1 else int(bias[0] < 0)
        return HeadExample(bias @ weight / bias.square().sum(), bias, label)
    rows, classes = len(weight), seen.spec.classes
    parameters = dict(model.module.named_parameters())  # a frozen bias counts, too
    kept = parameters.get(f"{seen.head}.bias")
    weight = with_two_rows(gradient, seen.head)[f"{seen.head}.weight"] if rows == 1 else weight
    head = ReducedHead.of(
        weight,
        None,
        two_logits(parameters[f"{seen.head}.weight"].detach(), classes),
        None if kept is None else two_logits(kept.detach(), classes),
        1,
    )
    # The errors of the other classes add up to that of the label. Of two classes both are equal;
    # the other label stands for features of the other sign, of which most activations have none.
    labels = [0, 1] if len(weight) == 2 else [int(weight.norm(dim=1).argmax())]
    rng = torch.Generator().manual_seed(0)
    equations = HeadEquations(head)
    found = [
        next(equations.solutions(torch.tensor([label], device=weight.device), rng, steps=100))
        for label in labels
    ]
    best = max(found, key=lambda one: float(one.features.sum()))
    return HeadExample(best.features[0], best.errors[0][-rows:], int(best.labels))
