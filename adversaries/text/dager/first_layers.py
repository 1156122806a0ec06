"""The first layers of a transformer, and their inputs."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from adversaries.text.dager.row_spaces import Span
from fedsim.gradients import weight_rounding
from fedsim.victim import VictimModel

QUERIES = ("query", "q_proj", "q_lin", "q", "wq", "query_proj")
TOGETHER = ("c_attn", "qkv", "qkv_proj", "query_key_value", "in_proj", "wqkv", "att_proj")
"""Names of query projections, alone and joint with keys and values, in lower case."""

BESIDE = ("key", "value", "k_proj", "v_proj", "k_lin", "v_lin", "k", "v", "wk", "wv", "key_proj",
          "value_proj")  # fmt: skip
"""Names of layers with the same input as a query projection."""

TOKENS = 4096
"""Number of tokens that are fed at once."""


def queries_among(layers: Iterable[str]) -> list[str]:
    """The layers that are query projections, by their names."""
    return [name for name in layers if _own(name) in (*QUERIES, *TOGETHER)]


def no_queries(layers: Iterable[str]) -> str:
    """The error message for a model without query projections, with its linear layers."""
    return (
        "the gradient holds no query projection by a known name "
        f"({', '.join((*QUERIES, *TOGETHER))}); linear layers in it: "
        f"{', '.join(layers) or 'none'}. Train and send those of the transformer's blocks "
        "(task.parameters); lamp and tag take models of any names"
    )


class _Reached(Exception):
    """Ends a forward pass early."""


class First:
    """The first layers of a copy of the victim's model, which is fed token ids.

    Attributes:
        queries: The first query projection and layers with the same input.
        behind: Later layers in the order in which they are used; the last are the second block's
            query projection and layers with the same input.
        turned: Whether the weights of a layer are (in, out), by its name.
        norms: Layer normalisations of the last pass with their inputs and outputs, by name.

    Raises:
        ValueError: No query projection has a known name, or the model splits or pads texts.
    """

    def __init__(
        self, model: VictimModel, gradient: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self._model = model.copy().to(device)
        self._model.module.eval()
        self.device = device
        self._entered: dict[str, Tensor] = {}
        self.norms: dict[str, tuple[nn.LayerNorm, Tensor, Tensor]] = {}
        modules = dict(self._model.module.named_modules())
        layers = {
            name: layer
            for name, layer in modules.items()
            if f"{name}.weight" in gradient
            and gradient[f"{name}.weight"].ndim == 2
            and not isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        }
        self._named = queries_among(layers)
        if not self._named:
            raise ValueError(no_queries(layers))
        self.turned = {name: hasattr(layer, "nf") for name, layer in layers.items()}
        for name, layer in layers.items():
            layer.register_forward_pre_hook(self._keep(name))
        for name, layer in modules.items():
            if isinstance(layer, nn.LayerNorm):
                layer.register_forward_hook(self._keep_norm(name))
        if model.head not in layers and model.head in modules:
            modules[model.head].register_forward_pre_hook(_stop)
        # The first pass ends at the head, or at the second block's query projection.
        self._last: Callable[[str], bool] = lambda name: name in (model.head, self._following())
        self._twice = torch.full((1, 2), self._usable(), device=device)
        used = self._run(self._twice)
        if self._named[0] not in used:
            self._named = [name for name in used if name in self._named]
        self.queries = self._beside(self._named[0], layers)
        entered = used[self.queries[0]]
        if entered.shape[:2] != (1, 2):
            raise ValueError(
                f"'{self.queries[0]}' takes {tuple(entered.shape)} for a text of two tokens; "
                "expected (texts, tokens, values): this model splits texts, or pads them"
            )
        order = list(used)  # a projection of embeddings comes before the queries
        after = max(order.index(name) for name in self.queries if name in used) + 1
        # In blocks with parallel feed-forward layers, these have the same input as the queries.
        later = [
            name
            for name in order[after:]
            if used[name].ndim == 3 and not _equal(used[name], entered)
        ]
        self.behind: list[tuple[str, ...]] = [
            (name,) for name in later if _parent(name) != _parent(self._following())
        ]
        if self._following():
            self.behind.append(self._beside(self._following(), layers))

    def _usable(self) -> int:
        """The first token with an embedding and a position, which that of padding may lack."""
        words = self._model.embedding
        if words is None:
            return 0
        there = words.any(dim=1)
        padding = getattr(self._config, "pad_token_id", None)
        if isinstance(padding, int) and 0 <= padding < len(there):
            there[padding] = False
        return int(there.int().argmax())

    @property
    def alone(self) -> bool:
        """Whether the model has one block of attention."""
        return not self._following()

    def _following(self) -> str:
        """The second block's query projection, "" if there is none."""
        first = _parent(self._named[0])
        return next((name for name in self._named if _parent(name) != first), "")

    def _beside(self, query: str, layers: Mapping[str, nn.Module]) -> tuple[str, ...]:
        if _own(query) in TOGETHER:
            return (query,)
        others = [k for k in layers if _parent(k) == _parent(query) and _own(k) in BESIDE]
        return (query, *others)

    def _keep(self, name: str) -> Any:
        def hook(_layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            self._entered[name] = args[0]
            if self._last(name):
                raise _Reached

        return hook

    def _keep_norm(self, name: str) -> Any:
        def hook(layer: nn.LayerNorm, args: tuple[Tensor, ...], output: Tensor) -> None:
            self.norms[name] = (layer, args[0], output)

        return hook

    @torch.no_grad()
    def _run(self, ids: Tensor) -> dict[str, Tensor]:
        self._entered.clear()
        self.norms.clear()
        with contextlib.suppress(_Reached):
            self._model.loss(ids, ids.new_zeros(len(ids)))
        return dict(self._entered)

    def entering(self, layer: str, ids: Tensor) -> Tensor:
        """Inputs (R, L, n) of a layer for token ids (R, L)."""
        self._last = layer.__eq__
        return self._run(ids)[layer]

    def off(self, span: Span, ids: Tensor, *, blurred: bool = False) -> Tensor:
        """Distances (R, L) of the inputs of a row space's layers, relative to their norms.

        With `blurred`, the distances by which rounding of sent weights may move them.
        """
        size, off = max(1, TOKENS // ids.shape[1]), span.blurred if blurred else span.off
        parts = [off(self.entering(span.layers[0], some)) for some in torch.split(ids, size)]
        return torch.cat(parts)

    def errors(self, gradient: Mapping[str, Tensor], divisor: float) -> dict[str, Tensor]:
        """What rounding of sent weights left in the gradients of `queries` and `behind`.

        Args:
            gradient: Gradients by parameter name.
            divisor: As in `Observation.divisor`.

        Returns:
            Root mean square errors of the entries, by parameter name.
        """
        before = dict(self._model.module.named_parameters())
        names = {f"{name}.weight" for layers in (self.queries, *self.behind) for name in layers}
        errors = dict[str, Tensor]()
        for name in names:
            held, value = before[name].detach(), gradient[name]
            sent = held - (divisor * value).to(held.dtype)
            # Weights that a strategy made in float64 were rounded by the client as well.
            roundings = 1 if value.dtype == held.dtype else 2
            errors[name] = weight_rounding(sent, divisor) * roundings**0.5
        return errors

    @property
    def heads(self) -> int:
        """Number of attention heads; 0 if the model's configuration has none."""
        return int(getattr(self._config, "num_attention_heads", 0))

    @property
    def _config(self) -> Any:
        """The configuration of a Hugging Face model; None of another one."""
        return getattr(self._model.module, "config", None)

    @torch.no_grad()
    def projected(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Queries, keys and values (R, L, n) of the first block; None if they are not separable."""
        entered = self.entering(self.queries[0], ids)
        layers = [self._model.module.get_submodule(name) for name in self.queries]
        made = list[Tensor]()
        for name, layer in zip(self.queries, layers, strict=True):
            held = dict(layer.named_parameters())
            weight = held["weight"] if self.turned[name] else held["weight"].mT
            made.append(entered @ weight + held.get("bias", 0))
        if len(made) == 1 and made[0].shape[-1] == 3 * entered.shape[-1]:
            made = list(made[0].chunk(3, dim=-1))
        return (made[0], made[1], made[2]) if len(made) == 3 else None

    @cached_property
    def placed(self) -> bool:
        """Whether the input of the first block depends on a token's position.

        It does not if attention itself encodes positions, by rotation (Su et al., RoFormer, 2021)
        or by a bias (Press et al., ALiBi, 2022).
        """
        entered = self.entering(self.queries[0], self._twice)[0]
        return not _equal(entered[0], entered[1])

    @property
    def causal(self) -> bool:
        """Whether no token depends on later ones, as in decoders."""
        ids = torch.zeros(2, 4, dtype=torch.int64, device=self.device)
        ids[:, -1] = torch.tensor([1, 2], device=self.device)
        entered = self.entering(self.behind[-1][0], ids)
        return torch.equal(entered[0, :-1], entered[1, :-1])


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def _own(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _stop(_layer: nn.Module, _args: Any) -> None:
    raise _Reached
