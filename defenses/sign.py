"""Sign compression: one bit a coordinate, and a scale a tensor."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.defense import ClientState, Defense
from fedsim.records import Update

__all__ = ["Sign"]


class Sign(Defense):
    """Sends the sign of every coordinate, times a scale so that training still works.

    Zero stays zero. With scale "mean" a tensor keeps its L1 norm (Seide et al., 2014; Karimireddy
    et al., 2019, without their error feedback); with a number every coordinate has that size, as
    in signSGD (Bernstein et al., ICML 2018). Buffers are sent as they are.
    """

    name: ClassVar[str] = "sign"

    scale: Literal["mean"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default="mean",
        description='size of a coordinate: "mean" (mean magnitude of its tensor) or a number > 0',
    )

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update with every coordinate reduced to its sign and the scale."""
        return update.replace(tensors={k: self._signs(v) for k, v in update.tensors.items()})

    def _signs(self, value: Tensor) -> Tensor:
        if self.scale == "mean":
            return value.sign() * value.abs().mean() if value.numel() else value
        return value.sign() * self.scale
