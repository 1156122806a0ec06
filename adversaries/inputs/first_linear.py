"""Gradient inversion in closed form, for models whose first layer is fully connected."""

from collections.abc import Mapping
from math import prod

import torch
from pydantic import Field
from torch import Tensor

from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction, Requirement, VictimModel
from fedsim.gradients import layer_calls, layer_rows, rank_of
from fedsim.spec import ImageSpec, TabularSpec

NEGLIGIBLE = 1e-6
"""Bias gradient of a unit, relative to the largest, below which its ratio is rounding noise."""

BEYOND = 0.01
"""How far an input may lie outside the input range, as a share of the range."""


class FirstLinear(Adversary):
    """Exact inputs from the gradient of a fully connected first layer, without model or labels.

    For a layer z = W x + b whose input is the example itself, dL/dW_i = sum_n c_in x_n and dL/db_i
    = sum_n c_in, where c_in is example n's part of dL/dz_i. Every row of [dL/dW | dL/db] is
    therefore a mixture of the rows (x_n, 1), and if a single example contributes to unit i, then
    dL/dW_i / dL/db_i is that example.

    - One example: the matrix has rank one, and its leading right singular vector, scaled to a bias
      coordinate of 1, is x. All units contribute, so that noise averages out.
    - Several examples: after a ReLU, a unit that is active for a single example gives it exactly.
      Several units with the same ratio are hardly ever mixtures, so the largest groups of them are
      claimed first (`diagnostics["units"]` holds their sizes). The remaining claims are single
      units whose ratios lie within the input range, chosen by successive projection: each lies
      farthest from the span of the previous claims, which for mixtures with positive weights
      means the purest. A single unit may still be a mixture.

    The attack needs the gradient of that layer, which must have a bias. Several local steps, an
    unknown learning rate and momentum are allowed, because sums of mixtures are mixtures and
    factors cancel; but then only one example may contribute to a unit in all steps. Weight decay
    over several steps and optimizers like Adam are not linear, and break the attack. If the number
    of examples is not known, it is estimated by the rank of the matrix, which is exact for
    independent inputs if there are fewer of them than units.

    Claims are float32 tensors of `spec.input_shape` (flat if that is None), as the layer receives
    them: after the model's normalisation, and not clamped.
    """

    name = "first-linear"
    keywords = (
        "gradient inversion",
        "analytic",
        "exact recovery",
        "image reconstruction",
        "fully connected",
    )
    suits = (ImageSpec, TabularSpec)
    needs = Knowledge.GRADIENT
    recovers = frozenset({"inputs"})
    cites = (
        "Phong et al., Privacy-Preserving Deep Learning via Additively Homomorphic Encryption, "
        "IEEE TIFS 2018, Section 3; Geiping et al., Inverting Gradients, NeurIPS 2020, "
        "Proposition 3.1"
    )
    requirements = (
        Requirement("mixed_units", "each example needs units of its own", most=0.2),
        Requirement("optimizer", "steps of another optimizer have other ratios", only=("sgd",)),
        Requirement("first_noise", "the layer shows the noise with the inputs", most=0.5),
        Requirement("noise", "with signs or more noise than gradient, ratios are lost", most=1),
    )

    layer: str | None = None
    """Name of the first layer, such as hidden.0; if left out, the layer with as many inputs as an
    example has values."""

    tolerance: float = Field(default=1e-5, gt=0, le=1)
    """Largest root mean square difference of two units' ratios that counts as equal, as a share of
    the input range; use more for rounded updates, such as differences of weights."""

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of a model that has no such layer, as far as shapes show."""
        if model.spec is None:
            return []
        try:
            name = self._layer(model.parameters(), model.spec.input_shape)
        except ValueError as error:
            return [str(error)]
        if model.spec.input_shape is None or _receives_inputs(model, name, model.spec.input_shape):
            return []
        return [
            f"layer '{name}' does not receive the examples themselves, but what the model makes of "
            "them, such as normalised ones. That is what is recovered, and it is scored as if it "
            "were the examples. exact-batch and r-gap undo a normalisation"
        ]

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Compute at most as many inputs as there are examples.

        Raises:
            ValueError: No layer takes the input, or its gradient is zero or holds NaN or Inf.
        """
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
        """Separate the inputs of several examples.

        Args:
            rows: Rows (units, inputs + 1) of the layer's gradient, the bias in the last column.
            count: Number of examples.
            bounds: The input range, if it is known.

        Returns:
            At most `count` inputs, the number of units behind each, and the number of units whose
            ratios lie within the input range.
        """
        ratios = rows[:, :-1] / rows[:, -1:]
        low, high = bounds or (float(ratios.min()), float(ratios.max()))
        # If the range is not known, the largest ratio is often a mixture far from all inputs, and
        # the median ratio of sparse inputs is zero.
        span = high - low if bounds else 2 * float(ratios.abs().amax(dim=1).median())
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
        """Return the layer's name, and the rows (units, inputs + 1) of gradients above rounding."""
        gradient = seen.know(Knowledge.GRADIENT)
        name = self._layer(gradient, seen.spec.input_shape)
        rows = layer_rows(gradient, name)
        size = rows[:, -1].abs()
        if not size.any():
            raise ValueError(
                f"the bias gradient of layer '{name}' is zero throughout: no unit fired, or a "
                "defense removed it"
            )
        if size.max() < NEGLIGIBLE * rows[:, :-1].abs().max():
            raise ValueError(
                f"the bias gradient of layer '{name}' is nothing but rounding: batch normalisation "
                "behind the layer takes its bias away, and with it the inputs"
            )
        return name, rows[size > NEGLIGIBLE * size.max()]

    def _layer(self, arrays: Mapping[str, Tensor], shape: tuple[int, ...] | None) -> str:
        """Return the name of the layer whose input is an example of this shape."""
        width = None if shape is None else prod(shape)
        matrices = {
            key.removesuffix(".weight"): value
            for key, value in arrays.items()
            if value.ndim == 2 and key.endswith(".weight")
        }
        found = ", ".join(f"{k} ({v.shape[1]} inputs)" for k, v in sorted(matrices.items()))
        listed = f"fully connected layers: {found or 'none'}"
        names = [
            key
            for key, value in matrices.items()
            if (value.shape[1] == width if self.layer is None else key == self.layer)
        ]
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


