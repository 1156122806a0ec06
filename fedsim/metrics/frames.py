"""Metrics of utterances as frames, matched to the originals.

Claims are matched one-to-one to originals so that the total error is least (Hungarian). A claim is
cut off, or filled up with zeros, to the length of the original. An original without a claim, and a
claim of other features or with NaN or Inf, count as answered with zeros. Of more claims than
originals only the first count, so that claiming much does not pay.
"""

import torch
from torch import Tensor

from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import SpeechSpec

__all__ = ["FRAMES", "by_frame", "framed", "pair"]

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


def by_frame(claimed: Reconstruction, truth: Truth) -> list[Tensor]:
    """Mean absolute error of every frame of each original, (T,) float64, matched as `mae` matches.

    Raises `ValueError` where the truth has no inputs.
    """
    found = []
    for original, claim in zip(_originals(truth), framed(claimed, truth), strict=True):
        ours = torch.zeros_like(original)
        if claim is not None:
            ours[: len(claim)] = claim
        found.append((ours - original).abs().flatten(start_dim=1).mean(dim=1))
    return found


class _FrameError(Metric):
    """Mean absolute error of frames, in their units; chance is the error of zeros."""

    fields = ("inputs",)

    def chance(self, truth: Truth, spec: Spec) -> float:
        """The error of zeros."""
        return self.compute(Reconstruction(inputs=[]), truth, spec)

    def suits(self, spec: Spec) -> bool:
        """Inputs that are frames."""
        return isinstance(spec, SpeechSpec)


class MAE(_FrameError):
    """Mean absolute error of frames, in their units; chance is the error of zeros."""

    name = "mae"
    keywords = ("audio reconstruction", "frames", "features")
    shown = Measure(
        "Mean absolute error",
        "Distance between recovered and true examples; 0 is a copy.",
        "mean absolute error {value} over {n} updates",
        lower=True,
        rank=160,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        return pair(claimed, truth)[1]


class MAEEnds(_FrameError):
    """Mean absolute error of the first and the last quarter of the frames."""

    name = "mae_ends"
    keywords = ("audio reconstruction", "frames", "features")
    shown = Measure(
        "Error at the ends",
        "Mean absolute error of the first and the last quarter of the frames.",
        "mean absolute error {value} at the ends over {n} updates",
        lower=True,
        detail=True,
        rank=170,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Of the first and the last quarter of the frames, one each at least."""
        quarters = [(one, max(1, len(one) // 4)) for one in by_frame(claimed, truth)]
        errors = [torch.cat([one[:some], one[-some:]]).mean() for one, some in quarters]
        return float(torch.stack(errors).mean())


class MAEMiddle(_FrameError):
    """Mean absolute error of the frames between the first and the last quarter."""

    name = "mae_middle"
    keywords = ("audio reconstruction", "frames", "features")
    shown = Measure(
        "Error in the middle",
        "Mean absolute error of the frames between those quarters.",
        "mean absolute error {value} in the middle over {n} updates",
        lower=True,
        detail=True,
        rank=180,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Of the frames between those quarters; of utterances of one or two frames, of all."""
        quarters = [(one, max(1, len(one) // 4)) for one in by_frame(claimed, truth)]
        errors = [(one[some:-some] if len(one) > 2 else one).mean() for one, some in quarters]
        return float(torch.stack(errors).mean())


FRAMES = (MAE, MAEEnds, MAEMiddle)
"""The metrics of utterances as frames; HFGM's figure 7 compares the ends with the middle."""
