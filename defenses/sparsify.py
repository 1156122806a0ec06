"""Sparsification: send the largest or random coordinates, and zeros for the others."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.defense import ClientState, Defense, Effect
from fedsim.records import Update

Scope = Literal["tensor", "update"]


class Compression(Defense):
    """Base class of defenses that send an update in part, with optional error feedback."""

    error_feedback: bool = False
    """Whether the client keeps what is not sent and adds it in the next round."""

    @property
    def remembers(self) -> bool:
        """Whether error feedback is on."""
        return self.error_feedback

    @abstractmethod
    def compressed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The part of an update that is sent."""

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Send a part of the update and of what the client kept."""
        whole = {
            name: value + state[name] if self.error_feedback and name in state else value
            for name, value in update.tensors.items()
        }
        sent = self.compressed(whole)
        if self.error_feedback:
            state.update({name: whole[name] - value for name, value in sent.items()})
        return update.replace(tensors=sent)


class _Sparse(Compression):
    """Base class of defenses that send the coordinates of the largest magnitude."""

    scope: Scope = "tensor"
    """Whether coordinates are counted within each "tensor", or over the whole "update"."""

    @property
    def effect(self) -> Effect:
        """Only zeros are added; with error feedback other values change, too."""
        return "values" if self.error_feedback else "zeros"

    @abstractmethod
    def kept(self, coordinates: int) -> int:
        """The number of coordinates that are sent, out of so many."""

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Set all but the largest coordinates to zero; unchanged if all are sent."""
        return update if self.kept(10**9) == 10**9 else super().protect(update, rng, state)

    def compressed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The largest coordinates, and zeros."""
        masks = largest(tensors, self.kept, self.scope)
        return {name: torch.where(masks[name], value, 0) for name, value in tensors.items()}


class TopK(_Sparse):
    """Sends the fraction k of the coordinates that are largest in magnitude.

    Out of n coordinates exactly max(1, round(k n)) are sent, also among ties. With error feedback
    the client keeps the rest for the next round (Stich et al., Sparsified SGD with Memory, NeurIPS
    2018). Buffers are sent unchanged.
    """

    name = "top-k"
    keywords = ("sparsification", "pruning", "gradient compression")

    k: float = Field(default=0.1, gt=0, le=1)
    """Fraction of the coordinates that is sent; 1: all."""

    def kept(self, coordinates: int) -> int:
        """max(1, round(k n))."""
        return min(coordinates, max(1, round(self.k * coordinates)))


class GradDrop(_Sparse):
    """Sets the fraction `rate` of the coordinates that are smallest in magnitude to zero.

    Out of n coordinates floor(rate n) are dropped (Aji and Heafield, EMNLP 2017). RLG's table 4
    drops 50 and 90 % of the head's gradient without error feedback, and DLG prunes gradients in the
    same way. Aji and Heafield use error feedback. Buffers are sent unchanged.
    """

    name = "grad-drop"
    keywords = ("pruning", "gradient pruning", "sparsification", "gradient compression")

    rate: float = Field(default=0.9, ge=0, lt=1)
    """Fraction of the coordinates that is dropped; 0: none."""

    def kept(self, coordinates: int) -> int:
        """n - floor(rate n)."""
        # Rates such as 0.9 are not exact in binary: 0.9 x 10 must drop 9.
        return coordinates - int(self.rate * coordinates + 1e-9)


class GradientMask(Defense):
    """Sets a fraction `rate` of the coordinates, chosen at random, to zero (LAMP, table 8).

    The choice is drawn anew in every round. Out of a tensor's n coordinates exactly floor(rate n)
    are set to zero. The others are neither scaled nor kept for later. Buffers are sent unchanged.
    """

    name = "gradient-mask"
    keywords = ("pruning", "random pruning", "masking", "sparsification")

    rate: float = Field(default=0.9, ge=0, lt=1)
    """Fraction of the coordinates that is set to zero; 0: none."""

    @property
    def effect(self) -> Effect:
        """Only zeros are added."""
        return "zeros"

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Set random coordinates to zero; unchanged for rate 0."""
        if self.rate == 0:
            return update
        masked = {}
        for name, value in update.tensors.items():
            flat = value.flatten().clone()
            order = torch.randperm(flat.numel(), generator=rng)
            flat[order[: int(self.rate * flat.numel() + 1e-9)].to(flat.device)] = 0
            masked[name] = flat.reshape(value.shape)
        return update.replace(tensors=masked)


def largest(
    values: Mapping[str, Tensor], kept: Callable[[int], int], scope: Scope = "tensor"
) -> dict[str, Tensor]:
    """Masks of the coordinates of the largest magnitude.

    Args:
        values: Tensors by name.
        kept: The number of coordinates to choose out of n; exact also among ties.
        scope: Whether n counts each "tensor", or the whole "update".

    Returns:
        Boolean masks of the shapes of the values.
    """
    flat = [value.abs().flatten() for value in values.values()]
    if scope == "update" and flat:
        parts = torch.split(_largest(torch.cat(flat), kept), [len(one) for one in flat])
    else:
        parts = tuple(_largest(one, kept) for one in flat)
    return {
        name: part.reshape(value.shape)
        for (name, value), part in zip(values.items(), parts, strict=True)
    }


def _largest(magnitudes: Tensor, kept: Callable[[int], int]) -> Tensor:
    mask = torch.zeros_like(magnitudes, dtype=torch.bool)
    if magnitudes.numel():
        mask[magnitudes.topk(kept(magnitudes.numel()), sorted=False).indices] = True
    return mask