def _receives_inputs(model: VictimModel, name: str, shape: tuple[int, ...]) -> bool:
    """Whether a layer's inputs are the model's, not normalised or changed otherwise."""
    module = model.copy().module.eval()
    inputs = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    inputs = inputs.to(next(module.parameters()).device)
    with torch.no_grad(), layer_calls({name: module.get_submodule(name)}) as calls:
        module(inputs)
    received = [one.flatten(1).float() for one, _ in calls[name]]
    return len(received) == 1 and torch.allclose(received[0], inputs.flatten(1), 1e-2, 1e-2)


def _ratio(rows: Tensor) -> Tensor:
    """Return the input x (inputs,) of the rank-one matrix c (x, 1) nearest to these rows."""
    _, _, right = torch.linalg.svd(rows, full_matrices=False)
    nearest: Tensor = right[0, :-1] / right[0, -1]
    return nearest


def _standing_out(ratios: Tensor, claimed: list[Tensor], count: int, apart: float) -> list[Tensor]:
    """Choose the purest ratios by successive projection of (x, 1) (Araújo et al., 2001).

    The norm is convex, so among mixtures with positive weights the purest is farthest from the span
    of the previous choices.

    Args:
        ratios: Candidates (n, inputs).
        claimed: Inputs that span the space at the beginning.
        count: Largest number of choices.
        apart: Smallest distance of a choice from the span.

    Returns:
        The chosen ratios, each farthest from the span of `claimed` and the previous choices.
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
