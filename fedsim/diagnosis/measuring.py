"""Measurements of an interception: what decides whether an attack can find something in it.

Everything is measured from what the server sees: the update, the model that it started from and
its own copy of the network. Only what `Quantity.truth` marks needs the true examples.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedsim.diagnosis.counting import counted, in_dtype_of
from fedsim.diagnosis.first_layer import first_layer_values
from fedsim.diagnosis.head import Layer, head_values, norm
from fedsim.gradients import (
    filled_sides,
    head_calls,
    layer_calls,
    numerical_rank,
    rounding,
    weight_rounding,
    with_two_rows,
)
from fedsim.quantity import QUANTITIES, Value
from fedsim.records import Interception, Truth, Update
from fedsim.seeds import torch_generator
from fedsim.spec import ImageSpec, Spec, TabularSpec, TextSpec
from fedsim.threat import to_gradient
from fedsim.victim import VictimModel

RANDOM = 16
"""Number of random inputs with which the signs of a model's features are seen."""

NOISY = 0.1
"""Imbalance of the head from which on signs in its gradient are those of noise."""

MIXED = 0.1
"""Share of random inputs with a feature sum of the other sign from which on row sums show nothing,
such as after layer normalisation, where the sums are zero."""

ONE_SIGN = 0.2
"""Largest share of features of the other sign with which they count as of one sign."""

WIDEST = 4096
"""Largest smaller side of a layer whose rank is computed: singular values cost its cube."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of an interception.

    Attributes:
        values: Values of `QUANTITIES` by name; None where one does not apply or is not known.
        layers: What each linear layer shows, by name, in the model's order.
    """

    values: Mapping[str, Value]
    layers: Mapping[str, Layer] = field(default_factory=dict)


def measure(
    interception: Interception, model: VictimModel, *, truth: Truth | None = None
) -> Measured:
    """Measure an interception.

    Args:
        interception: The update as the server received it.
        model: The network with the weights before the round, in the mode of the training. Its
            buffers change.
        truth: The true examples, if they are known; only measurements so marked use them.

    Returns:
        The measurements.
    """
    update, before = interception.update, interception.before
    gradient: Mapping[str, Tensor]
    gradient, _ = to_gradient(update, before, lr=update.lr, steps=update.steps)
    if model.spec is not None and model.spec.classes == 2:
        gradient = with_two_rows(gradient, model.head)
    head = gradient.get(f"{model.head}.weight")
    layers = {
        name: _layer(
            gradient[f"{name}.weight"],
            is_head=name == model.head,
            error=0.0 if model.words is None else _sent_error(update, f"{name}.weight"),
        )
        for name in linear_layers(model)
        if f"{name}.weight" in gradient
    }
    first_name = next((name for name in layers if name != model.head), None)
    first = layers[first_name] if first_name else None
    values: dict[str, Value] = {
        "examples": update.num_examples,
        "clients": len(interception.clients),
        "steps": update.steps,
        "optimizer": None if update.optimizer == "unknown" else update.optimizer,
        "movement": _movement(update, before),
        "missing_rank": _missing_rank(model, gradient, first.rank) if first else None,
        "word_noise": _word_noise(model, gradient),
        "dead": _dead(model, gradient),
        "kinked_values": kinked_values(model, update.num_examples),
        **counted(model, update.num_examples, gradient),
        **_in_mode(model, update.steps * len(interception.clients)),
    }
    if first_name and first:
        values |= first_layer_values(gradient, first_name, first, update.num_examples, model.spec)
    if head is not None and head.ndim == 2:
        signs = _feature_signs(model)
        values |= head_values(gradient, model.head, update, layers.get(model.head), signs.usual)
        imbalance = values["imbalance"]
        noisy = isinstance(imbalance, float) and imbalance > NOISY
        if noisy or f"{model.head}.bias" not in gradient:
            values["opposite_signs"] = signs.negative_sums
        values["signs_without_bias"] = values["opposite_signs"] if values["missing_bias"] else 0.0
        if signs.negative_sums is not None and MIXED < signs.negative_sums < 1 - MIXED:
            values["row_noise"] = None
        if signs.negative is not None:
            signed = ONE_SIGN < signs.negative < 1 - ONE_SIGN
            values["signed_labels"] = values["label_share"] if signed else 0.0
    if truth is not None:
        values |= _with_truth(model, truth)
    return Measured({name: values.get(name) for name in QUANTITIES}, layers)


