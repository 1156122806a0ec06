"""Step-by-step decoding, checked against the row spaces of the decoder's layers.

The gradient of a weight is sum_i delta_i x_i' over the S steps, so every input x_i of the layer
lies in its row space of dimension S.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.gradients import keep_labels, layer_rows, rank_above, rounding
from fedsim.victim import VictimModel


@dataclass(frozen=True, slots=True, eq=False)
class Hypotheses:
    """R hypotheses about the first i labels of a sequence.

    Attributes:
        labels: (R, i) int64.
        contexts: Context vectors, (R, i, d_A) float64.
        residuals: (R,) float64; squared distances of layer inputs from the row spaces, relative to
            the squared norms of the inputs, summed over layers and steps.
    """

    labels: Tensor
    contexts: Tensor
    residuals: Tensor

    def followed_by(self, labels: Tensor) -> "Hypotheses":
        """Extend each hypothesis by each of b labels, to R b hypotheses."""
        times, behind = len(labels), labels.repeat(len(self.labels))[:, None]
        return Hypotheses(
            torch.cat([self.labels.repeat_interleave(times, dim=0), behind], dim=1),
            self.contexts.repeat_interleave(times, dim=0),
            self.residuals.repeat_interleave(times),
        )

    def best(self, most: int, apart: float) -> "Hypotheses":
        """Keep the `most` lowest residuals, and none above `apart` times the lowest."""
        order = self.residuals.argsort()[:most]
        order = order[self.residuals[order] <= apart * self.residuals[order[0]]]
        return Hypotheses(self.labels[order], self.contexts[order], self.residuals[order])


class Walk:
    """Recovers the labels and context vectors of a decoder step by step.

    Labels and context vectors before step i determine the inputs of a layer at step i. For the
    layer behind the attention these are [s_i; a_i; 1] with unknown a_i. If s_i has at least S
    entries, the row space holds only one vector with this s_i, which determines a_i.

    `cut` must be called before the first step.

    Args:
        model: A model with the feeding point "context"; it is copied.
        gradient: The gradient of one sequence by parameter name.
        bag: Labels that may occur, (b,) int64, sorted, beginning with 0 (the end). Labels are
            represented by their indices in it.
        device: Where to compute.

    Raises:
        ValueError: The gradient holds NaN or Inf.
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
        """Parameters of the layers behind the attention, which the context vectors determine."""
        self._spectra = {
            name: _Spectrum(
                layer_rows(gradient, name).to(device), self._size if name in self._behind else 0
            )
            for name, place in roles.items()
            if place != "after"
        }
        self._rows: dict[str, Tensor] = {}
        # Places rather than a mask, as a GPU has to end its work for each index by a mask.
        self._known = {
            name: torch.tensor(
                [at for at in range(len(one.rows)) if not place.start <= at < place.stop],
                device=device,
            )
            for name, one in self._spectra.items()
            if isinstance(place := roles[name], slice)
        }
        self.longest = 0
        """The largest number of labels that are decoded."""

    def cut(self, length: int) -> bool:
        """Choose the row spaces.

        Their directions are those above rounding, or the first `length` ones if all are above it.
        Too many directions do little harm, but a missing one does.

        Returns:
            Whether `length` made a difference.

        Raises:
            ValueError: The layers are too narrow for so many labels.
        """
        self._rows, counted = {}, False
        for name, one in self._spectra.items():
            filled = one.above >= min(one.known, one.most)
            rank = length if filled else one.above
            # A row space of all known input dimensions checks nothing, and a layer with fewer
            # outputs than labels does not span all inputs.
            if rank < one.known and rank <= one.most:
                self._rows[name] = one.rows[:, :rank]
                counted |= filled
        most = max([length, *(rows.shape[1] for rows in self._rows.values())])
        # Rounding hides directions, most of all those of repeated labels.
        self.longest = most if counted else 2 * most + 2
        if not self._behind.keys() & self._rows.keys():
            raise ValueError(
                f"no layer takes context vectors beside more than {length} known values to give "
                f"{length} or more, as {length} labels need: the decoder is too narrow for them"
            )
        return counted

    @torch.no_grad()
    def _feed(self, contexts: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Inputs of each layer at the last step, (R, n), with a 1 appended if it has a bias."""
        self._entered.clear()
        # The label of the last step is not fed to any layer.
        self._model.loss(contexts, functional.pad(labels, (0, 1)), at="context")
        return dict(self._entered)

    def _keep(self, name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> None:
            last = args[0] if args[0].ndim == 2 else args[0][:, -1]
            biased = layer.bias is not None
            self._entered[name] = functional.pad(last, (0, 1), value=1.0) if biased else last

        return hook

    def _roles(self) -> dict[str, slice | Literal["before", "after"]]:
        """Classify layers by the place of a step's context vector in their input at that step.

        Returns:
            "before" if the input does not depend on the context vector, a slice if it holds the
            vector unchanged at that place, and "after" otherwise.
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
        """The empty hypothesis, with the first context vector."""
        empty = self._labels.new_zeros(1, 0)
        zero = torch.zeros(1, 0, self._size, dtype=torch.float64, device=empty.device)
        return self._step(Hypotheses(empty, zero, zero.new_zeros(1)))

    def step(self, kept: Hypotheses) -> Hypotheses:
        """Extend each hypothesis by each label, and recover the context vectors that follow."""
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
            known, beside = entered[:, self._known[name]], rows[self._known[name]]
            mixed = known @ torch.linalg.pinv(beside).mT
            residuals += _share(known - mixed @ beside.mT, known)
            contexts[:, -1] = mixed @ rows[place].mT
        return Hypotheses(these.labels, contexts, residuals)


def _share(apart: Tensor, whole: Tensor) -> Tensor:
    """Squared norms (R,) of `apart` relative to those of `whole`; 0 where the latter are 0."""
    total = whole.square().sum(dim=1)
    return apart.square().sum(dim=1) / total.clamp(min=torch.finfo(total.dtype).tiny)


class _Spectrum:
    """Singular vectors of a layer's gradient, with the bias as last column.

    Args:
        exact: The gradient, (out, in + 1) float64.
        unknown: Number of the layer's inputs that depend on the context vector.

    Attributes:
        rows: Right singular vectors, (in + 1, most).
        above: Number of singular values above the rounding of what was sent.
        known: Number of the layer's inputs that do not depend on the context vector.
        most: Number of singular values.
    """

    def __init__(self, exact: Tensor, unknown: int) -> None:
        # Small singular values matter; a Gram matrix or a sketch would lose them.
        reduced = torch.linalg.qr(exact, mode="r").R
        _, values, rows = torch.linalg.svd(reduced, full_matrices=False)
        self.rows, self.most = rows.mT, len(rows)
        self.above = rank_above(values, absolute=rounding(exact, sums=False))
        self.known = exact.shape[1] - unknown
