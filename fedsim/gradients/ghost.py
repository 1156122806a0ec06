"""Gradients of transformers that are fed embeddings, in factors: no weight gradient is formed.

The weight gradient of a layer over T tokens is sum_t delta_t a_t', with a_t the layer's input and
delta_t the loss's gradient at its output. Inner products and norms of such sums need only delta and
a (the "ghost norms" of per-example clipping; Li et al., ICLR 2022, section 4).
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.victim import VictimModel

Factored = tuple[Tensor, Tensor]
"""R matrices left' right: left (R, k, out), right (R, k, in)."""

PADDING = -100
"""A target that the loss ignores."""


class GhostGradients:
    """The gradients of the loss for R dummy batches, in factors, computed in one pass.

    Examples must be independent of one another. Parameters must belong to linear layers, transposed
    ones (`Conv1D` of transformers), normalisations (`LayerNorm`, and the `RMSNorm` of Llama and
    others) or embeddings of positions and token types; a layer may be used any number of times. The
    loss is a mean over examples, or over the tokens whose target is not -100.

    Args:
        model: The victim's model, which is used in its present mode and not changed.
        names: Names of the parameters, without the word embeddings, which are not used if their
            vectors are fed.
        at: The point at which inputs are fed.
        even: Whether the losses of all batches are means over equally many terms, as those of
            sequences of one length; otherwise terms are counted by the targets.

    Raises:
        ValueError: A parameter belongs to another kind of layer.
    """

    def __init__(
        self, model: VictimModel, names: Iterable[str], *, at: str = "embedding", even: bool = False
    ) -> None:
        self.model, self.names, self.at, self._even = model, list(names), at, even
        parameters = dict(model.module.named_parameters())
        wanted = {id(parameters[name]): name for name in self.names}
        self._layers: dict[nn.Module, dict[str, str]] = {}
        others: dict[str, str] = {}
        for layer in model.module.modules():
            own = {
                key: wanted[id(value)]
                for key, value in layer.named_parameters(recurse=False)
                if id(value) in wanted
            }
            if own and _known(layer):
                self._layers[layer] = own
            others |= dict.fromkeys(own.values(), type(layer).__name__)
        held = {name for own in self._layers.values() for name in own.values()}
        if unknown := [f"'{name}' ({others[name]})" for name in self.names if name not in held]:
            raise ValueError(
                f"no rule for the gradients of {', '.join(unknown)}: parameters of Linear, Conv1D, "
                "LayerNorm, RMSNorm and Embedding layers have one. Leave the others out"
            )

    def __call__(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        lengths: Tensor | None = None,
        create_graph: bool = True,
    ) -> dict[str, Tensor | Factored]:
        """Compute the gradients of R batches.

        Args:
            inputs: Embeddings (R, B, L, d).
            targets: (R, B) or (R, B, L) int64, or soft ones with one more dimension.
            lengths: Number of tokens of each text, (R, B) int64.
            create_graph: Whether the gradients are differentiated with respect to the inputs.

        Returns:
            By name, factors (R, T, out) and (R, T, in) of each matrix (out, in), and tensors (R, n)
            of all else. T is the number of tokens in the layer, B L or B.
        """
        rows, size = inputs.shape[:2]
        uses: list[tuple[nn.Module, Tensor]] = []
        outputs: list[Tensor] = []

        def keep(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if not output.requires_grad:
                output = output.detach()
            # One output for all texts, such as of positions, would mix their gradients.
            if shared := len(output) == 1 < rows * size:
                output = output.expand(rows * size, *output.shape[1:])
            if not output.requires_grad:
                output.requires_grad_()
            entered = args[0].expand(rows * size, *args[0].shape[1:]) if shared else args[0]
            uses.append((layer, entered))
            outputs.append(output)
            return output

        hooks = [layer.register_forward_hook(keep) for layer in self._layers]
        counts = _counted(targets)
        alike = self._even or bool((counts == counts[0]).all())
        try:
            with torch.enable_grad():
                fed = inputs if inputs.requires_grad else inputs.detach().requires_grad_()
                loss = self.model.loss(
                    fed.flatten(0, 1),
                    targets.flatten(0, 1),
                    lengths=None if lengths is None else lengths.flatten(),
                    at=self.at,
                )
                called = {name for layer, _ in uses for name in self._layers[layer].values()}
                if idle := [name for name in self.names if name not in called]:
                    raise ValueError(
                        f"the model does not call the layers of {', '.join(idle)}; leave them out"
                    )
                # A mean over all rows; each row's own loss is its part, times all over its count.
                deltas = torch.autograd.grad(
                    loss * rows if alike else loss * counts.sum(),
                    outputs,
                    create_graph=create_graph,
                    materialize_grads=True,
                )
        finally:
            for hook in hooks:
                hook.remove()
        if not alike:
            deltas = tuple(_rows(one, rows) / counts.view(-1, 1, 1) for one in deltas)
        found: dict[str, list[Tensor | Factored]] = {name: [] for name in self.names}
        with torch.set_grad_enabled(create_graph):
            for (layer, entered), delta in zip(uses, deltas, strict=True):
                for key, name in self._layers[layer].items():
                    found[name].append(_part(layer, key, entered, _rows(delta, rows)))
            return {name: _whole(parts) for name, parts in found.items()}


def _known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.LayerNorm):
        return len(layer.normalized_shape) == 1
    return isinstance(layer, nn.Linear | nn.Embedding) or _transposed(layer) or _by_rms(layer)


