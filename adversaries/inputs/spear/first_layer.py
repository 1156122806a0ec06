"""The first layer of a model, and its gradient."""

from collections.abc import Mapping

from torch import Tensor, nn

from adversaries.inputs.layer_chain import ACTIVATIONS, VALLEYS, LayerChain
from adversaries.inputs.self_check import in_float64
from adversaries.inputs.spear.low_rank import LowRank
from fedsim import Knowledge, Observation, VictimModel
from fedsim.gradients import layer_rows, rank_of


def first_layer(model: VictimModel, shape: tuple[int, ...]) -> LayerChain:
    """The model in float64 as a chain of fully connected layers, the first of which is attacked.

    Raises:
        ValueError: It cannot; the message says why.
    """
    if model.drops:
        raise ValueError("the model drops units at random, and which ones is not known")
    double = in_float64(model).to("cpu")  # a GPU gains nothing with matrices this small
    chain = LayerChain.of(double, shape, (nn.Linear, nn.LayerNorm), (*ACTIVATIONS, *VALLEYS))
    if not chain.links:
        raise ValueError(
            f"'{model.head}' is the only layer, and no ReLU makes zeros. exact-batch attacks such "
            "models, if there are fewer examples than classes"
        )
    first = chain.links[0]
    if first.behind.name != "relu" or first.norm_first:
        between = "layer normalisation" if first.norm_first else first.behind.name
        raise ValueError(
            f"behind '{first.name}' stands {between}: only ReLU makes the zeros that tell examples "
            "apart. exact-batch attacks other activations, if there are fewer examples than classes"
        )
    if first.layer.bias is None:
        raise ValueError(
            f"'{first.name}' has no bias, whose gradient is needed for the scale of each input: "
            "without it, inputs are known up to a factor alone. exact-batch needs no bias"
        )
    return chain


def decomposed(
    seen: Observation, model: VictimModel, chain: LayerChain, gradient: Mapping[str, Tensor]
) -> LowRank:
    """The gradient of the first layer, of as many examples as its rank.

    Raises:
        ValueError: It was not sent, holds NaN or Inf, or has another rank.
    """
    first = chain.links[0]
    for part in ("weight", "bias"):
        if f"{first.name}.{part}" not in gradient:
            raise ValueError(
                f"no gradient of '{first.name}.{part}' was sent, by which the inputs are found"
            )
    rows = layer_rows(gradient, first.name)  # which refuses NaN and Inf
    units, width = len(rows), rows.shape[1] - 1
    sent = seen.know(Knowledge.GRADIENT)[f"{first.name}.weight"].cpu()
    rank = rank_of(sent.T if width > units else sent)  # which is faster
    size = seen.num_examples or rank
    if not rank:
        raise ValueError(
            f"the gradient of '{first.name}' shows no example: it is zero, or noise hides them"
        )
    if size > min(units, width) - 1:
        raise ValueError(
            f"{size} examples, and '{first.name}' has {units} units and {width} inputs: its "
            "gradient tells apart fewer examples than either. inverting-gradients guesses the rest"
        )
    if rank < size:
        raise ValueError(
            f"the gradient of '{first.name}' has rank {rank}, and the update holds {size} "
            "examples: inputs are repeated or combinations of each other, are predicted so surely "
            "that they leave no trace, or noise hides them. first-linear claims single inputs"
        )
    own = model.parameters()
    weight, bias = own[f"{first.name}.weight"].detach(), own[f"{first.name}.bias"].detach()
    return LowRank.of(rows, weight, bias, size)
