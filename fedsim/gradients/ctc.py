"""Connectionist temporal classification (CTC) that can be differentiated twice.

Gradient matching needs a second derivative, and `torch.nn.functional.ctc_loss` has none. The
forward algorithm (Graves et al., ICML 2006, section 4.1) is therefore written in log space with
differentiable operations, one step a frame for all utterances and states at once.
"""

import operator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.errors import DataError

BLANK = 0
"""CTC's blank label: it stands for no output, and separates two equal labels in a row."""

NO_REDUCTION = 0
"""torch's number for `reduction="none"`."""

IMPOSSIBLE = -1e30
"""Log-probability of an impossible state; finite, because at minus infinity the gradient is NaN."""


def frames_needed(labels: Tensor) -> int:
    """Return the smallest number of frames to which CTC can align a label sequence.

    Each label takes one frame, and two equal labels in a row need a blank between them.

    Args:
        labels: Labels (L,) int64.
    """
    return _frames_needed(labels.tolist())


def _frames_needed(labels: list[int]) -> int:
    return len(labels) + list(map(operator.eq, labels[1:], labels)).count(True)


def ctc_loss(logits: Tensor, target: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Compute the CTC loss, -log p(target | frames), of each utterance, twice differentiable.

    The loss sums over all alignments and is not divided by the number of labels. If no graph of
    the gradient is needed, torch's own CTC computes it, because it is faster.

    Args:
        logits: Scores of the labels in every frame, (B, T, C); label 0 is the blank.
        target: Labels (B, L) int64 from 1, padded with negative values.
        lengths: Number of frames of each utterance, (B,) int64; None if all have T. Logits beyond
            it are ignored.

    Returns:
        Losses (B,) in nats.

    Raises:
        DataError: A target has no label, a label that is the blank or not a class, or needs more
            frames than there are, so that its loss would be infinite.
    """
    counts = [logits.shape[1]] * len(logits) if lengths is None else lengths.tolist()
    sizes = _sizes(target, counts, logits.shape[2])
    if lengths is not None:
        lengths = lengths.to(logits.device)
    losses: Tensor = _CTC.apply(logits, target, lengths, counts, sizes)  # type: ignore[no-untyped-call]
    return losses


class _CTC(torch.autograd.Function):
    """torch's CTC, replaced by the differentiable one if its gradient is differentiated again."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        lengths: Tensor | None,
        counts: list[int],
        sizes: list[int],
    ) -> Tensor:
        ctx.save_for_backward(logits, target, lengths)
        ctx.counts, ctx.sizes = counts, sizes
        return _given(logits, target, counts, sizes)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, lengths = ctx.saved_tensors
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            at = logits if again else logits.detach().requires_grad_()
            if again:
                losses = _written_out(at, target, lengths)
            else:
                losses = _given(at, target, ctx.counts, ctx.sizes)
            (gradient,) = torch.autograd.grad(losses, at, slopes, create_graph=again)
        return gradient, None, None, None, None


def _given(logits: Tensor, target: Tensor, counts: list[int], sizes: list[int]) -> Tensor:
    device = logits.device
    if device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        # On a GPU torch's backward pass of CTC sums in a random order.
        logits, target = logits.cpu(), target.cpu()
    scores = logits.log_softmax(dim=2).transpose(0, 1)
    # Lengths are lists, because torch would read tensors back from a GPU.
    losses = torch.ctc_loss(scores, target.clamp(min=BLANK), counts, sizes, BLANK, NO_REDUCTION)
    return losses.to(device)


def _written_out(logits: Tensor, target: Tensor, lengths: Tensor | None) -> Tensor:
    """Run the forward algorithm on the states blank, label, blank, label, ..., blank."""
    states = target.new_full((len(target), 2 * target.shape[1] + 1), BLANK)
    states[:, 1::2] = target.clamp(min=BLANK)
    # A label may follow the one before it without a blank, unless the two are equal.
    jumps = torch.zeros_like(states, dtype=torch.bool)
    jumps[:, 2:] = (states[:, 2:] != BLANK) & (states[:, 2:] != states[:, :-2])
    scores = logits.log_softmax(dim=2)
    emitted = scores.gather(2, states[:, None].expand(-1, scores.shape[1], -1)).unbind(1)

    begin = torch.arange(states.shape[1], device=states.device) < 2
    forward = emitted[0].masked_fill(~begin, IMPOSSIBLE)
    for t, now in enumerate(emitted[1:], 1):
        before = functional.pad(forward, (2, 0), value=IMPOSSIBLE)
        jumped = before[:, :-2].masked_fill(~jumps, IMPOSSIBLE)
        stepped = torch.stack([forward, before[:, 1:-1], jumped]).logsumexp(dim=0) + now
        # Where all three predecessors are impossible, gradients would add up and overflow.
        stepped = stepped.masked_fill(stepped < IMPOSSIBLE / 2, IMPOSSIBLE)
        if lengths is not None:
            stepped = torch.where((t < lengths)[:, None], stepped, forward)
        forward = stepped
    last = 2 * (target >= 0).sum(dim=1)
    return -forward.gather(1, torch.stack([last - 1, last], dim=1)).logsumexp(dim=1)


def _sizes(target: Tensor, lengths: list[int], classes: int) -> list[int]:
    """Return the number of labels in each row of a target; raise if CTC cannot align them."""
    found = []
    for index, (row, frames) in enumerate(zip(target.tolist(), lengths, strict=True)):
        labels = [label for label in row if label >= 0]
        if not labels:
            raise DataError(f"utterance {index} of the batch has no label; CTC needs one at least")
        if min(labels) == BLANK or max(labels) >= classes:
            raise DataError(
                f"utterance {index} of the batch has labels from {min(labels)} to "
                f"{max(labels)}; expected 1 to {classes - 1}, for {BLANK} is the blank"
            )
        if (needed := _frames_needed(labels)) > frames:
            raise DataError(
                f"utterance {index} of the batch has {frames} frames, and its {len(labels)} labels "
                f"take {needed} (one each, and one between two that are equal): its CTC loss is "
                "infinite. Use a smaller task.features.stride, or leave it out by task.longest"
            )
        found.append(len(labels))
    return found
