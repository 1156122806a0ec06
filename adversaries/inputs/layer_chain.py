"""Models whose layers run one after the other: which layers, and which activations between them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from adversaries.inputs.self_check import in_float64
from fedsim import VictimModel
from fedsim.gradients import layer_calls

PROBES = 4
"""Random inputs by which the functions between layers are recognised."""

HALVINGS = 60
"""Halvings of an interval that find the inverse of SiLU and GELU."""

KINDS: dict[type[nn.Module], str] = {
    nn.Linear: "fully connected layer",
    nn.Conv2d: "convolution",
    nn.LayerNorm: "layer normalisation",
}
"""The layers that a chain may have, and the words for them."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A function between two layers.

    Attributes:
        name: Its name.
        value: The function.
        inverse: Its inverse; None for ReLU, whose zeros have none.
        lowest: Where it has its minimum, if it falls before and rises behind (SiLU and GELU); its
            inverse is that of the rising branch.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor] | None
    lowest: float | None = None

    @property
    def kinked(self) -> bool:
        """Whether its slope jumps at zero."""
        below, above = self.slope(torch.tensor([-1e-9, 1e-9], dtype=torch.float64)).tolist()
        return bool(abs(above - below) > 1e-3)

    def slope(self, before: Tensor) -> Tensor:
        """The derivative at values before the function."""
        with torch.enable_grad():
            at = before.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.value(at).sum(), at)
        return found


def _inner(values: Tensor, low: float, high: float) -> Tensor:
    """Values moved off the bounds of a bounded function, by rounding."""
    return values.clamp(low + 1e-12, high - 1e-12)


def _valley(name: str, value: Callable[[Tensor], Tensor], lowest: float) -> Activation:
    """A function that falls to a minimum and then rises to that of its argument."""

    def rising(outputs: Tensor) -> Tensor:
        low = torch.full_like(outputs, lowest)
        high = outputs.clamp(min=lowest) + 1
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            above = value(middle) > outputs
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return high

    return Activation(name, value, rising, lowest)


ACTIVATIONS = (
    Activation("relu", torch.relu, None),
    Activation("none", lambda x: x, lambda x: x),
    Activation("sigmoid", torch.sigmoid, lambda a: torch.logit(_inner(a, 0, 1))),
    Activation("tanh", torch.tanh, lambda a: torch.atanh(_inner(a, -1, 1))),
    Activation(
        "elu", nn.functional.elu, lambda a: torch.where(a < 0, torch.log1p(_inner(a, -1, 1)), a)
    ),
)
"""The functions that are recognised, besides leaky ReLU of any slope."""

VALLEYS = (
    _valley("silu", nn.functional.silu, -1.2784645427610738),
    _valley("gelu", nn.functional.gelu, -0.7517915246935645),
)
"""Functions with two slopes at a negative value, for attacks that find out which one it is."""


def leaky_relu(slope: float) -> Activation:
    """Leaky ReLU with a slope for negative values."""
    return Activation(
        "leaky_relu",
        lambda x: nn.functional.leaky_relu(x, slope),
        lambda a: torch.where(a < 0, a / slope, a),
    )


def activation_between(
    before: Tensor, after: Tensor, known: Sequence[Activation] = ACTIVATIONS
) -> Activation | None:
    """Recognise the function with these values and results, of the same shape; None if unknown."""
    for one in known:
        if torch.allclose(one.value(before), after):
            return one
    ratios = (after / before)[before < 0]
    if not len(ratios) or not 0 < float(ratios.mean()) < 1:
        return None
    leaky = leaky_relu(float(ratios.mean()))
    return leaky if torch.allclose(leaky.value(before), after) else None


@dataclass(frozen=True, slots=True)
class Link:
    """A layer of a chain.

    Attributes:
        name: Its name.
        layer: The layer.
        behind: The function that its outputs go through.
        inputs: The shape of one example's inputs.
        outputs: The shape of its outputs.
        norm: The layer normalisation in front of the next layer, if there is one.
        norm_first: Whether that stands before the activation.
    """

    name: str
    layer: nn.Linear | nn.Conv2d
    behind: Activation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    norm: nn.LayerNorm | None = None
    norm_first: bool = False


