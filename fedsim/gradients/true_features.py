"""The true features of a victim's examples, and candidates to tell them from, for metrics."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsim.gradients.head import head_calls
from fedsim.records import Batch, Candidates, Truth
from fedsim.victim import VictimModel

IGNORED = -100
"""Label of a token that is padding or not predicted."""


def true_features(model: VictimModel, truth: Truth) -> Tensor | None:
    """Compute the inputs of the head as the client's model had them in its first local step.

    Args:
        model: The model as the client received it.
        truth: Its examples, those of one step.

    Returns:
        Features (N, d), a row for each example, or for each label of examples with sequences of
        labels. None if inputs are not known, if the head takes no such rows (CTC has one for each
        frame), or if the model drops units at random.
    """
    if not truth.inputs:
        return None
    target = torch.zeros(len(truth.inputs), dtype=torch.int64)
    if truth.sequences is not None:
        target = pad_sequence(list(truth.sequences), batch_first=True, padding_value=IGNORED)
    return _features(model, truth.inputs, truth.lengths, target)


def candidates(model: VictimModel, truth: Truth, public: Batch | None) -> Candidates | None:
    """Compute the features of public examples and a victim's, as a server that has both can.

    A layer that normalises by its batch has the statistics of all of them, not of the victim's.

    Args:
        model: The model as the client received it.
        truth: Its examples, those of one step.
        public: Public examples, all of the victim's shape or with lengths.

    Returns:
        None without public examples, for examples with sequences of labels, and where
        `true_features` returns None.
    """
    if public is None or not truth.inputs or truth.sequences is not None:
        return None
    sizes = None if public.lengths is None else public.lengths.tolist()
    known = list(public.inputs)
    if sizes is not None:
        known = [row[:size] for row, size in zip(known, sizes, strict=True)]
    lengths = None if sizes is None or truth.lengths is None else [*sizes, *truth.lengths]
    inputs = [*known, *truth.inputs]
    found = _features(model, inputs, lengths, torch.zeros(len(inputs), dtype=torch.int64))
    return None if found is None else Candidates(known, found)


def _features(
    model: VictimModel, inputs: Sequence[Tensor], lengths: Sequence[int] | None, target: Tensor
) -> Tensor | None:
    """The rows that reach the head in one batch, those of ignored labels left out."""
    if model.drops or hasattr(model.module, "blank"):
        return None
    if lengths is None and len({one.shape for one in inputs}) > 1:
        return None
    batch = pad_sequence(list(inputs), batch_first=True)
    ends = None if lengths is None else torch.tensor(lengths)
    with torch.no_grad(), head_calls(model) as calls:
        if ends is None and target.dim() == 1:
            model.module(batch)
        else:
            model.loss(batch, target, lengths=ends)
    if len(calls) != 1 or calls[0][0].shape[:-1] != target.shape:
        return None
    found: Tensor = calls[0][0][target != IGNORED]
    return found