def _by_rms(layer: nn.Module) -> bool:
    """Whether a layer divides by the root mean square: torch's own, or that of Llama and others.

    Gemma's adds one to its weight, which does not change the weight's gradient.
    """
    named = type(layer).__name__.endswith("RMSNorm")
    known = named and (hasattr(layer, "variance_epsilon") or hasattr(layer, "eps"))
    return known and len(getattr(layer, "normalized_shape", (1,))) == 1


def _over_rms(layer: nn.Module, entered: Tensor) -> Tensor:
    epsilon: Any = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if epsilon is None:  # torch's own default
        epsilon = torch.finfo(entered.dtype).eps
    mean = entered.square().mean(dim=-1, keepdim=True)
    return cast(Tensor, entered * (mean + epsilon).rsqrt())


def _transposed(layer: nn.Module) -> bool:
    """Whether a layer is a `Conv1D` of GPT-2: linear, with a weight (in, out)."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def _counted(targets: Tensor) -> Tensor:
    """Number of terms in the mean that is the loss of each of R batches, (R,)."""
    if targets.ndim == 3 and targets.is_floating_point():
        return torch.full((len(targets),), targets.shape[1], device=targets.device)
    if targets.is_floating_point():
        return targets.detach().flatten(1).sum(dim=1)
    return (targets != PADDING).flatten(1).sum(dim=1)


def _rows(value: Tensor, rows: int) -> Tensor:
    """(R B, L, n), (R B, n) or (R B L, n) as (R, T, n)."""
    if value.ndim == 3 and len(value) == rows:
        return value
    return value.reshape(rows, -1, value.shape[-1])


def _part(layer: nn.Module, key: str, entered: Tensor, delta: Tensor) -> Tensor | Factored:
    """The gradient of a parameter of a layer for one use of it, with delta (R, T, out)."""
    rows = len(delta)
    if key == "bias":
        return delta.sum(dim=1)
    if isinstance(layer, nn.LayerNorm):
        normal = functional.layer_norm(entered, layer.normalized_shape, eps=layer.eps)
        return (delta * _rows(normal, rows)).sum(dim=1)
    if _by_rms(layer):
        return (delta * _rows(_over_rms(layer, entered), rows)).sum(dim=1)
    if isinstance(layer, nn.Embedding) and not entered.is_floating_point():
        chosen = functional.one_hot(entered.reshape(rows, -1), layer.num_embeddings)
        if layer.padding_idx is not None:
            chosen[..., layer.padding_idx] = 0
        return chosen.to(delta), delta
    entered = _rows(entered, rows)
    # An embedding that is fed smooth labels is a layer with the weight (in, out), too.
    turned = isinstance(layer, nn.Embedding) or _transposed(layer)
    return (entered, delta) if turned else (delta, entered)


def _whole(parts: list[Tensor | Factored]) -> Tensor | Factored:
    """The sum over a parameter's uses."""
    if len(parts) == 1:
        return parts[0]
    matrices = [part for part in parts if isinstance(part, tuple)]
    if matrices:
        left, right = zip(*matrices, strict=True)
        return torch.cat(left, dim=1), torch.cat(right, dim=1)
    return torch.stack([part for part in parts if isinstance(part, Tensor)]).sum(dim=0)
