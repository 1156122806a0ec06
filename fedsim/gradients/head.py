"""The gradient of the projection layer, found by name, and computed from its calls under CTC."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.gradients.ctc import ctc_loss
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, of_layer
from fedsim.victim import VictimModel


class HeadGradient:
    """The gradient of the projection layer: weight (classes, features), bias (classes,) or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    @classmethod
    def of(cls, seen: Observation) -> "HeadGradient":
        """Find the head's gradient in an observation, as `head_gradient` does."""
        return head_gradient(seen.know(Knowledge.HEAD_GRADIENT), seen.head, seen.spec.classes)

    def class_sums(self) -> Tensor:
        """g_i of LLG (Wainakh et al., Eq. 3): row sums of the weight's gradient, (classes,)."""
        return self.weight.sum(dim=1)


def head_gradient(gradient: Mapping[str, Tensor], head: str, classes: int) -> HeadGradient:
    """Find the head's gradient, with classes along the first dimension.

    Args:
        gradient: Gradients by parameter name.
        head: Name of the projection layer.
        classes: Number of classes; a weight (features, classes) is transposed, and of two classes
            a weight (1, features) becomes that of two logits (`with_two_rows`).

    Returns:
        The gradients of weight and bias.

    Raises:
        ValueError: There is no gradient of that name (the message lists candidates), it is no
            matrix with a side of `classes`, holds integers, NaN or Inf, or is zero.
    """
    gradient = with_two_rows(gradient, head) if classes == 2 else gradient
    weight = gradient.get(f"{head}.weight")
    if weight is None and not head:
        raise ValueError(
            "the model is a layer alone, by whose parameters no layer can be named: make it "
            "nn.Sequential(layer), on clients and server"
        )
    if weight is None:
        candidates = sorted(
            name.removesuffix(".weight")
            for name, value in gradient.items()
            if value.ndim == 2 and classes in value.shape
        )
        raise ValueError(
            f"no gradient for the head '{head}.weight'; layers that could be the head: "
            f"{', '.join(candidates) or 'none'}"
        )
    if weight.ndim != 2 or classes not in weight.shape:
        raise ValueError(
            f"the head '{head}.weight' has shape {tuple(weight.shape)}, expected a matrix with "
            f"a side of {classes} classes"
        )
    if not weight.is_floating_point():
        kind = str(weight.dtype).removeprefix("torch.")
        raise ValueError(
            f"the gradient of the head '{head}.weight' is {kind}, "
            "expected floating point: put quantised values back to their scale"
        )
    least, largest = (float(bound) for bound in weight.aminmax())
    if not (math.isfinite(least) and math.isfinite(largest)):
        raise ValueError(f"the gradient of the head '{head}.weight' holds NaN or Inf")
    if least == largest == 0:
        raise ValueError(
            f"the gradient of the head '{head}.weight' is zero throughout: the client sent "
            "nothing, or a defense removed it"
        )
    if weight.shape[0] != classes:
        weight = weight.T
    return HeadGradient(weight, gradient.get(f"{head}.bias"))


def with_two_rows(gradient: Mapping[str, Tensor], head: str) -> Mapping[str, Tensor]:
    """Replace the gradient of a head with one logit by that of two logits, whose difference it is.

    Args:
        gradient: Gradients by parameter name.
        head: Name of the projection layer; one with several rows stays as it is.
    """
    weight = gradient.get(f"{head}.weight")
    if weight is None or weight.ndim != 2 or len(weight) != 1:
        return gradient
    own = of_layer(gradient, head)
    return {**gradient, **{name: torch.cat([-one, one]) for name, one in own.items()}}


def two_logits(values: Tensor, classes: int) -> Tensor:
    """Weights, biases or logits of a head: those of the logits 0 and z in place of one logit z.

    Args:
        values: Weights (classes, features), a bias (classes,), or logits (classes, B); their first
            dimension may be 1 for two classes.
        classes: The number of classes.

    Returns:
        The values of both logits, of shape (2, ...), for those of one, (1, ...); others unchanged.
    """
    if classes != 2 or len(values) != 1:
        return values
    return torch.cat([torch.zeros_like(values), values])


