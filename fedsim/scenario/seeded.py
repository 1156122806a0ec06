"""The seed of a run: a number, or "random"."""

import secrets
from typing import Any, Self

from pydantic import Field, PrivateAttr, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from fedsim.errors import ScenarioError
from fedsim.scenario.tables import Table


class Seeded(Table):
    """The part of a scenario that holds its seed."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    _drawn: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _draw(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        drawn = isinstance(values, dict) and values.get("seed") == "random"
        made = handler({**values, "seed": secrets.randbits(63)} if drawn else values)
        made._drawn = drawn or made._drawn
        return made

    @property
    def draws_seed(self) -> bool:
        """Whether the seed was drawn as `seed = "random"`, so that each run draws another one."""
        return self._drawn

    def drawn(self, seed: int | None) -> Self:
        """The same with the seed of one run.

        Args:
            seed: The seed; None draws 63 bits from the operating system.
        """
        made = self.model_copy(update={"seed": secrets.randbits(63) if seed is None else seed})
        made._drawn = False
        return made

    def refuse_drawn(self, why: str) -> None:
        """Raise `ScenarioError` if the seed is "random".

        Args:
            why: What needs a number.
        """
        if self._drawn:
            raise ScenarioError(f'seed = "random": {why}. State a number below 2**63')
