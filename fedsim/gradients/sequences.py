"""Gradient matching of a decoded sequence, by its context vectors and labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedsim.gradients.factored import FactoredGradients, Leading, leading
from fedsim.gradients.problem import L2, Comparison, parameter_weights
from fedsim.victim import VictimModel

__all__ = ["LabelBag", "SequenceProblem", "keep_labels"]


@dataclass(frozen=True, slots=True, eq=False)
class LabelBag:
    """The labels that a sequence is made of.

    Attributes:
        labels: (b,) int64, sorted.
        length: Steps S of the sequence.
        last: The label of the last step.
    """

    labels: Tensor
    length: int
    last: int


class SequenceProblem:
    """The distance between a decoder's gradient and those of dummy sequences of S steps.

    A point is a flat vector: context vectors A, then smooth labels P over a bag of labels. Called
    with points (R, n), as `minimise` does, it returns (R,); the victims it is handed with them are
    one and the same. Of R starts each is answered as it would be alone.

    penalty: if given, A (S, d_A) and P (S, |bag|) are the coordinates themselves, and the value is
    RLG's Eq. 8, ||g' - g|| + penalty sum_i |1 - ||p_i||_1|. Otherwise A is combined of S vectors,
    P is a softmax of its coordinates, and the value ||g' - g||^2 / ||g||^2. A weight's gradient
    sum_i delta_i x_i' has the rows x_i that entered the layer in its row space; those of a layer
    that takes A hold the a_i, so that S vectors from it span them.

    model: has the point "context", and says by `module.context_size` what d_A is; it is copied.
    gradient: by parameter name, of one sequence of `bag.length` steps; of each matrix the leading S
    singular vectors count, which is all of it but for noise. normalise: "set" leaves only the
    bag's labels in the softmax (L_BoW). comparison: its distance is not read. Raises `ValueError`
    where gradient and model do not fit.
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
        """Vectors (k, d_A) that context vectors are combined of."""
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
            "none of the matched layers takes the context vectors as they are, so that none tells "
            "what they are combined of: match such a layer, or leave the context vectors free"
        )

    def start(self, rng: torch.Generator, spread: float = 1.0) -> Tensor:
        """A new point (n,): what makes the context vectors N(0, spread^2), labels U(0, 1)."""
        contexts = spread * torch.randn(self.length * len(self.basis), generator=rng)
        labels = torch.rand(self.length * len(self.bag), generator=rng)
        return torch.cat([contexts, labels]).to(self.basis)

    def split(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Context vectors (R, S, d_A) and smooth labels (R, S, |bag|)."""
        cut = self.length * len(self.basis)
        contexts = points[:, :cut].view(len(points), self.length, -1) @ self.basis
        labels = points[:, cut:].view(len(points), self.length, -1)
        if not self.free:
            labels = labels.softmax(dim=2)
        end = (self.bag == self.last).to(labels).expand(len(points), 1, -1)
        return contexts, torch.cat([labels[:, :-1], end], dim=1)

    def read(self, points: Tensor) -> Tensor:
        """The sequences (R, S) int64: the heaviest label of each step."""
        return self.bag[self.split(points)[1].argmax(dim=2)]

    def __call__(self, points: Tensor, victims: Tensor) -> Tensor:
        """Values (R,) of points (R, n), the penalty included; `victims` is not read."""
        distance = self.distance(points, victims)
        if not self.free:
            return distance
        _, labels = self.split(points)
        excess = (labels.abs().sum(dim=2) - 1).abs().sum(dim=1)
        return distance + self.penalty * excess

    def distance(self, points: Tensor, victims: Tensor) -> Tensor:
        """The value (R,) without the penalty."""
        contexts, labels = self.split(points)
        full = labels
        if self.classes != len(self.bag):
            full = labels.new_zeros(*labels.shape[:2], self.classes)
            full = full.index_copy(2, self.bag, labels)
        distance = torch.zeros_like(points[:, 0])
        with torch.enable_grad():  # the gradient's own, whether or not the value's is sought
            gradients = self._gradients(contexts, full)
        for name, ours in gradients.items():
            theirs = self._theirs[name]
            if isinstance(theirs, Leading):
                assert isinstance(ours, tuple)  # noqa: S101 - both are matrices
                apart = theirs.squared_distance(ours)
            else:
                assert isinstance(ours, Tensor)  # noqa: S101 - both are biases
                apart = (ours - theirs).square().sum(dim=1)
            distance = distance + self.weights[name] * apart
        if not self.free:
            return distance / self._norm
        return distance.clamp(min=torch.finfo(distance.dtype).tiny).sqrt()


def keep_labels(
    model: VictimModel, head: str, bag: Tensor, gradient: dict[str, Tensor] | None = None
) -> None:
    """Leave only a bag's labels (b,) int64 in head, embeddings and their gradients; in place."""
    gradient = {} if gradient is None else gradient
    classes = len(model.module.get_submodule(head).get_parameter("weight"))
    for name, layer in model.module.named_modules():
        embeds = isinstance(layer, nn.Embedding) and layer.num_embeddings == classes
        if name == head or embeds:
            for key, value in list(layer.named_parameters(recurse=False)):
                setattr(layer, key, nn.Parameter(value.detach()[bag]))
                if f"{name}.{key}" in gradient:
                    gradient[f"{name}.{key}"] = gradient[f"{name}.{key}"][bag]
