"""How long measuring an update takes, estimated from its model alone."""

from fedsim.diagnosis.measuring import WIDEST, linear_layers
from fedsim.victim import VictimModel

ALWAYS, EACH_PARAMETER, EACH_PRODUCT = 0.015, 2e-8, 4e-10
"""Seconds on one core of a server of 2024: of any update, for each parameter, and for each product
n m min(n, m) of a linear layer (n, m), whose singular values are computed."""


def seconds(model: VictimModel) -> float:
    """About how many seconds measuring an update takes; the same on every machine."""
    parameters = dict(model.module.named_parameters())
    sizes = [parameters[f"{name}.weight"].shape for name in linear_layers(model)]
    products = sum(size.numel() * min(size) for size in sizes if min(size) <= WIDEST)
    number = sum(one.numel() for one in parameters.values())
    return ALWAYS + EACH_PARAMETER * number + EACH_PRODUCT * products
