"""Learning rates by round, after the schedules of `torch.optim.lr_scheduler`."""

import math
from typing import Any

from pydantic import Field

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.plugin import table, validated
from fedsim.scenario.tables import Table


class Schedule(Table):
    """The same learning rate in every round, and the base class of the other schedules."""

    name: str = "constant"
    """Name of the schedule."""

    def rate(self, lr: float, round: int, rounds: int) -> float:
        """Compute the learning rate of a round.

        Args:
            lr: The learning rate of the scenario.
            round: The round, from 1.
            rounds: The number of rounds.
        """
        return lr


class Step(Schedule):
    """The rate is multiplied by gamma after every so many rounds (torch's `StepLR`)."""

    every: int = Field(default=10, ge=1)
    """Number of rounds with the same rate."""

    gamma: float = Field(default=0.1, gt=0, le=1)
    """Factor of the rate from one such period to the next."""

    def rate(self, lr: float, round: int, rounds: int) -> float:
        """Compute lr gamma^p after p whole periods."""
        return float(lr * self.gamma ** ((round - 1) // self.every))


class Exponential(Schedule):
    """The rate is multiplied by gamma after every round (torch's `ExponentialLR`)."""

    gamma: float = Field(default=0.99, gt=0, le=1)
    """Factor of the rate from one round to the next."""

    def rate(self, lr: float, round: int, rounds: int) -> float:
        """Compute lr gamma^(round - 1)."""
        return float(lr * self.gamma ** (round - 1))


class Cosine(Schedule):
    """The rate follows half a cosine down to `lr_min` (torch's `CosineAnnealingLR`).

    `lr_min` would be that of the round after the last, so that no round has a rate of 0.
    """

    lr_min: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Learning rate at the end."""

    def rate(self, lr: float, round: int, rounds: int) -> float:
        """Compute the rate on the cosine from lr to `lr_min`."""
        share = (1 + math.cos(math.pi * (round - 1) / rounds)) / 2
        return self.lr_min + (lr - self.lr_min) * share


class Linear(Schedule):
    """The rate changes linearly from the first round to the last (torch's `LinearLR`)."""

    start_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Factor of the rate in the first round."""

    end_factor: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Factor of the rate in the last round."""

    def rate(self, lr: float, round: int, rounds: int) -> float:
        """Compute the rate between lr `start_factor` and lr `end_factor`."""
        share = (round - 1) / max(1, rounds - 1)
        return lr * (self.start_factor + (self.end_factor - self.start_factor) * share)


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Schedule,
    "cosine": Cosine,
    "exponential": Exponential,
    "linear": Linear,
    "step": Step,
}
"""Schedules that `training.lr_schedule` can name."""


def as_schedule(value: Any) -> Schedule:
    """Validate the schedule that a scenario asks for.

    Args:
        value: A name ("cosine"), or a table with a name and settings.

    Raises:
        DataError: The value is neither.
        ScenarioError: The name is unknown, or a setting is unknown or invalid.
    """
    if isinstance(value, Schedule):
        return value
    where = "training.lr_schedule"
    settings = table(value, where, example='{name = "step", every = 10, gamma = 0.1}')
    if settings["name"] not in SCHEDULES:
        raise ScenarioError(
            f"{where}: no schedule '{settings['name']}'. "
            f"{did_you_mean(settings['name'], SCHEDULES)}"
        )
    return validated(SCHEDULES[settings["name"]], settings, where)
