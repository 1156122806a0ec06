"""first-linear: inputs in closed form, from the gradient of a fully connected first layer."""

from collections.abc import Mapping
from math import prod
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedsim.adversary import Adversary, Job
from fedsim.gradients import rank_of
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.spec import ImageSpec, TabularSpec
from fedsim.victim import VictimModel

__all__ = ["FirstLinear"]

NEGLIGIBLE = 1e-6
"""Share of the largest bias gradient below which a unit's ratio is rounding, not an input."""

BEYOND = 0.01
"""How far beyond the input range, as a share of it, a unit's ratio may still be an input."""


class FirstLinear(Adversary):
    """Inputs read off the gradient of a fully connected first layer, without model or labels.

    A layer z = W x + b that takes the input itself has dL/dW_i = sum_n c_in x_n and dL/db_i =
    sum_n c_in, where c_in is what example n adds to dL/dz_i. So every row of [dL/dW | dL/db] is a
    mixture of the rows (x_n, 1), and dL/dW_i / dL/db_i is x itself when one example alone
    contributes to unit i.

    - One example: the matrix has rank one. Its leading right singular vector, scaled so that the
      bias coordinate is 1, is x: every unit votes, and noise averages out.
    - Several examples: behind a ReLU, units that fire for a single example give it exactly. Units
      that agree on a ratio form a group, which mixtures hardly ever do, so the largest groups
      are claimed first (`diagnostics["units"]`: how many agree). What is left of the number of
      examples is filled with single units whose ratio lies within the input range, those first
      that stand out most from what was already claimed (successive projection): of mixtures with
      positive weights, the purest. A single unit may be a mixture.

    Needs the gradient of that layer, with a bias; no model. Nothing changes under several local
    steps or an unknown learning rate: sums of mixtures are mixtures, and factors cancel. But a
    unit must then be left alone by all examples but one throughout. Momentum, too, is linear;
    weight decay over several steps and optimizers like Adam break it. Without the number of
    examples the matrix's rank is taken for it, exact for independent inputs fewer than units.

    Claims float32 tensors of `spec.input_shape` (flat ones where that is None), as the layer saw
    them: after whatever normalisation the model applies, and not clamped.
    """

    name: ClassVar[str] = "first-linear"
    keywords = (
        "gradient inversion",
        "analytic",
        "exact recovery",
        "image reconstruction",
        "fully connected",
    )
    suits = (ImageSpec, TabularSpec)
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"inputs"})
    cites: ClassVar[str] = (
        "Phong et al., Privacy-Preserving Deep Learning via Additively Homomorphic Encryption, "
        "IEEE TIFS 2018, Section 3; Geiping et al., Inverting Gradients, NeurIPS 2020, "
        "Proposition 3.1"
    )

    layer: str | None = None
    """Name of the first layer, such as hidden.0; left out: the one whose inputs are as many as
    an example has values."""

    tolerance: float = Field(default=1e-5, gt=0, le=1)
    """Root mean square difference, as a share of the input range, up to which two units agree;
    more where the update was rounded, as differences of weights are."""

    def cautions(self, model: VictimModel) -> list[str]:
        """A model without such a layer, as far as shapes tell."""
        if model.spec is None:
            return []
        try:
            self._layer(model.parameters(), model.spec.input_shape)
        except ValueError as error:
            return [str(error)]
        return []

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """At most as many inputs as examples; raises `ValueError` where no layer gives them."""
        name, rows = self._rows(seen)
        count = seen.num_examples or max(1, rank_of(rows))
        claims, units = [_ratio(rows)], [len(rows)]
        diagnostics: dict[str, object] = {"layer": name, "examples": count}
        if count > 1:
            claims, units, within = self._apart(rows, count, seen.spec.input_range)
            diagnostics["units_within_range"] = within
        shape = seen.spec.input_shape or (rows.shape[1] - 1,)
        return Reconstruction(
            inputs=[claim.float().view(shape) for claim in claims],
            diagnostics={**diagnostics, "units": units},
        )

    def _apart(
        self, rows: Tensor, count: int, bounds: tuple[float, float] | None
    ) -> tuple[list[Tensor], list[int], int]:
        """Up to `count` claims, the units behind each, and the units within the input range."""
        ratios = rows[:, :-1] / rows[:, -1:]
        low, high = bounds or (float(ratios.min()), float(ratios.max()))
        # Without a range that is known, the largest ratio is often a mixture far from all inputs.
        span = high - low if bounds else 2 * float(ratios.abs().median())
        apart = self.tolerance * span * ratios.shape[1] ** 0.5
        beyond = torch.maximum(low - ratios, ratios - high).amax(dim=1)
        within = torch.nonzero(beyond <= BEYOND * (high - low)).flatten()
        if not len(within):
            return [ratios[beyond.argmin()]], [1], 0
        rows, ratios = rows[within], ratios[within]
        near = torch.cdist(ratios, ratios) <= apart
        claims, units = list[Tensor](), list[int]()
        free = torch.ones(len(ratios), dtype=torch.bool, device=ratios.device)
        while len(claims) < count:
            votes = (near & free).sum(dim=1) * free
            if votes.max() < 2:
                break
            group = near[votes.argmax()] & free
            claims.append(_ratio(rows[group]))
            units.append(int(group.sum()))
            free &= ~group
        singles = _standing_out(ratios[free], claims, count - len(claims), apart)
        return claims + singles, units + [1] * len(singles), len(within)

    def _rows(self, seen: Observation) -> tuple[str, Tensor]:
        """The layer's name, and the rows (units, inputs + 1) of its gradient that say something."""
        gradient = seen.know(Knowledge.GRADIENT)
        name = self._layer(gradient, seen.spec.input_shape)
        rows = torch.cat(
            [gradient[f"{name}.weight"].double(), gradient[f"{name}.bias"].double()[:, None]], dim=1
        )
        if not torch.isfinite(rows).all():
            raise ValueError(f"the gradient of layer '{name}' holds NaN or Inf")
        size = rows[:, -1].abs()
        if not size.any():
            raise ValueError(
                f"the bias gradient of layer '{name}' is zero throughout: no unit fired, or a "
                "defense removed it"
            )
        return name, rows[size > NEGLIGIBLE * size.max()]

    def _layer(self, arrays: Mapping[str, Tensor], shape: tuple[int, ...] | None) -> str:
        """Name of the layer that takes an input of this shape, by its own."""
        width = None if shape is None else prod(shape)
        matrices = {
            key.removesuffix(".weight"): value
            for key, value in arrays.items()
            if value.ndim == 2 and key.endswith(".weight")
        }
        told = ", ".join(f"{k} ({v.shape[1]} inputs)" for k, v in sorted(matrices.items()))
        listed = f"fully connected layers: {told or 'none'}"
        if self.layer is not None:
            names = [self.layer] if self.layer in matrices else []
        else:
            names = [key for key, value in matrices.items() if value.shape[1] == width]
        if len(names) != 1:
            size = "of no fixed size" if width is None else f"of {width} values"
            wanted = f"layer = '{self.layer}'" if self.layer else f"an input {size}"
            found = "several layers fit" if names else "no fully connected layer fits"
            remedy = "Set `layer` to the one that takes the input itself"
            raise ValueError(f"{found} {wanted}; {listed}. {remedy}, if there is one")
        name = names[0]
        inputs = matrices[name].shape[1]
        if width is not None and inputs != width:
            raise ValueError(
                f"layer '{name}' has {inputs} inputs, and an example has {width} values: "
                f"it does not take the input itself; {listed}"
            )
        if f"{name}.bias" not in arrays:
            raise ValueError(
                f"layer '{name}' has no bias: its gradient gives inputs only up to a factor, and "
                "dividing by the bias gradient is all that this attack does"
            )
        return name


