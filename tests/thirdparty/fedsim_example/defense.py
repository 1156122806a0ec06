"""scale: sends a fraction of the update."""

from typing import ClassVar

import torch
from pydantic import Field

from fedsim import ClientState, Defense, Update


class Scale(Defense):
    """Multiplies the update by a factor. Hides its size and nothing else."""

    name: ClassVar[str] = "scale"

    factor: float = Field(default=0.5, gt=0, le=1, description="what every coordinate is times")

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update, smaller."""
        return update.replace(
            tensors={name: self.factor * value for name, value in update.tensors.items()}
        )
