"""Tools for attacks on gradients: the head's gradient, rank, distances and gradient matching.

head            gradient of the projection layer, and calls of a model's layers
rank            numerical rank: the singular values above rounding and noise
distances       distances of the gradients of many dummy batches from observed ones
dummy           gradients of many dummy batches in one pass
chain           the same for chains of layers, differentiated by hand
chain_steps     the part of each kind of layer in it
factored        gradients of many dummy sequences, as sums of outer products
ghost           gradients of transformers that are fed embeddings, as sums of outer products
terms           the part of a distance that parameters of one shape contribute
statistics      batch statistics of BatchNorm layers, from running statistics
scale           the scale of inputs, where their gradient is the same at every scale
true_features   the true features of examples, and candidates, for metrics
unrolled        the average gradient of several simulated local steps
problem         gradient matching of inputs and labels as an objective
texts           gradient matching of token embeddings as an objective
sequences       gradient matching of a decoded sequence as an objective
ctc             CTC loss that can be differentiated twice
descent         optimizers for many independent problems at a time
compiling       an objective with its gradient as a compiled graph
memory          what a pass keeps for its derivatives
matching        the matching loop, for many victims and restarts at a time
"""

from fedsim.gradients.compiling import Objective, compiled
from fedsim.gradients.ctc import BLANK, ctc_loss, frames_needed
from fedsim.gradients.descent import LBFGS, Adam, Optimizer
from fedsim.gradients.distances import (
    Gradients,
    Outer,
    WhitenedDistance,
    cosine_distance,
    l1_l2_distance,
    squared_distance,
)
from fedsim.gradients.dummy import DummyGradients
from fedsim.gradients.factored import Factored, FactoredGradients, Leading, leading
from fedsim.gradients.ghost import GhostGradients
from fedsim.gradients.head import (
    HeadGradient,
    ctc_head_gradient,
    head_calls,
    head_gradient,
    head_passes,
    layer_calls,
    layer_rows,
    tied,
    two_logits,
    with_two_rows,
)
from fedsim.gradients.matching import Checks, Match, Restarts, Rules, minimise
from fedsim.gradients.memory import kept_values
from fedsim.gradients.problem import DISTANCES, Comparison, Problem, claim_labels, in_groups
from fedsim.gradients.rank import (
    filled_sides,
    gap_ratios,
    noise_threshold,
    numerical_rank,
    rank_above,
    rank_of,
    rounding,
    weight_rounding,
)
from fedsim.gradients.scale import settle_scale
from fedsim.gradients.sequences import LabelBag, SequenceProblem, keep_labels
from fedsim.gradients.statistics import StatisticsDistance, batch_statistics
from fedsim.gradients.texts import TextDistance, TextMetric, nearest_tokens, norm_gap
from fedsim.gradients.unrolled import LossModule, local_steps, unrolled_gradient
from fedsim.threat import to_gradient

__all__ = [
    "BLANK",
    "DISTANCES",
    "LBFGS",
    "Adam",
    "Checks",
    "Comparison",
    "DummyGradients",
    "Factored",
    "FactoredGradients",
    "GhostGradients",
    "Gradients",
    "HeadGradient",
    "LabelBag",
    "Leading",
    "LossModule",
    "Match",
    "Objective",
    "Optimizer",
    "Outer",
    "Problem",
    "Restarts",
    "Rules",
    "SequenceProblem",
    "StatisticsDistance",
    "TextDistance",
    "TextMetric",
    "WhitenedDistance",
    "batch_statistics",
    "claim_labels",
    "compiled",
    "cosine_distance",
    "ctc_head_gradient",
    "ctc_loss",
    "filled_sides",
    "frames_needed",
    "gap_ratios",
    "head_calls",
    "head_gradient",
    "head_passes",
    "in_groups",
    "keep_labels",
    "kept_values",
    "l1_l2_distance",
    "layer_calls",
    "layer_rows",
    "leading",
    "local_steps",
    "minimise",
    "nearest_tokens",
    "noise_threshold",
    "norm_gap",
    "numerical_rank",
    "rank_above",
    "rank_of",
    "rounding",
    "settle_scale",
    "squared_distance",
    "tied",
    "to_gradient",
    "two_logits",
    "unrolled_gradient",
    "weight_rounding",
    "with_two_rows",
]