def seen_in_model(model: VictimModel, batches: int = 1) -> dict[str, Value]:
    """Measure what a model alone shows: signs of feature sums, batch statistics and dropout.

    Args:
        model: The model in the mode of the training. Its buffers change.
        batches: Number of batches behind an update.
    """
    found, signs = _in_mode(model, batches), _feature_signs(model).negative_sums
    alone = signs if found["missing_bias"] else 0.0
    return {**found, "opposite_signs": signs, "signs_without_bias": alone}


def kinked_values(model: VictimModel, examples: int) -> int | None:
    """Input values of so many examples, if the model has activations such as ReLU; else 0."""
    if not model.kinks:
        return 0
    shape = model.spec.input_shape if model.spec else None
    return None if shape is None else examples * math.prod(shape)


def _in_mode(model: VictimModel, batches: int) -> dict[str, Value]:
    """Layers that behave differently in training, and the head's bias."""
    parts = list(model.module.modules())
    norms = [p for p in parts if isinstance(p, nn.modules.batchnorm._BatchNorm) and p.training]
    return {
        "batch_norm": len(norms),
        "normalised_batches": batches if norms else 0,
        "max_pooling": sum(isinstance(p, nn.modules.pooling._MaxPoolNd) for p in parts),
        "dropout": float(model.drops),
        "missing_bias": float(f"{model.head}.bias" not in model.trained),
    }


def linear_layers(model: VictimModel) -> list[str]:
    """Return the names of layers that multiply by a trained matrix, in the model's order."""
    return [
        name
        for name, part in model.module.named_modules()
        if not isinstance(part, nn.Embedding)
        and isinstance(weight := getattr(part, "weight", None), Tensor)
        and weight.ndim == 2
        and f"{name}.weight" in model.trained
    ]


def _sent_error(update: Update, name: str) -> float:
    """Bound on the singular values that rounding of sent weights adds to a gradient; else 0.

    Both the weights before and those after training are rounded.
    """
    if update.kind != "weights" or not update.lr:
        return 0.0
    errors = weight_rounding(update.tensors[name], update.lr * update.steps) * math.sqrt(2)
    return float(errors.norm(dim=1).max() + errors.norm(dim=0).max())


def _layer(matrix: Tensor, *, is_head: bool, error: float = 0.0) -> Layer:
    """The rank of a layer's gradient, and what is left over of it.

    Args:
        matrix: The gradient of its weight.
        is_head: Whether it is the head.
        error: Singular values that are known to be rounding, beside that of the gradient itself.
    """
    exact = matrix.double()
    most = min(matrix.shape)
    if is_head and matrix.shape[0] == most:
        most -= 1  # with cross-entropy the rows of the classes sum to zero
    if not bool(torch.isfinite(exact).all()) or min(matrix.shape) > WIDEST:
        return Layer(0, 0, None)
    values = torch.linalg.svdvals(exact)
    sides = filled_sides(matrix)
    rank = numerical_rank(values, sides, rounding(matrix) + error)
    signal, rest = (float(part.square().sum()) for part in (values[:rank], values[rank:]))
    left = (sides[0] - rank) * (sides[1] - rank)
    snr = None
    if rank and left > 0:
        # The rest is noise in the dimensions without signal; all dimensions have as much.
        noise = rest * sides[0] * sides[1] / left
        snr = max(0.0, signal / noise - 1) if noise else math.inf
    return Layer(rank, most, snr, values)


def _movement(update: Update, before: Mapping[str, Tensor]) -> float | None:
    """Norm of the weights' change over that of the weights; of a gradient, that of one step."""
    if update.kind == "gradient":
        if update.lr is None:
            return None
        change = {name: value * update.lr for name, value in update.tensors.items()}
    elif update.kind == "weights":
        change = {name: value - before[name] for name, value in update.tensors.items()}
    else:
        change = dict(update.tensors)
    weights = norm({name: before[name] for name in update.tensors})
    return norm(change) / weights if weights else None


def _missing_rank(model: VictimModel, gradient: Mapping[str, Tensor], rank: int) -> float | None:
    """Share of the tokens that the rank of the first layer does not show."""
    if model.words is None or model.words not in gradient:
        return None
    tokens = int(gradient[model.words].any(dim=1).sum())
    return max(0.0, 1 - rank / tokens) if tokens else None


