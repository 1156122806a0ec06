"""Gradient matching for a decoder: search for a sequence's context vectors and labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from fedsim.gradients.factored import Factored, FactoredGradients, Leading, leading
from fedsim.gradients.problem import L2, Comparison, parameter_weights
from fedsim.victim import VictimModel


@dataclass(frozen=True, slots=True, eq=False)
class LabelBag:
    """The labels that may occur in a sequence, without their order.

    Attributes:
        labels: (b,) int64, sorted.
        length: Steps S of the sequence.
        last: Label of the last step.
    """

    labels: Tensor
    length: int
    last: int


class SequenceProblem:
    """The distance between a decoder's gradient and those of dummy sequences of S steps.

    A point of the search is a flat vector that holds context vectors A (S, d_A) and smooth labels
    P (S, |bag|). With a `penalty`, A and P are the coordinates themselves, and the objective is
    Eq. 8 of Dang et al. (RLG, NeurIPS 2021), ||g' - g|| + penalty sum_i |1 - ||p_i||_1|.

    Without one, the search space is smaller: A is a combination of S basis vectors, P is a softmax
    of its coordinates, and the objective is ||g' - g||^2 / ||g||^2. The basis comes from the
    gradient: that of a weight, sum_i delta_i x_i', has the layer's inputs x_i in its row space. For
    a layer that takes the context vectors as input, S vectors of that space span all a_i.

    The object is a problem of `minimise`. Restarts are independent: batching does not change any
    result. All restarts belong to one victim.

    Args:
        model: The victim's model, which accepts inputs at the point "context" and gives d_A as
            `module.context_size`; it is copied.
        gradient: Gradient of one sequence of `bag.length` steps, by parameter name. Only the
            leading S singular vectors of each matrix are used: the rest is noise.
        head: Name of the projection layer.
        bag: The labels, the number of steps and the last label.
        rng: Generator on the CPU.
        penalty: Factor of the penalty; None for the smaller search space.
        normalise: Labels in the softmax: "all", or "set" for those of the bag alone (L_BoW).
        comparison: Weights of parameters, device and dtype; its distance is not used.

    Raises:
        ValueError: Gradient and model do not fit.
    """

    def __init__(
        self,
        model: VictimModel,
        gradient: Mapping[str, Tensor],
        head: str,
        *,
        bag: LabelBag,
        rng: torch.Generator,
        penalty: float | None = None,
        normalise: Literal["all", "set"] = "all",
        comparison: Comparison = L2,
    ) -> None:
        device, dtype, length = comparison.device, comparison.dtype, bag.length
        own = model.copy().to(device)
        own.module.to(dtype)
        sent = [name for name in own.parameters() if name in gradient]
        self.weights = parameter_weights(sent, comparison.parameters or {"*": 1.0})
        wanted = {name: gradient[name].to(device, dtype) for name in self.weights}
        self.bag, self.last, self.length = bag.labels.to(device), bag.last, length
        self.classes = len(own.module.get_submodule(head).get_parameter("weight"))
        if normalise == "set":
            keep_labels(own, head, self.bag, wanted)
            self.classes = len(self.bag)
        for name, value in wanted.items():
            if not torch.isfinite(value).all():
                raise ValueError(f"the gradient of '{name}' holds NaN or Inf")
        self._norm = sum(float(value.square().sum()) for value in wanted.values())
        if not self._norm:
            raise ValueError("the gradient is zero throughout: there is nothing to match")
        self._theirs: dict[str, Tensor | Leading] = {
            name: leading(value, length, rng) if value.ndim == 2 else value
            for name, value in wanted.items()
        }
        self._gradients = FactoredGradients(own, self.weights, at="context")
        self.penalty, self.free = penalty or 0.0, penalty is not None
        context = int(own.module.context_size)  # type: ignore[arg-type]
        self.basis = torch.eye(context, device=device, dtype=dtype)
        """Vectors (k, d_A) of which context vectors are linear combinations."""
        if not self.free:
            self.basis = self._span(rng)
        self.size = length * (len(self.basis) + len(self.bag))

    def _span(self, rng: torch.Generator) -> Tensor:
        probe = torch.randn(1, self.length, len(self.basis), generator=rng).to(self.basis)
        flat = probe.new_full((1, self.length, self.classes), 1 / self.classes)
        for name, ours in self._gradients(probe, flat).items():
            theirs = self._theirs[name]
            if isinstance(ours, tuple) and isinstance(theirs, Leading):
                width = ours[1].shape[2]
                for at in {0, max(0, width - len(self.basis))}:
                    place = slice(at, at + len(self.basis))
                    if torch.equal(ours[1][..., place], probe):
                        return theirs.v[place].mT
        raise ValueError(
            "none of the matched layers has the context vectors as its input, so that no gradient "
            "shows their row space: match such a layer, or leave the context vectors free"
        )

    def start(self, rng: torch.Generator, spread: float = 1.0) -> Tensor:
        """Draw a starting point.

        Args:
            rng: Generator on the CPU.
            spread: Standard deviation of the context vectors' coordinates, which are normal.

        Returns:
            A point (n,). The labels' coordinates are uniform in [0, 1).
        """
        contexts = spread * torch.randn(self.length * len(self.basis), generator=rng)
        labels = torch.rand(self.length * len(self.bag), generator=rng)
        return torch.cat([contexts, labels]).to(self.basis)

    def split(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Split points (R, n) into context vectors (R, S, d_A) and smooth labels (R, S, |bag|)."""
        cut = self.length * len(self.basis)
        contexts = points[:, :cut].view(len(points), self.length, -1) @ self.basis
        labels = points[:, cut:].view(len(points), self.length, -1)
        if not self.free:
            labels = labels.softmax(dim=2)
        end = (self.bag == self.last).to(labels).expand(len(points), 1, -1)
        return contexts, torch.cat([labels[:, :-1], end], dim=1)

    def read(self, points: Tensor) -> Tensor:
        """Return label sequences (R, S) int64: the label of largest weight in each step."""
        return self.bag[self.split(points)[1].argmax(dim=2)]

    def __call__(self, points: Tensor, victims: Tensor) -> Tensor:
        """Compute the objective (R,) of points (R, n), with the penalty; `victims` is not used."""
        distance = self.distance(points, victims)
        if not self.free:
            return distance
        _, labels = self.split(points)
        excess = (labels.abs().sum(dim=2) - 1).abs().sum(dim=1)
        return distance + self.penalty * excess

    def distance(self, points: Tensor, victims: Tensor) -> Tensor:
        """Compute the objective (R,) of points (R, n) without the penalty."""
        contexts, labels = self.split(points)
        full = labels
        if self.classes != len(self.bag):
            full = labels.new_zeros(*labels.shape[:2], self.classes)
            full = full.index_copy(2, self.bag, labels)
        distance = torch.zeros_like(points[:, 0])
        # The dummy's gradient needs a graph even if the objective's does not.
        with torch.enable_grad():
            gradients = self._gradients(contexts, full)
        for name, ours in gradients.items():
            theirs = self._theirs[name]
            if isinstance(theirs, Leading):  # both are matrices
                apart = theirs.squared_distance(cast(Factored, ours))
            else:
                apart = (cast(Tensor, ours) - theirs).square().sum(dim=1)
            distance = distance + self.weights[name] * apart
        if not self.free:
            return distance / self._norm
        return distance.clamp(min=torch.finfo(distance.dtype).tiny).sqrt()


def keep_labels(
    model: VictimModel, head: str, bag: Tensor, gradient: dict[str, Tensor] | None = None
) -> None:
    """Restrict the head, the label embeddings and their gradients to a bag of labels, in place.

    Args:
        model: The model that is changed.
        head: Name of the projection layer.
        bag: Labels (b,) int64 whose rows are kept.
        gradient: Gradient by parameter name, restricted to the same rows if given.
    """
    gradient = {} if gradient is None else gradient
    classes = len(model.module.get_submodule(head).get_parameter("weight"))
    for name, layer in model.module.named_modules():
        embeds = isinstance(layer, nn.Embedding) and layer.num_embeddings == classes
        if name == head or embeds:
            for key, value in list(layer.named_parameters(recurse=False)):
                setattr(layer, key, nn.Parameter(value.detach()[bag]))
                if f"{name}.{key}" in gradient:
                    gradient[f"{name}.{key}"] = gradient[f"{name}.{key}"][bag]
