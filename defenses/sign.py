"""Sign compression: one bit per coordinate, and one scale per tensor."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from defenses.sparsify import Compression
from fedsim.defense import Effect


class Sign(Compression):
    """Sends the sign of every coordinate times a scale.

    Zero stays zero. With scale "mean" the scale is the mean magnitude of the tensor, which keeps
    the L1 norm of a tensor without zeros (Karimireddy et al., ICML 2019). With a number it is that
    number, as in signSGD (Bernstein et al., ICML 2018). With error feedback a client adds the
    quantisation error of earlier rounds before it takes signs (Karimireddy et al., algorithm 1).
    Buffers are sent unchanged.
    """

    name = "sign"
    keywords = ("quantization", "sign compression", "signSGD", "1-bit", "gradient compression")

    scale: Literal["mean"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] = "mean"
    """Magnitude of every coordinate: the "mean" magnitude of its tensor, or a number > 0."""

    @property
    def effect(self) -> Effect:
        """The update is sent in a coarse format."""
        return "format"

    def compressed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sign of every coordinate times the scale."""
        if self.scale != "mean":
            return {name: value.sign() * self.scale for name, value in tensors.items()}
        return {
            name: value.sign() * value.abs().mean() if value.numel() else value
            for name, value in tensors.items()
        }