def _word_noise(model: VictimModel, gradient: Mapping[str, Tensor]) -> float | None:
    """Median norm of the rows of the word embeddings' gradient over the largest."""
    if model.words is None or model.words not in gradient:
        return None
    norms = gradient[model.words].double().norm(dim=1)
    largest = float(norms.max())
    return float(norms.median()) / largest if largest else None


def _dead(model: VictimModel, gradient: Mapping[str, Tensor]) -> float | None:
    """Share of the outputs of layers before the head whose weights have no gradient."""
    dead = units = 0
    for name, part in model.module.named_modules():
        weight = gradient.get(f"{name}.weight")
        if weight is None or weight.ndim < 2 or name == model.head:
            continue
        if isinstance(part, nn.Linear | nn.modules.conv._ConvNd):
            rows = weight.flatten(1).any(dim=1)
            dead, units = dead + int((~rows).sum()), units + len(rows)
    return dead / units if units else None


def _random_inputs(spec: Spec | None) -> Tensor | None:
    """Random inputs (`RANDOM`, ...) of a modality; None of one whose inputs have no fixed form."""
    rng = torch_generator(0, "diagnosis")
    if isinstance(spec, ImageSpec):
        low, high = spec.input_range or (0.0, 1.0)
        return low + (high - low) * torch.rand(RANDOM, *spec.input_shape, generator=rng)
    if isinstance(spec, TabularSpec):
        return torch.randn(RANDOM, *spec.input_shape, generator=rng)
    if isinstance(spec, TextSpec):
        length = min(RANDOM, spec.tokens.longest)
        return torch.randint(spec.vocabulary, (RANDOM, length), generator=rng)
    return None


class Signs(NamedTuple):
    """Signs of the head's inputs, for random inputs of the model; None where it takes no such ones.

    Attributes:
        negative_sums: Share of the inputs whose features have a negative sum.
        negative: Share of the features that are negative.
        usual: Mean probability of each class (classes,).
    """

    negative_sums: float | None = None
    negative: float | None = None
    usual: Tensor | None = None


def _feature_signs(model: VictimModel) -> Signs:
    """Pass random inputs through the model, and look at the signs of what reaches the head."""
    inputs = _random_inputs(model.spec)
    if inputs is None or model.spec is None:
        return Signs()
    target = inputs if model.spec.labels_are_tokens else torch.zeros(RANDOM, dtype=torch.int64)
    lengths = torch.full((RANDOM,), inputs.shape[1]) if inputs.dtype == torch.int64 else None
    with torch.no_grad(), head_calls(model) as calls:
        model.loss(in_dtype_of(model, inputs), target, lengths=lengths)
    if not calls:
        return Signs()
    rows = torch.cat([one.double().flatten(0, -2) for one, _ in calls])
    logits = torch.cat([one.double().flatten(0, -2) for _, one in calls])
    if logits.shape[1] == 1:  # of two classes, the first of which has the logit 0
        logits = nn.functional.pad(logits, (1, 0))
    return Signs(
        negative_sums=float(rows.sum(dim=1).lt(0).double().mean()),
        negative=float(rows.lt(0).double().mean()),
        usual=logits.softmax(dim=1).mean(dim=0),
    )


def _relus(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, part in module.named_modules():
        if isinstance(part, nn.ReLU | nn.ReLU6):
            yield name, part


def _with_truth(model: VictimModel, truth: Truth) -> dict[str, Value]:
    """Measure what only the true examples show."""
    found: dict[str, Value] = {}
    if truth.labels is not None and truth.labels.ndim == 1 and len(truth.labels):
        # Labels of someone's own loss may be negative or very large.
        counts = torch.unique(truth.labels, return_counts=True)[1]
        found["repetition"] = float(counts[counts > 1].sum()) / len(truth.labels)
    relus = dict(_relus(model.module))
    if relus and truth.inputs is not None and isinstance(model.spec, ImageSpec | TabularSpec):
        inputs = torch.stack(list(truth.inputs))
        with torch.no_grad(), layer_calls(relus) as calls:
            model.module(inputs)
        dead = [output.flatten(1).le(0).all(dim=0) for uses in calls.values() for _, output in uses]
        found["dead_relu"] = float(torch.cat(dead).double().mean()) if dead else None
    return found
