"""A decoder run again step by step, checked against the row spaces of its layers' gradients.

A weight's gradient is sum_i delta_i x_i', so that each x_i that entered the layer lies in its row
space, of dimension S.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.gradients import keep_labels, rank_above, rounding
from fedsim.victim import VictimModel

__all__ = ["Hypotheses", "Walk"]


@dataclass(frozen=True, slots=True, eq=False)
class Hypotheses:
    """R beginnings of a sequence, as long as the others.

    labels (R, i) int64; contexts (R, i, d_A) float64; residuals (R,) float64: squared distances of
    what entered the layers from their row spaces, as shares of its squared norm, summed.
    """

    labels: Tensor
    contexts: Tensor
    residuals: Tensor

    def followed_by(self, labels: Tensor) -> "Hypotheses":
        """Each with each of b labels behind it: R b of them."""
        times, behind = len(labels), labels.repeat(len(self.labels))[:, None]
        return Hypotheses(
            torch.cat([self.labels.repeat_interleave(times, dim=0), behind], dim=1),
            self.contexts.repeat_interleave(times, dim=0),
            self.residuals.repeat_interleave(times),
        )

    def best(self, most: int, apart: float) -> "Hypotheses":
        """The `most` with the lowest residuals, of these none beyond `apart` times the lowest."""
        order = self.residuals.argsort()[:most]
        order = order[self.residuals[order] <= apart * self.residuals[order[0]]]
        return Hypotheses(self.labels[order], self.contexts[order], self.residuals[order])


class Walk:
    """Step by step through a decoder: what it was fed, and the context vectors it was given.

    From labels and context vectors before step i, what enters a layer at step i is known. Of the
    layer behind the attention it is [s_i; a_i; 1] with a_i unknown, of which the row space holds
    one vector with that s_i, as long as s_i has at least S entries: a_i is read off.

    model: has the point "context"; it is copied. gradient: of one sequence, by parameter name.
    bag (b,) int64: the labels that may occur, sorted, 0 (the end) first: indices into it stand for
    labels here. Raises `ValueError` where gradient and model do not fit. To be `cut` before the
    first step.
    """

    def __init__(
        self,
        model: VictimModel,
        gradient: Mapping[str, Tensor],
        bag: Tensor,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self._model = model.copy().to(device)
        self._model.module.double()
        keep_labels(self._model, model.head, bag.to(device))
        self._labels = torch.arange(len(bag), device=device)
        self._size = int(self._model.module.context_size)  # type: ignore[arg-type]
        self._entered: dict[str, Tensor] = {}
        layers = {
            name: layer
            for name, layer in self._model.module.named_modules()
            if isinstance(layer, nn.Linear) and f"{name}.weight" in gradient
        }
        for name, layer in layers.items():
            layer.register_forward_hook(self._keep(name))
        roles = self._roles()
        self._behind = {name: place for name, place in roles.items() if isinstance(place, slice)}
        self.matched = [
            f"{name}.{key}" for name in self._behind for key, _ in layers[name].named_parameters()
        ]
        """Parameters that the context vectors explain: of the layers behind the attention."""
        self._spectra = {
            name: _Spectrum.of(
                name,
                gradient[f"{name}.weight"].to(device),
                gradient[f"{name}.bias"].to(device) if layers[name].bias is not None else None,
                self._size if name in self._behind else 0,
            )
            for name, place in roles.items()
            if place != "after"
        }
        self._rows: dict[str, Tensor] = {}
        self.longest = 0
        """Labels that the row spaces leave room for."""

    def cut(self, length: int) -> bool:
        """Take the row spaces: what exceeds rounding, or where that is all, `length` directions.

        Too many directions do little harm, a missing one does. Returns whether the length counted.
        Raises `ValueError` where the layers are too narrow for it.
        """
        self._rows, counted = {}, False
        for name, one in self._spectra.items():
            filled = one.above >= min(one.known, one.most)
            rank = length if filled else one.above
            # One that fills what is known of the layer's input checks nothing, and a layer with
            # fewer outputs than labels does not hold them all.
            if rank < one.known and rank <= one.most:
                self._rows[name] = one.rows[:, :rank]
                counted |= filled
        self.longest = max([length, *(rows.shape[1] for rows in self._rows.values())])
        if not self._behind.keys() & self._rows.keys():
            raise ValueError(
                f"no layer takes context vectors beside more than {length} known values to give "
                f"{length} or more, as {length} labels need: the decoder is too narrow for them"
            )
        return counted

    @torch.no_grad()
    def _feed(self, contexts: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What enters each layer at the last step, its bias's 1 at the end: (R, n)."""
        self._entered.clear()
        # The label of the last step itself is fed nowhere.
        self._model.loss(contexts, functional.pad(labels, (0, 1)), at="context")
        return dict(self._entered)

    def _keep(self, name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> None:
            last = args[0] if args[0].ndim == 2 else args[0][:, -1]
            biased = layer.bias is not None
            self._entered[name] = functional.pad(last, (0, 1), value=1.0) if biased else last

        return hook

    def _roles(self) -> dict[str, slice | Literal["before", "after"]]:
        """Layers by where the context vector of a step is in what enters them at that step.

        "before": nowhere, all of it is known by then. A slice: there, as it is. "after": anywhere.
        """
        rng = torch.Generator().manual_seed(0)
        contexts = torch.randn(1, 3, self._size, generator=rng, dtype=torch.float64)
        contexts = contexts.to(self._labels.device)
        labels = self._labels.new_zeros(1, 2)
        first = self._feed(contexts, labels)
        second = self._feed(torch.cat([contexts[:, :-1], -contexts[:, -1:]], dim=1), labels)
        roles: dict[str, slice | Literal["before", "after"]] = {}
        for name, entered in first.items():
            changed = (entered != second[name])[0].nonzero().flatten()
            if not len(changed):
                roles[name] = "before"
                continue
            place = slice(int(changed[0]), int(changed[0]) + self._size)
            held = torch.equal(entered[:, place], contexts[:, -1]) and len(changed) == self._size
            roles[name] = place if held else "after"
        return roles

    def start(self) -> Hypotheses:
        """The only beginning without labels, its first context vector read off."""
        empty = self._labels.new_zeros(1, 0)
        zero = torch.zeros(1, 0, self._size, dtype=torch.float64, device=empty.device)
        return self._step(Hypotheses(empty, zero, zero.new_zeros(1)))

    def step(self, kept: Hypotheses) -> Hypotheses:
        """Each of them with each label behind it, and the context vector that followed."""
        return self._step(kept.followed_by(self._labels))

    def _step(self, these: Hypotheses) -> Hypotheses:
        contexts = functional.pad(these.contexts, (0, 0, 0, 1))
        residuals = these.residuals.clone()
        for name, entered in self._feed(contexts, these.labels).items():
            rows = self._rows.get(name)
            if rows is None:
                continue
            place = self._behind.get(name)
            if place is None:
                apart = entered - (entered @ rows) @ rows.mT
                residuals += _share(apart, entered)
                continue
            known = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            known[place] = False
            mixed = entered[:, known] @ torch.linalg.pinv(rows[known]).mT
            residuals += _share(entered[:, known] - mixed @ rows[known].mT, entered[:, known])
            contexts[:, -1] = mixed @ rows[place].mT
        return Hypotheses(these.labels, contexts, residuals)


def _share(apart: Tensor, whole: Tensor) -> Tensor:
    """Squared norms (R,) of the first as a share of the second's; 0 where that is 0."""
    total = whole.square().sum(dim=1)
    return apart.square().sum(dim=1) / total.clamp(min=torch.finfo(total.dtype).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class _Spectrum:
    """Right singular vectors (n, most) of a layer's gradient, its bias the last column.

    above: how many singular values exceed rounding to float32. known: entries of the layer's input
    that are known before the context vector is.
    """

    rows: Tensor
    above: int
    known: int

    @property
    def most(self) -> int:
        return self.rows.shape[1]

    @classmethod
    def of(cls, name: str, weight: Tensor, bias: Tensor | None, unknown: int) -> "_Spectrum":
        exact = weight.double()
        if bias is not None:
            exact = torch.cat([exact, bias.double()[:, None]], dim=1)
        if not torch.isfinite(exact).all():
            raise ValueError(f"the gradient of '{name}' holds NaN or Inf")
        # The small directions count: neither a Gram matrix nor a sketch would keep them.
        reduced = torch.linalg.qr(exact, mode="r").R
        _, values, rows = torch.linalg.svd(reduced, full_matrices=False)
        above = rank_above(values, absolute=rounding(exact))
        return cls(rows.mT, above, exact.shape[1] - unknown)
