"""Measurements of the gradient of the first linear layer, which shows inputs."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from fedsim.diagnosis.head import Layer, zeros_in
from fedsim.gradients import layer_rows
from fedsim.quantity import Value
from fedsim.spec import Spec

PARALLEL = 1e-8
"""Largest distance of the cosine of two units' gradients from 1 with which they count as equal."""

NEGLIGIBLE = 1e-6
"""Bias gradient of a unit, relative to the largest, below which its ratio is rounding noise."""

BEYOND = 0.01
"""How far a ratio may lie outside the input range, as a share of the range."""

UNITS = 2
"""Units with a ratio in the input range that an example needs: some of them are mixtures."""

OUTLYING = 3
"""Norm of a ratio, relative to the median, from which on it is that of examples that cancel."""

WIDEST = 4096
"""Largest number of units that are compared with one another."""


def first_layer_values(
    gradient: Mapping[str, Tensor], name: str, layer: Layer, examples: int, spec: Spec | None
) -> dict[str, Value]:
    """Measure the gradient of the first linear layer.

    Args:
        gradient: The gradient of all parameters by name.
        name: The layer.
        layer: The rank of its gradient.
        examples: Number of examples behind the gradient.
        spec: What the model takes, if it is known.
    """
    weight, bias = gradient[f"{name}.weight"], gradient.get(f"{name}.bias")
    shape = spec.input_shape if spec else None
    takes_input = shape is not None and prod(shape) == weight.shape[1]
    bounds = getattr(spec, "input_range", None) if takes_input else None
    # Units are the columns of the weight in GPT-2.
    has_units = bias is not None and len(bias) == len(weight)
    return {
        "first_fill": layer.fill,
        "first_zeros": zeros_in(weight),
        "first_noise": _noise(layer, examples) if takes_input else None,
        "mixed_units": _mixed(layer_rows(gradient, name), examples, bounds) if has_units else None,
    }


def _noise(layer: Layer, examples: int) -> float | None:
    """The singular value after those of the examples, relative to the last of these."""
    values = layer.values
    if values is None or not values[0]:
        return None
    if examples >= len(values):
        return 0.0
    return float(values[examples] / values[max(1, min(examples, layer.rank)) - 1])


def _mixed(rows: Tensor, examples: int, bounds: tuple[float, float] | None) -> float | None:
    """Share of the examples without units that seem to show them alone.

    Args:
        rows: Gradients (units, inputs + 1), that of the bias in the last column.
        examples: Number of examples.
        bounds: The input range, if it is known.
    """
    size = rows[:, -1].abs()
    if not size.any():
        return 1.0
    if examples == 1:
        return 0.0
    rows = rows[size > NEGLIGIBLE * size.max()].double()
    ratios = rows[:, :-1] / rows[:, -1:]
    if bounds:
        low, high = bounds
        beyond = torch.maximum(low - ratios, ratios - high).amax(dim=1)
        within = int((beyond <= BEYOND * (high - low)).sum())
        return max(0.0, 1 - within / (UNITS * examples))
    if len(rows) > WIDEST:
        return None
    norms = ratios.norm(dim=1)
    largest = sorted(_groups(rows), key=len, reverse=True)[:examples]
    shown = sum(bool(norms[group[0]] <= OUTLYING * norms.median()) for group in largest)
    return 1 - shown / examples


def _groups(rows: Tensor) -> list[list[int]]:
    """Units with the same ratio, two or more each."""
    rows = rows / rows.norm(dim=1, keepdim=True)
    near = (rows @ rows.T).abs() > 1 - PARALLEL
    found, free = list[list[int]](), torch.ones(len(rows), dtype=torch.bool)
    for unit in range(len(rows)):
        group = torch.nonzero(near[unit] & free).flatten().tolist() if free[unit] else []
        if len(group) > 1:
            found.append(group)
            free &= ~near[unit]
    return found
