"""Quantisation of the update: half precision, 8-bit integers, and QSGD."""

import math
from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.defense import ClientState, Defense, Effect
from fedsim.records import Update

_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
LARGEST_INT8 = 127


class _Rounded(Defense):
    """Base class of defenses that quantise each tensor by itself."""

    @property
    def effect(self) -> Effect:
        """The update is sent in a coarse format."""
        return "format"

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Quantise every tensor of the update."""
        return update.replace(tensors={k: self._rounded(v, rng) for k, v in update.tensors.items()})

    @abstractmethod
    def _rounded(self, value: Tensor, rng: torch.Generator) -> Tensor:
        """Quantise one tensor, with unchanged shape and dtype."""


class HalfPrecision(_Rounded):
    """Rounds every coordinate to IEEE half precision or to bfloat16 (DLG, section 5.1).

    fp16 has 10 bits of mantissa and clips values beyond 65,504; bf16 has 7 bits and the range of
    float32. The server receives float32 values. Buffers are sent unchanged.
    """

    name = "half-precision"
    keywords = ("quantization", "low precision", "float16", "bfloat16")

    format: Literal["fp16", "bf16"] = "fp16"
    """The 16-bit format: IEEE half precision or bfloat16."""

    def _rounded(self, value: Tensor, rng: torch.Generator) -> Tensor:
        dtype = _FORMATS[self.format]
        largest = torch.finfo(dtype).max
        return value.clamp(-largest, largest).to(dtype).to(value.dtype)


class Int8(_Rounded):
    """Rounds every coordinate to one of 255 evenly spaced values (DLG, table 3).

    The step of a tensor is its largest magnitude / 127, so zero stays zero and nothing is clipped.
    The error is at most half a step, or less than one step with stochastic rounding, which is
    unbiased (Gupta et al., ICML 2015). Buffers are sent unchanged.
    """

    name = "int8"
    keywords = ("quantization", "low precision", "gradient compression")

    rounding: Literal["nearest", "stochastic"] = "nearest"
    """Rounding to the nearest value, or up or down at random without bias."""

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

    The levels of a tensor are 0, 1/s, ..., 1 times its norm. A magnitude between two levels is
    rounded to one of them at random, without bias but with more noise. Buffers are sent unchanged.
    """

    name = "qsgd"
    keywords = ("quantization", "stochastic rounding", "gradient compression")

    levels: int = Field(default=16, ge=1, le=2**15)
    """Number s of levels above zero; 1 gives ternary values."""

    norm: Literal["l2", "max"] = "l2"
    """Unit of the levels of a tensor: its L2 norm (the paper), or its largest magnitude."""

    def _rounded(self, value: Tensor, rng: torch.Generator) -> Tensor:
        norms = {"max": math.inf, "l2": 2}
        unit = torch.linalg.vector_norm(value, norms[self.norm]) if value.numel() else value.sum()
        if not unit > 0:
            return value
        level = (value.abs() / unit * self.levels + _uniform(value, rng)).floor()
        return value.sign() * level.clamp(max=self.levels) * (unit / self.levels)


def _uniform(like: Tensor, rng: torch.Generator) -> Tensor:
    """Draw uniform values in [0, 1) with the shape and on the device of a tensor."""
    return torch.rand(like.shape, generator=rng, dtype=like.dtype).to(like.device)