@dataclass(frozen=True, slots=True)
class LayerChain:
    """A model as a chain of layers, with a function of single values behind each.

    Attributes:
        links: All layers but the head, the first one first.
        head: The head.
        shape: The shape of an input.
        offset: What the model adds to an input in front of the layers, flat.
        scale: What it multiplies it by.
    """

    links: tuple[Link, ...]
    head: nn.Linear
    shape: tuple[int, ...]
    offset: Tensor
    scale: Tensor

    @classmethod
    def of(
        cls,
        model: VictimModel,
        shape: tuple[int, ...],
        kinds: tuple[type[nn.Module], ...],
        activations: Sequence[Activation] = ACTIVATIONS,
    ) -> "LayerChain":
        """Recognise a chain by its layers' inputs and outputs on random inputs.

        Args:
            model: The model, in float64 and the client's mode.
            shape: The shape of an input.
            kinds: The layers that it may have, of `KINDS`.
            activations: The functions that may stand behind them, besides leaky ReLU.

        Raises:
            ValueError: The model is no such chain; the message names the layer.
        """
        module, words = model.module, " or ".join(KINDS[kind] for kind in kinds)
        probes = _probes(shape).to(next(module.parameters()).device)
        found = {k: m for k, m in module.named_modules() if isinstance(m, kinds)}
        with torch.no_grad(), _order_of_calls(found) as order, layer_calls(found) as calls:
            try:
                module(probes)
            except RuntimeError as error:
                raise ValueError(f"the model cannot be run in float64: {error}") from error
        if len({*order}) < len(order) or order[-1:] != [model.head]:
            plural = " and ".join(f"{KINDS[kind]}s" for kind in kinds)
            raise ValueError(f"the model is no chain of {plural} that ends in its head")
        weights = {f"{name}.weight" for name in order} | {f"{name}.bias" for name in order}
        if others := sorted({*model.parameters()} - weights):
            raise ValueError(
                f"'{others[0]}' is no {words}, and inputs are recovered through such layers "
                "alone. inverting-gradients attacks other networks"
            )
        for name in order:
            if f"{name}.weight" not in model.trained:
                other = "" if name == model.head else ". feature-separation needs the head's alone"
                raise ValueError(
                    f"no gradient of '{name}.weight' is sent: the weight is not trained, or it is "
                    f"another layer's, too{other}"
                )
        with torch.no_grad(), layer_calls(found) as fewer:
            module(probes[1:])
        for name in order:
            rows, same = fewer[name][0][0], calls[name][0][0][1:]
            if rows.shape == same.shape and not torch.allclose(rows, same):
                raise ValueError(
                    f"what reaches the layer '{name}' depends on the rest of the batch, as with "
                    "batch statistics, or on chance"
                )
        first, flat = calls[order[0]][0][0].flatten(1), probes.flatten(1)
        if isinstance(found[order[0]], nn.LayerNorm):
            raise ValueError(
                f"'{order[0]}' hides mean and scale of the inputs, which it normalises"
            )
        if first.shape != flat.shape:
            raise ValueError(f"the layer '{order[0]}' does not take the input itself")
        offset, scale = first[0], first[1] - first[0]
        if not torch.allclose(first, flat * scale + offset) or not scale.all():
            raise ValueError(f"what the model does to inputs before '{order[0]}' is not known")
        links = list[Link]()
        names = [name for name in order if not isinstance(found[name], nn.LayerNorm)]
        for name, above in pairwise(names):
            (into, before), (after, _) = calls[name][0], calls[above][0]
            between = order[order.index(name) + 1 : order.index(above)]
            norm, norm_first = None, False
            if len(between) > 1:
                raise ValueError(f"{', '.join(between)}: one layer normalisation behind a layer")
            if between:
                norm, (values, normed) = found[between[0]], calls[between[0]][0]
                norm_first = values.shape == before.shape and torch.equal(values, before)
                if norm_first:
                    before = normed
                elif torch.equal(normed.flatten(1), after.flatten(1)):
                    after = values
                else:
                    raise ValueError(
                        f"'{between[0]}' stands neither behind '{name}' nor before '{above}'"
                    )
            behind = _behind(name, above, before, after, activations)
            shapes = tuple(into.shape[1:]), tuple(before.shape[1:])
            links.append(Link(name, found[name], behind, *shapes, norm, norm_first))  # type: ignore[arg-type]
        return cls(tuple(links), found[model.head], shape, offset, scale)  # type: ignore[arg-type]


def chain_cautions(
    model: VictimModel, recognise: Callable[[VictimModel, tuple[int, ...]], list[str]]
) -> list[str]:
    """Warn of a model that cannot be undone layer by layer.

    Args:
        model: The model.
        recognise: Takes the model in float64 and the shape of an input, and returns warnings or
            raises a ValueError.
    """
    if model.drops:
        return ["the model drops units at random, and which ones is not known"]
    if model.spec is None or model.spec.input_shape is None:
        return []
    try:
        return recognise(in_float64(model), model.spec.input_shape)
    except ValueError as error:
        return [str(error)]


@contextmanager
def _order_of_calls(layers: Mapping[str, nn.Module]) -> Iterator[list[str]]:
    """Record the names of layers in the order of their calls."""
    order = list[str]()

    def record(name: str) -> Callable[..., None]:
        return lambda *_: order.append(name)

    hooks = [layer.register_forward_hook(record(name)) for name, layer in layers.items()]
    try:
        yield order
    finally:
        for hook in hooks:
            hook.remove()


def _behind(
    name: str, above: str, before: Tensor, after: Tensor, activations: Sequence[Activation]
) -> Activation:
    """The function between two layers, by the outputs of one and the inputs of the next."""
    ours, theirs = prod(before.shape[1:]), prod(after.shape[1:])
    if ours > theirs:
        raise ValueError(
            f"what stands between the layers '{name}' and '{above}' leaves {theirs:,} of {ours:,} "
            "values, as pooling does: the others cannot be computed. inverting-gradients attacks "
            "such networks"
        )
    found = None
    if ours == theirs:
        found = activation_between(before.flatten(1), after.flatten(1), activations)
    if found is None:
        known = ", ".join([*(one.name for one in activations), "leaky_relu"])
        raise ValueError(
            f"what stands between the layers '{name}' and '{above}' is none of {known}"
        )
    return found


def _probes(shape: tuple[int, ...]) -> Tensor:
    """Inputs of zeros, of ones, and random ones in [0, 1], (2 + PROBES, *shape) float64."""
    rng = torch.Generator().manual_seed(0)
    random = torch.rand(PROBES, *shape, generator=rng, dtype=torch.float64)
    return torch.cat([torch.zeros_like(random[:1]), torch.ones_like(random[:1]), random])
