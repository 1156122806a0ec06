"""Metrics of utterances as frames, matched to the originals.

Claims are matched one-to-one to originals so that the total error is least (Hungarian). A claim is
cut off, or filled up with zeros, to the length of the original. An original without a claim, and a
claim of other features or with NaN or Inf, count as answered with zeros. Of more claims than
originals only the first count, so that claiming much does not pay.
"""

import torch
from torch import Tensor

from fedsim.metrics.registry import Metric
from fedsim.records import Reconstruction, Spec, Truth

__all__ = ["FRAMES", "framed", "pair"]

HOPELESS = 1e12
"""Errors from which on all are alike to whoever matches; the solver takes none near infinity."""


def _error(claim: Tensor, original: Tensor) -> float:
    """Mean absolute error over the values of the original, (T, F) both."""
    if claim.shape[1:] != original.shape[1:] or not bool(torch.isfinite(claim).all()):
        return float(original.abs().mean())
    ours = torch.zeros_like(original)
    shared = claim[: len(original)]
    ours[: len(shared)] = shared
    return float((ours - original).abs().mean())


def _originals(truth: Truth) -> list[Tensor]:
    if not truth.inputs:
        raise ValueError("this task's truth has no inputs, so no metric of frames applies")
    return [one.detach().cpu().double() for one in truth.inputs]


def pair(claimed: Reconstruction, truth: Truth) -> tuple[list[int], float]:
    """For every original the number of the claim matched to it, and their mean absolute error.

    A number from the count of the claims on stands for no claim. Raises `ValueError` where the
    truth has no inputs.
    """
    from scipy.optimize import linear_sum_assignment

    originals = _originals(truth)
    claims = [one.detach().cpu().double() for one in claimed.inputs or ()][: len(originals)]
    claims += [torch.zeros(0, *originals[0].shape[1:])] * (len(originals) - len(claims))
    errors = torch.tensor([[_error(claim, one) for claim in claims] for one in originals])
    rows, columns = linear_sum_assignment(errors.clamp(max=HOPELESS).numpy())
    return columns.tolist(), float(errors[rows, columns].mean())


def framed(claimed: Reconstruction, truth: Truth) -> list[Tensor | None]:
    """What was matched to each original as `mae` matches: frames (T', F) float64.

    None where nothing was, and where the claim has other features, no frame, or NaN or Inf.
    """
    if not truth.inputs or not claimed.inputs:
        return [None] * len(truth.inputs or ())
    numbers, found = pair(claimed, truth)[0], list[Tensor | None]()
    for number, one in zip(numbers, truth.inputs, strict=True):
        claim = claimed.inputs[number].detach().cpu() if number < len(claimed.inputs) else None
        if claim is not None and not (
            claim.shape[1:] == one.shape[1:] and claim.numel() and claim.isfinite().all()
        ):
            claim = None
        found.append(None if claim is None else claim[: len(one)].double())
    return found


def _mae(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    return pair(claimed, truth)[1]


def _silence(truth: Truth, _: Spec) -> float:
    return _mae(Reconstruction(inputs=[]), truth, _)


def _has_frames(spec: Spec) -> bool:
    return spec.features is not None


FRAMES = (
    Metric(
        "mae",
        "mean absolute error of frames, in their units; the baseline is that of zeros",
        ("inputs",),
        False,
        _mae,
        chance=_silence,
        suits=_has_frames,
    ),
)
"""The metrics of utterances as frames."""
