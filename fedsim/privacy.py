"""Privacy accounting: (epsilon, delta) of Gaussian mechanisms, computed by Opacus."""

import functools
import math
import warnings
from typing import Literal

from fedsim.errors import ScenarioError

Accountant = Literal["rdp", "prv"]
"""Renyi DP (Mironov et al., 2019), or the privacy random variable (Gopi et al., NeurIPS 2021).

Opacus' third accountant, Gaussian DP, may underestimate what was spent, as Opacus itself warns; it
is therefore not offered.
"""

PRV_UP_TO = 1000.0
"""Epsilon by `"rdp"` from which `"prv"` is not tried: its memory grows with epsilon, to 20 GB at a
noise multiplier of .001, and beyond about 700 it finds infinity."""


@functools.lru_cache(maxsize=4096)
def epsilon(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: Accountant = "rdp",
) -> float:
    """Compute epsilon after several Gaussian mechanisms on Poisson samples of the data.

    Neighbouring data sets differ by the presence of one record. Clients draw batches of a fixed
    size; they are treated as Poisson samples of the same rate, which is the usual approximation.

    Args:
        noise_multiplier: The standard deviation of the noise divided by the sensitivity.
        sample_rate: The probability that a record takes part in a step.
        steps: The number of mechanisms.
        delta: The delta at which epsilon is given.
        accountant: The accountant of Opacus. Where `"prv"` finds a greater epsilon than `"rdp"`,
            as for very little noise, that of `"rdp"` is returned: it is an upper bound.

    Returns:
        Epsilon: infinite without noise, 0 before the first step.

    Raises:
        ScenarioError: The accountant fails on these values.
    """
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    bound = _opacus("rdp", noise_multiplier, sample_rate, steps, delta)
    if accountant == "rdp" or bound > PRV_UP_TO:
        return bound
    return min(bound, _opacus(accountant, noise_multiplier, sample_rate, steps, delta))


def _opacus(
    accountant: Accountant, noise_multiplier: float, sample_rate: float, steps: int, delta: float
) -> float:
    from opacus.accountants import create_accountant

    counting = create_accountant(accountant)
    counting.history = [(noise_multiplier, sample_rate, steps)]
    try:
        with warnings.catch_warnings():
            # If the best order is at the edge of those tried, the bound holds but is looser.
            warnings.filterwarnings("ignore", message="Optimal order is the", category=UserWarning)
            # At a rate of 1 "prv" takes the logarithm of 0, and goes on with minus infinity.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="opacus")
            return max(0.0, float(counting.get_epsilon(delta=delta)))
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        raise ScenarioError(
            f'Opacus\' accountant "{accountant}" cannot count noise of {noise_multiplier:g} times '
            f"the sensitivity over {steps} steps at a rate of {sample_rate:g}, delta {delta:g}: "
            f'{type(error).__name__}: {error}. Set accountant = "rdp", or less extreme values'
        ) from error


def weak_delta(name: str, delta: float, records: int, of: str) -> list[str]:
    """A caution about a delta of 1 / n or more for n records; empty for smaller ones.

    Args:
        name: The name of the defense.
        delta: The delta.
        records: The number of records.
        of: What a record is, in the plural: "examples".
    """
    if delta < 1 / records:
        return []
    return [
        f"{name}: delta = {delta:g} with {records} {of}: a mechanism that publishes one of them at "
        f"random keeps to that. Set delta well below 1 / {records} = {1 / records:.1g}"
    ]
