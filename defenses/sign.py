"""Sign compression: one bit a coordinate, and a scale a tensor."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.defense import ClientState, Defense, Effect
from fedsim.records import Update

__all__ = ["Sign"]


class Sign(Defense):
    """Sends the sign of every coordinate, times a scale so that training still works.

    Zero stays zero. With scale "mean" every other coordinate becomes its tensor's mean magnitude,
    which keeps the L1 norm of a tensor without zeros (Karimireddy et al., ICML 2019); with a
    number every coordinate has that size, as in signSGD (Bernstein et al., ICML 2018). With error
    feedback a client adds what earlier rounds rounded away before it takes signs (Karimireddy et
    al., algorithm 1). Buffers are sent as they are.
    """

    name: ClassVar[str] = "sign"
    keywords = (
        "quantization",
        "quantisation",
        "sign compression",
        "signSGD",
        "1-bit",
        "gradient compression",
    )

    scale: Literal["mean"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] = "mean"
    """Size of a coordinate: "mean" (mean magnitude of its tensor) or a number > 0."""

    error_feedback: bool = False
    """Keep what the signs leave out, and add it in the next round."""

    @property
    def effect(self) -> Effect:
        """A format."""
        return "format"

    @property
    def remembers(self) -> bool:
        """With error feedback."""
        return self.error_feedback

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update with every coordinate reduced to its sign and the scale."""
        signs = {}
        for name, value in update.tensors.items():
            whole = value + state[name] if self.error_feedback and name in state else value
            signs[name] = self._signs(whole)
            if self.error_feedback:
                state[name] = whole - signs[name]
        return update.replace(tensors=signs)

    def _signs(self, value: Tensor) -> Tensor:
        if self.scale == "mean":
            return value.sign() * value.abs().mean() if value.numel() else value
        return value.sign() * self.scale
