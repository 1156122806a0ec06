"""Low precision: sixteen bits, eight bits, a few random levels. One format, and one last step."""

import math
from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.defense import ClientState, Defense, Effect
from fedsim.records import Update

__all__ = ["QSGD", "HalfPrecision", "Int8"]

_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
LARGEST_INT8 = 127


class _Rounded(Defense):
    """Rounds every tensor by itself; subclasses say to what."""

    @property
    def effect(self) -> Effect:
        """A format."""
        return "format"

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update with every tensor rounded."""
        return update.replace(tensors={k: self._rounded(v, rng) for k, v in update.tensors.items()})

    @abstractmethod
    def _rounded(self, value: Tensor, rng: torch.Generator) -> Tensor:
        """One tensor as it is sent, shape and dtype as before."""


class HalfPrecision(_Rounded):
    """Rounds every coordinate to IEEE half precision or to bfloat16 (DLG, section 5.1).

    fp16 keeps 10 bits of mantissa and ends at 65,504, where larger values are cut off; bf16 keeps 7
    bits and float32's range. What arrives is float32 again. Buffers are sent as they are.
    """

    name: ClassVar[str] = "half-precision"
    keywords = ("quantization", "quantisation", "low precision", "float16", "bfloat16")

    format: Literal["fp16", "bf16"] = "fp16"
    """Which sixteen bits."""

    def _rounded(self, value: Tensor, rng: torch.Generator) -> Tensor:
        dtype = _FORMATS[self.format]
        largest = torch.finfo(dtype).max
        return value.clamp(-largest, largest).to(dtype).to(value.dtype)


class Int8(_Rounded):
    """Rounds every coordinate to one of 255 evenly spaced values (DLG, table 3).

    A tensor's step is its largest magnitude / 127, so that zero stays zero and nothing is cut off:
    an error of at most half a step, or below one with stochastic rounding, which is right in the
    mean (Gupta et al., ICML 2015). Buffers are sent as they are.
    """

    name: ClassVar[str] = "int8"
    keywords = ("quantization", "quantisation", "low precision", "gradient compression")

    rounding: Literal["nearest", "stochastic"] = "nearest"
    """To the nearest value, or up or down at random."""

    def _rounded(self, value: Tensor, rng: torch.Generator) -> Tensor:
        step = value.abs().max() / LARGEST_INT8 if value.numel() else value.new_zeros(())
        if not step > 0:
            return value
        units = value / step
        if self.rounding == "stochastic":
            units = (units + _uniform(value, rng)).floor()
        else:
            units = units.round()
        return units.clamp(-LARGEST_INT8, LARGEST_INT8) * step


class QSGD(_Rounded):
    """Rounds every coordinate at random to one of a few levels (QSGD, Alistarh et al., NIPS 2017).

    A tensor's levels lie at 0, 1/s, ..., 1 times its norm. A magnitude between two of them goes to
    either so that the mean is right: training sees more noise, and no bias. Buffers are sent as
    they are.
    """

    name: ClassVar[str] = "qsgd"
    keywords = ("quantization", "quantisation", "stochastic rounding", "gradient compression")

    levels: int = Field(default=16, ge=1, le=2**15)
    """Levels s above zero; 1 sends ternary values."""

    norm: Literal["l2", "max"] = "l2"
    """a tensor's unit: its L2 norm (the paper), or largest magnitude."""

    def _rounded(self, value: Tensor, rng: torch.Generator) -> Tensor:
        norms = {"max": math.inf, "l2": 2}
        unit = torch.linalg.vector_norm(value, norms[self.norm]) if value.numel() else value.sum()
        if not unit > 0:
            return value
        level = (value.abs() / unit * self.levels + _uniform(value, rng)).floor()
        return value.sign() * level.clamp(max=self.levels) * (unit / self.levels)


def _uniform(like: Tensor, rng: torch.Generator) -> Tensor:
    """Uniform in [0, 1), in the shape and on the device of a tensor."""
    return torch.rand(like.shape, generator=rng, dtype=like.dtype).to(like.device)
