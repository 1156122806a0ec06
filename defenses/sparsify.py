"""Sending few coordinates: the largest ones, or a random choice; the rest are zeros."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.defense import ClientState, Defense, Effect
from fedsim.records import Update

__all__ = ["GradDrop", "GradientMask", "TopK", "largest"]

Scope = Literal["tensor", "update"]


class _Sparse(Defense):
    """Keeps the largest magnitudes; subclasses say how many."""

    scope: Scope = "tensor"
    """Whether to count within each "tensor", or over the whole "update"."""

    error_feedback: bool = False
    """Keep what is not sent, and add it in the next round."""

    @property
    def effect(self) -> Effect:
        """Zeros; with error feedback the other coordinates change as well."""
        return "values" if self.error_feedback else "zeros"

    @property
    def remembers(self) -> bool:
        """With error feedback."""
        return self.error_feedback

    @abstractmethod
    def kept(self, coordinates: int) -> int:
        """The number of coordinates that are sent, of so many."""

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update with zeros for all but the largest coordinates."""
        if self.kept(10**9) == 10**9:
            return update
        whole = {
            name: value + state[name] if self.error_feedback and name in state else value
            for name, value in update.tensors.items()
        }
        masks = largest(whole, self.kept, self.scope)
        sent = {name: torch.where(masks[name], value, 0) for name, value in whole.items()}
        if self.error_feedback:
            state.update({name: whole[name] - value for name, value in sent.items()})
        return update.replace(tensors=sent)


class TopK(_Sparse):
    """Sends the fraction k of the coordinates that are largest in magnitude.

    Of n coordinates max(1, round(k n)) are kept, no more and no fewer, whatever the ties. With
    error feedback the rest waits on the client (Stich et al., NeurIPS 2018, "Sparsified SGD with
    memory"). Buffers are sent as they are.
    """

    name: ClassVar[str] = "top-k"
    keywords = ("sparsification", "pruning", "gradient compression")

    k: float = Field(default=0.1, gt=0, le=1)
    """Fraction that is sent; 1: everything."""

    def kept(self, coordinates: int) -> int:
        """max(1, round(k n))."""
        return min(coordinates, max(1, round(self.k * coordinates)))


class GradDrop(_Sparse):
    """Sets the fraction `rate` of the coordinates that are smallest in magnitude to zero.

    Of n coordinates floor(rate n) are dropped (Aji and Heafield, EMNLP 2017; RLG's table 4 drops
    50 and 90 % of the head's without error feedback, DLG prunes). Aji and Heafield keep what is
    dropped: set `error_feedback`. Buffers are sent as they are.
    """

    name: ClassVar[str] = "grad-drop"
    keywords = ("pruning", "gradient pruning", "sparsification", "gradient compression")

    rate: float = Field(default=0.9, ge=0, lt=1)
    """Fraction that is dropped; 0: none."""

    def kept(self, coordinates: int) -> int:
        """n - floor(rate n)."""
        # A rate such as 0.9 is a hair off in binary: 0.9 x 10 must drop 9.
        return coordinates - int(self.rate * coordinates + 1e-9)


class GradientMask(Defense):
    """Sets a fraction `rate` of the coordinates, chosen at random, to zero (LAMP, table 8).

    The choice is new in every round. Of a tensor's n coordinates exactly floor(rate n) are zeroed;
    the others are sent as they are, neither scaled up nor kept for later. Buffers are sent as they
    are.
    """

    name: ClassVar[str] = "gradient-mask"
    keywords = ("pruning", "random pruning", "masking", "sparsification")

    rate: float = Field(default=0.9, ge=0, lt=1)
    """Fraction that is zeroed; 0: none."""

    @property
    def effect(self) -> Effect:
        """Zeros."""
        return "zeros"

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update with zeros at random places; with rate 0 the very same update."""
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
    """Masks (bool, shaped like the values) of the `kept(n)` largest magnitudes of n.

    scope: count within each tensor, or over all of them together. Exactly so many, also among
    ties.
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