def _ratio(rows: Tensor) -> Tensor:
    """The input (inputs,) of the rank-one matrix nearest to rows c_i (x, 1)."""
    _, _, right = torch.linalg.svd(rows, full_matrices=False)
    nearest: Tensor = right[0, :-1] / right[0, -1]
    return nearest


def _standing_out(ratios: Tensor, claimed: list[Tensor], count: int, apart: float) -> list[Tensor]:
    """Up to `count` of the ratios, each farthest from the span of `claimed` and those before it.

    Successive projection (Araújo et al., 2001) on (x, 1): the norm is convex, so of mixtures with
    positive weights it meets the purest first. Ends where none is farther than `apart`.
    """

    def homogeneous(inputs: Tensor) -> Tensor:
        return torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)

    rest, chosen = homogeneous(ratios), list[int]()
    if claimed:
        basis, _ = torch.linalg.qr(homogeneous(torch.stack(claimed)).T)
        rest = rest - (rest @ basis) @ basis.T
    while len(chosen) < count and len(rest):
        norms = rest.norm(dim=1)
        farthest = int(norms.argmax())
        if norms[farthest] <= apart:
            break
        chosen.append(farthest)
        along = rest[farthest] / norms[farthest]
        rest = rest - torch.outer(rest @ along, along)
    return [ratios[i] for i in chosen]
