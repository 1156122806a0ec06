"""Gradient matching for texts: compare the gradients of dummy embeddings with observed ones."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from fedsim.gradients.factored import Factored
from fedsim.gradients.ghost import GhostGradients
from fedsim.gradients.problem import Comparison, DistanceName, parameter_weights
from fedsim.gradients.terms import observed_terms
from fedsim.victim import VictimModel

TextMetric = DistanceName

COSINE = Comparison("cosine", dtype=torch.float32)

KEY_BIASES = ("*key.bias", "*key_proj.bias", "*k_proj.bias", "*k_lin.bias")
"""Names of the biases of key projections.

Attention does not change if all keys are shifted by the same vector. The gradient of these biases
is therefore zero, and its observed value is rounding noise.
"""

AGREES = 1e-3
"""Largest difference from autograd's gradient, relative to its norm, that counts as rounding."""

CPU_TOKENS, GPU_TOKENS = 512, 16_384
"""Tokens in one pass without gradients, on a CPU and a GPU; more do not fit a CPU's caches."""


class TextDistance:
    """The distance between V victims' gradients and those of dummy texts, given as embeddings.

    The distance is one of three:

    - "cosine": the mean of 1 - cosine over the tensors that are not zero (Balunovic et al., LAMP,
      NeurIPS 2022, Eq. 8);
    - "l2": the sum of ||g' - g||^2, computed without cancellation near a match;
    - "l1+l2": additionally `l1` ||g' - g||_1 (Deng et al., TAG, EMNLP Findings 2021). Only this
      distance needs whole weight gradients; they are formed one layer at a time, and not kept.

    Word embeddings and `KEY_BIASES` are never compared.

    Args:
        model: The victims' model, which accepts inputs at the point "embedding"; it is copied.
        observed: Gradient of each victim, by parameter name.
        targets: For each victim, labels (B,) or masked tokens (B, L) int64, or soft ones.
        lengths: For each victim, the number of tokens of its texts, (B,) int64. L is at least the
            largest of them.
        comparison: The distance, the weights of parameters, the device and the dtype.
        l1: Factor of the L1 norm in "l1+l2".

    Raises:
        ValueError: Gradient and model do not fit, a gradient holds NaN or Inf or is zero, or the
            gradients that are computed in factors differ from autograd's.
    """

    def __init__(
        self,
        model: VictimModel,
        observed: Sequence[Mapping[str, Tensor]],
        targets: Sequence[Tensor],
        lengths: Sequence[Tensor],
        *,
        comparison: Comparison = COSINE,
        l1: float = 0.01,
    ) -> None:
        distance, device, dtype = comparison.distance, comparison.device, comparison.dtype
        shapes = {
            (tuple(one.shape), tuple(ends.shape))
            for one, ends in zip(targets, lengths, strict=False)
        }
        if len(shapes) != 1 or not len(observed) == len(targets) == len(lengths):
            raise ValueError(
                f"{len(observed)} gradients, {len(targets)} targets and {len(lengths)} lengths, of "
                f"shapes {sorted(shapes)}; expected one of each a victim, all of one shape. Match "
                "victims with other numbers of texts apart"
            )
        own = model.copy().to(device)
        own.module.to(dtype).eval()  # the client's dropout masks are unknown
        weights = _matched(own, observed, comparison.parameters)
        theirs = {name: torch.stack([one[name] for one in observed]).to(device) for name in weights}
        self.distance = distance
        self.targets, self.lengths = (torch.stack(list(v)).to(device) for v in (targets, lengths))
        if self.targets.is_floating_point():
            self.targets = self.targets.to(dtype)
        own.module.requires_grad_(True)
        self._gradients = GhostGradients(own, weights)
        probe = self._tried(own)
        self._groups = observed_terms(
            theirs, probe, weights, dtype=dtype, factored=distance != "l1+l2"
        )
        own.module.requires_grad_(False)
        self.l1 = l1 if distance == "l1+l2" else 0.0
        self.zero_distance = torch.ones(len(observed), device=device, dtype=dtype)
        """Distance between a gradient of zero and each victim's, (V,)."""
        if distance != "cosine":
            self.zero_distance = torch.stack(
                [
                    weight
                    * (
                        theirs[name].flatten(1).square().sum(dim=1)
                        + self.l1 * theirs[name].flatten(1).abs().sum(dim=1)
                    )
                    for name, weight in weights.items()
                ]
            ).sum(dim=0)
        if not bool((self.zero_distance > 0).all()):
            raise ValueError("the gradient is zero throughout: there is nothing to match")
        self._counted = torch.zeros(())
        if distance == "cosine":
            self._counted = torch.stack(
                [(group.weights * (group.norms > 0)).sum(dim=0) for group in self._groups]
            ).sum(dim=0)
            if not bool((self._counted > 0).all()):
                raise ValueError("the gradient is zero throughout: there is nothing to match")

    def __call__(self, embedded: Tensor, victims: Tensor) -> Tensor:
        """Compute the distances of R dummy batches, each independent of the others.

        Args:
            embedded: Embeddings (R, B, L, d), before positions are added. If they require no
                gradient, they are processed a few rows at a time, and no graph is kept.
            victims: The victim of each batch, (R,) int64.

        Returns:
            Distances (R,), differentiable with respect to embeddings that require a gradient.
        """
        if embedded.requires_grad and torch.is_grad_enabled():
            return self._apart(embedded, victims, differentiable=True)
        rows = self.together(embedded[0])
        parts = zip(torch.split(embedded, rows), torch.split(victims, rows), strict=True)
        return torch.cat([self._apart(*part, differentiable=False) for part in parts])

    def together(self, embedded: Tensor) -> int:
        """Return how many batches (B, L, d) one pass without gradients takes."""
        most = CPU_TOKENS if embedded.device.type == "cpu" else GPU_TOKENS
        return max(1, most // embedded.shape[:2].numel())

    def _apart(self, embedded: Tensor, victims: Tensor, *, differentiable: bool) -> Tensor:
        ours = self._gradients(
            embedded,
            self.targets[victims],
            lengths=self.lengths[victims],
            create_graph=differentiable,
        )
        with torch.set_grad_enabled(differentiable):
            if self.distance == "cosine":
                terms = [group.cosine(ours, victims) for group in self._groups]
                return torch.stack(terms).sum(dim=0) / self._counted[victims]
            gaps = [group.gap(ours, victims, l1=self.l1) for group in self._groups]
            return torch.stack(gaps).sum(dim=0)

    def _tried(self, own: VictimModel) -> dict[str, Tensor | Factored]:
        """Compute the gradients of two random dummies; raise if one differs from autograd's."""
        words = own.embedding
        if words is None:
            raise ValueError("the model does not say which parameter holds its word embeddings")
        longest = int(self.lengths.max())
        rng = torch.Generator().manual_seed(0)
        shape = (2, self.lengths.shape[1], longest)
        drawn = torch.randint(len(words), shape, generator=rng).to(words.device)
        exact = own.gradient(
            words[drawn[1]],
            self.targets[0],
            lengths=self.lengths[0],
            at="embedding",
            names=self._gradients.names,
        )
        labels_of_texts = self.targets.ndim == 2 + self.targets.is_floating_point()
        if labels_of_texts:
            _skip_unused(own, words[drawn[1]], self.targets[0], self.lengths[0])
        found = self._gradients(
            words[drawn], self.targets[[0, 0]], lengths=self.lengths[[0, 0]], create_graph=False
        )
        whole = torch.stack([value.norm() for value in exact.values()]).norm()
        wrong = []
        for name, value in found.items():
            mine = value[0][1].mT @ value[1][1] if isinstance(value, tuple) else value[1]
            if (mine - exact[name]).norm() > AGREES * (exact[name].norm() + AGREES * whole):
                wrong.append(name)
        if wrong:
            more = f" and {len(wrong) - 3} others" if len(wrong) > 3 else ""
            raise ValueError(
                f"the gradients of {', '.join(wrong[:3])}{more} differ from autograd's: their "
                "layers do more than transform each token, or mix the texts of a batch. "
                'Leave them out: parameters = {"NAME" = 0, "*" = 1}'
            )
        return found


def _skip_unused(own: VictimModel, embedded: Tensor, target: Tensor, lengths: Tensor) -> None:
    """Let a model's last layer compute its first token alone if its loss uses no other.

    BERT's classifiers read the first token of the last layer. Behind the attention of that layer
    the other tokens have no effect, and gradients of zero. Models whose layers are built
    differently are left as they are.

    Args:
        own: A private copy, which is changed.
        embedded: Embeddings of a batch (B, L, d).
        target: Its labels.
        lengths: Its numbers of tokens, (B,) int64.
    """
    outputs = [
        layer for layer in own.module.modules() if type(layer).__name__.endswith("SelfOutput")
    ]
    kept: list[Tensor] = []
    if not outputs or embedded.shape[1] < 2:
        return
    hook = outputs[-1].register_forward_hook(lambda _layer, _args, output: kept.append(output))
    with hook, torch.enable_grad():
        loss = own.loss(embedded, target, lengths=lengths, at="embedding")
    if len(kept) == 1:
        (slopes,) = torch.autograd.grad(loss, kept, materialize_grads=True)
        if bool(slopes[:, 0].any()) and not bool(slopes[:, 1:].any()):
            outputs[-1].register_forward_pre_hook(_first_token)


def _first_token(_layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The attention's result and the residual it is added to, both (B, L, d), for one token."""
    return tuple(value[:, :1] for value in args)


def _matched(
    own: VictimModel,
    observed: Sequence[Mapping[str, Tensor]],
    parameters: Mapping[str, float] | None,
) -> dict[str, float]:
    """Return the weight of each matched parameter; raise if a gradient does not fit the model."""
    sent = [name for name in own.parameters() if all(name in one for one in observed)]
    if not sent:
        raise ValueError("the gradient names none of the model's trained parameters")
    weights = {
        name: weight
        for name, weight in parameter_weights(sent, parameters or {"*": 1.0}).items()
        if name != own.words and not any(fnmatchcase(name, key) for key in KEY_BIASES)
    }
    if not weights:
        raise ValueError(
            "nothing is left to match: the gradient of word embeddings is not one of fed "
            "embeddings, and that of key projections' biases is rounding noise"
        )
    for name in weights:
        wanted = own.module.get_parameter(name).shape
        for one in observed:
            if one[name].shape != wanted:
                raise ValueError(
                    f"the gradient of '{name}' has the shape {tuple(one[name].shape)}, the "
                    f"parameter {tuple(wanted)}: they are of different models"
                )
            if not torch.isfinite(one[name]).all():
                raise ValueError(f"the gradient of '{name}' holds NaN or Inf")
    return weights


def norm_gap(embedded: Tensor, typical: float, *, lengths: Tensor | None = None) -> Tensor:
    """Compute LAMP's regulariser of embeddings, (mean ||x|| - typical)^2 (Balunovic et al., Eq. 9).

    Args:
        embedded: Embeddings (R, B, L, d).
        typical: Mean norm of the vocabulary's embeddings.
        lengths: Number of tokens of each text, (R, B) or (B,) int64; tokens beyond are ignored.

    Returns:
        Values (R,).
    """
    norms = embedded.norm(dim=3)
    if lengths is None:
        return torch.square(norms.mean(dim=(1, 2)) - typical)
    inside = torch.arange(norms.shape[2], device=norms.device) < lengths.unsqueeze(-1)
    inside = inside.expand_as(norms)
    means = norms.where(inside, torch.zeros_like(norms)).sum(dim=(1, 2)) / inside.sum(dim=(1, 2))
    return torch.square(means - typical)


def nearest_tokens(
    embedded: Tensor, words: Tensor, *, forbidden: Sequence[int] | Tensor = ()
) -> Tensor:
    """Find the token whose embedding has the largest cosine with each of these.

    Args:
        embedded: Embeddings (..., d).
        words: Embeddings of the vocabulary, (V, d). A row of zeros is never chosen.
        forbidden: Ids that are never chosen.

    Returns:
        Token ids (...) int64.
    """
    norms = words.norm(dim=1)
    alike = (embedded.flatten(0, -2) @ words.mT) / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    alike[:, norms == 0] = -torch.inf
    alike[:, torch.as_tensor(forbidden, dtype=torch.int64, device=words.device)] = -torch.inf
    return torch.argmax(alike, dim=1).view(embedded.shape[:-1])