def tied(model: VictimModel) -> list[str]:
    """Names of other parameters that share the head's weight, such as embeddings."""
    name = f"{model.head}.weight"
    every = dict(model.module.named_parameters(remove_duplicate=False))
    return sorted(k for k, value in every.items() if k != name and value is every.get(name))


def layer_rows(gradient: Mapping[str, Tensor], layer: str) -> Tensor:
    """Return the gradient [dL/dW | dL/db] of a linear layer.

    Returns:
        Rows (out, in + 1) float64, one for each unit; (out, in) if no bias was sent.

    Raises:
        ValueError: The gradient holds NaN or Inf.
    """
    rows = gradient[f"{layer}.weight"].double()
    if (bias := gradient.get(f"{layer}.bias")) is not None:
        rows = torch.cat([rows, bias.double()[:, None]], dim=1)
    if not torch.isfinite(rows).all():
        raise ValueError(f"the gradient of layer '{layer}' holds NaN or Inf")
    return rows


Calls = list[tuple[Tensor, Tensor]]
"""Input and output of a layer at each of its calls."""


@contextmanager
def layer_calls(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, Calls]]:
    """Record the input and output of layers at each of their calls, by the layer's name."""
    calls: dict[str, Calls] = {name: [] for name in layers}

    def keep(name: str) -> Any:
        return lambda _layer, inputs, output: calls[name].append((inputs[0], output))

    hooks = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def head_calls(model: VictimModel) -> Iterator[Calls]:
    """Record the input and output of the head at each of its calls."""
    with layer_calls({model.head: model.module.get_submodule(model.head)}) as calls:
        yield calls[model.head]


def ctc_head_gradient(
    features: Tensor,
    logits: Tensor,
    target: Tensor,
    lengths: Tensor | None = None,
    *,
    create_graph: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a linear head under CTC for K utterances, independently.

    With G = d CTC / d logits, the gradients are G' H and the sum of G over frames. Only the loss is
    differentiated, not the rest of the model.

    Args:
        features: Inputs H of the head, (K, T, h).
        logits: Outputs of the head, (K, T, C).
        target: Labels (L,) or (K, L) int64, as for `ctc_loss`.
        lengths: Number of frames of each utterance, (K,) int64; None if all have T.
        create_graph: Whether the gradients are differentiated with respect to features and logits.

    Returns:
        Gradients of the weight (K, C, h) and of the bias (K, C).
    """
    rows = target.expand(len(logits), -1) if target.ndim == 1 else target
    scores = logits if create_graph else logits.detach().requires_grad_()
    with torch.enable_grad():
        losses = ctc_loss(scores, rows, lengths)
        (slopes,) = torch.autograd.grad(losses.sum(), scores, create_graph=create_graph)
    return slopes.transpose(1, 2) @ features, slopes.sum(dim=1)


def head_passes(
    model: VictimModel, frames: Tensor, target: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the inputs and outputs of the head for utterances.

    Args:
        model: The victim's model.
        frames: Utterances (K, T, F), padded with 0.
        target: Labels (L,) or (K, L) int64 with which the loss is called, padded with -100.
        lengths: Number of frames of each utterance, (K,) int64; None if all have T. Inputs and
            outputs beyond it mean nothing.

    Returns:
        Inputs (K, T, h) and outputs (K, T, C).

    Raises:
        ValueError: The head is not called exactly once, or not on frames.
    """
    # cuDNN cannot differentiate a recurrent layer in evaluation mode, or any of them twice.
    with head_calls(model) as passes, torch.backends.cudnn.flags(enabled=False):
        rows = target.expand(len(frames), -1) if target.ndim == 1 else target
        model.loss(frames, rows, lengths=lengths)
    shapes = [tuple(logits.shape) for _, logits in passes]
    if len(passes) != 1 or passes[0][1].ndim != 3:
        raise ValueError(
            f"the head '{model.head}' gives outputs {shapes or 'never'} for utterances "
            f"{tuple(frames.shape)}; expected labels of every frame, once"
        )
    return passes[0]
