"""Gradients: what an update says of them, how far two are apart, and how to match one.

head        the projection layer's gradient
distances   between gradients, of many dummy batches at a time
whitening   the distance in which small directions count like large ones
dummy       the gradients of many dummy batches in one pass
rank        how many singular values of a gradient exceed rounding or noise
factored    those of many dummy sequences, as sums of outer products
ghost       those of a transformer that is fed embeddings, in factors too
terms       what parameters of one shape add to a distance
texts       how far the gradients of dummy texts are from those observed
unrolled    what several local steps on dummy examples would have sent
problem     gradient matching as an objective
ctc         the loss of unaligned labels, differentiable twice
utterances  the head's gradient under that loss, of many guesses in one pass
sequences   the same for a decoded sequence, from context vectors and smooth labels
descent     optimizers of many independent problems at a time
matching    the one matching loop, for many victims and restarts at a time
"""

from fedsim.gradients.ctc import BLANK, ctc_loss, frames_needed
from fedsim.gradients.descent import LBFGS, Adam, Optimizer
from fedsim.gradients.distances import (
    Gradients,
    Outer,
    cosine_distance,
    l1_l2_distance,
    squared_distance,
)
from fedsim.gradients.dummy import DummyGradients
from fedsim.gradients.factored import Factored, FactoredGradients, Leading, leading
from fedsim.gradients.ghost import GhostGradients
from fedsim.gradients.head import HeadGradient, head_calls, head_gradient
from fedsim.gradients.matching import Checks, Match, Objective, Restarts, Rules, minimise
from fedsim.gradients.problem import DISTANCES, Comparison, Problem, in_groups
from fedsim.gradients.rank import (
    filled_sides,
    gap_ratios,
    noise_threshold,
    numerical_rank,
    rank_above,
    rank_of,
    rounding,
)
from fedsim.gradients.sequences import LabelBag, SequenceProblem, keep_labels
from fedsim.gradients.texts import TextDistance, TextMetric, nearest_tokens, norm_gap
from fedsim.gradients.unrolled import local_steps, unrolled_gradient
from fedsim.gradients.utterances import ctc_head_gradient, head_passes
from fedsim.gradients.whitening import WhitenedDistance
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
    "Match",
    "Objective",
    "Optimizer",
    "Outer",
    "Problem",
    "Restarts",
    "Rules",
    "SequenceProblem",
    "TextDistance",
    "TextMetric",
    "WhitenedDistance",
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
    "l1_l2_distance",
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
    "squared_distance",
    "to_gradient",
    "unrolled_gradient",
]
