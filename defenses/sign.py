"""Sign compression: one bit per coordinate, and one scale per tensor."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.defense import ClientState, Defense, Effect
from fedsim.records import Update


class Sign(Defense):
    """Sends the sign of every coordinate times a scale.

    Zero stays zero. With scale "mean" the scale is the mean magnitude of the tensor, which keeps
    the L1 norm of a tensor without zeros (Karimireddy et al., ICML 2019). With a number it is that
    number, as in signSGD (Bernstein et al., ICML 2018). With error feedback a client adds the
    quantisation error of earlier rounds before it takes signs (Karimireddy et al., algorithm 1).
    Buffers are sent unchanged.
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
    """Magnitude of every coordinate: the "mean" magnitude of its tensor, or a number > 0."""

    error_feedback: bool = False
    """Whether the client keeps the quantisation error and adds it in the next round."""

    @property
    def effect(self) -> Effect:
        """The update is sent in a coarse format."""
        return "format"

    @property
    def remembers(self) -> bool:
        """Whether error feedback is on."""
        return self.error_feedback

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Replace every coordinate by its sign times the scale."""
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
