"""(epsilon, delta) of Gaussian mechanisms, by Opacus' accountants."""

import functools
import math
import warnings
from typing import Literal

__all__ = ["Accountant", "epsilon"]

Accountant = Literal["rdp", "prv"]
"""Renyi DP (Mironov et al., 2019), or the privacy random variable (Gopi et al., NeurIPS 2021).

Opacus' third, Gaussian DP, may give less than was spent, as it warns itself; so it is no choice."""


@functools.lru_cache(maxsize=4096)
def epsilon(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: Accountant = "rdp",
) -> float:
    """Epsilon after `steps` Gaussian mechanisms on Poisson samples of the data.

    noise_multiplier: standard deviation of the noise / sensitivity. sample_rate: the probability
    that a record takes part in a step. Neighbours differ in one record that is there or not.
    Batches of a fixed size, as clients draw them, are treated as Poisson samples of that rate: the
    usual approximation. Infinite without noise, 0 before the first step.
    """
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    from opacus.accountants import create_accountant

    counting = create_accountant(accountant)
    counting.history = [(noise_multiplier, sample_rate, steps)]
    with warnings.catch_warnings():
        # At the edge of the orders it tries, the bound holds and is only looser.
        warnings.filterwarnings("ignore", message="Optimal order is the", category=UserWarning)
        return float(counting.get_epsilon(delta=delta))
