"""How many input values of an update its gradient leaves open, by counting."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.seeds import torch_generator
from fedsim.spec import ImageSpec, TabularSpec
from fedsim.victim import VictimModel

PASSED = 2
"""Random inputs that are passed through a model: two, as batch statistics need."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A layer through whose outputs alone the inputs reach what stands above.

    Of the inputs, all gradients above tell no more than these outputs do.

    Attributes:
        layer: Its name.
        width: The number of values of one example's outputs.
        below: Names of the parameters that its outputs depend on; above, they may be used, too.
    """

    layer: str
    width: int
    below: frozenset[str]


def counted(
    model: VictimModel, examples: int | None, gradient: Mapping[str, Tensor] | None = None
) -> dict[str, float | None]:
    """Count unknown input values and values of the gradient; see `QUANTITIES`.

    At each cut, what its outputs do not tell of the inputs has to follow from the gradient below
    it; the worst cut counts. At the head this is all that is below, and as many examples' features
    are known as there are classes. It is a bound: the values of a gradient may depend on each
    other, and then fewer inputs are determined.

    Args:
        model: The network.
        examples: The number of examples, if it is known.
        gradient: By parameter name; without it, no value counts as zero.

    Returns:
        `unknowns`, infinite where nothing is below a cut, and `determined`; None for what is not
        known, such as of inputs of varying shapes.
    """
    shape = model.spec.input_shape if model.spec else None
    head = dict(model.module.named_parameters()).get(f"{model.head}.weight")
    if shape is None or head is None or head.ndim != 2:
        return {"unknowns": None, "determined": None}
    sent = {
        name: value.numel() if gradient is None else int(value.count_nonzero())
        for name, value in (gradient or model.parameters()).items()
    }
    values, (classes, features) = math.prod(shape), head.shape
    below = sum(size for name, size in sent.items() if not name.startswith(f"{model.head}."))
    above = [
        (cut.width, sum(size for name, size in sent.items() if name in cut.below))
        for cut in cuts(model, values)
    ]

    def ratio(number: int) -> float:
        at_head = _ratio(number * values - min(number, classes) * features, below)
        return max([at_head, *(_ratio(number * (values - width), size) for width, size in above)])

    most = below // (values - features) if values > features else classes
    if most >= classes:
        most = (below + classes * features) // values
    return {
        "unknowns": ratio(examples) if examples else None,
        "determined": min([most, *(size // (values - width) for width, size in above)]),
    }


def _ratio(unknown: int, equations: int) -> float:
    if unknown <= 0:
        return 0.0
    return unknown / equations if equations else math.inf


def cuts(model: VictimModel, values: int) -> list[Cut]:
    """The layers with fewer outputs than an input has values, and through which all of it passes.

    Args:
        model: The network. Its buffers change.
        values: The number of values of an input.
    """
    inputs = _random(model)
    if inputs is None:
        return []
    widths = dict[str, int]()

    def measure(name: str) -> Any:
        def keep(_layer: nn.Module, _inputs: Any, output: Any) -> None:
            own = isinstance(output, Tensor) and output.is_floating_point()
            own = own and output.shape[:1] == (PASSED,) and name not in widths
            widths[name] = output[0].numel() if own else values

        return keep

    parts = {k: m for k, m in model.module.named_modules() if k and k != model.head}
    hooks = [part.register_forward_hook(measure(name)) for name, part in parts.items()]
    try:
        with torch.no_grad():
            _loss(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    narrow = {name: width for name, width in widths.items() if width < values}
    return list(_cuts(model, inputs, narrow))


def _cuts(model: VictimModel, inputs: Tensor, narrow: Mapping[str, int]) -> Iterator[Cut]:
    """Those of the layers at which nothing of the inputs passes by."""
    parameters, reached = model.parameters(), list[Tensor]()

    def cut(_layer: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        reached.append(output)
        # A clone: what follows may work in place, as ReLU often does, and no leaf allows that.
        return output.detach().requires_grad_().clone()

    for name, width in narrow.items():
        reached.clear()
        at = inputs.clone().requires_grad_()
        handle = model.module.get_submodule(name).register_forward_hook(cut)
        try:
            loss = _loss(model, at)
        finally:
            handle.remove()
        (by_inputs,) = torch.autograd.grad(loss, [at], allow_unused=True)
        if by_inputs is None:
            yield Cut(name, width, frozenset(_used(reached, parameters)))


def _used(outputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> Iterator[str]:
    """Names of the parameters that outputs depend on; others may use them, too."""
    total = torch.stack([one.sum() for one in outputs]).sum()
    if total.requires_grad:
        slopes = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        yield from (key for key, one in zip(parameters, slopes, strict=True) if one is not None)


def _random(model: VictimModel) -> Tensor | None:
    """Random inputs (`PASSED`, *shape); None of a modality without a shape."""
    if not isinstance(spec := model.spec, ImageSpec | TabularSpec):
        return None
    inputs = torch.rand(PASSED, *spec.input_shape, generator=torch_generator(0, "counting"))
    return in_dtype_of(model, inputs)


def in_dtype_of(model: VictimModel, inputs: Tensor) -> Tensor:
    """Cast inputs to the dtype of a model's weights.

    Args:
        model: The model.
        inputs: (B, ...), any dtype.

    Returns:
        Floating-point inputs in the dtype of the first floating-point parameter; token ids, and
        inputs of a model without such a parameter, unchanged.
    """
    weights = (one for one in model.module.parameters() if one.is_floating_point())
    return inputs.to(next(weights, inputs).dtype) if inputs.is_floating_point() else inputs


def _loss(model: VictimModel, inputs: Tensor) -> Tensor:
    return model.loss(inputs, torch.zeros(PASSED, dtype=torch.int64))
