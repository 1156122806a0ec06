"""Metrics of speech features: mean absolute error of frames.

Claims are matched one-to-one to originals so that the total error is least (Hungarian algorithm).
A claim is cut off, or padded with zeros, to the length of the original. An original without a
claim, and a claim with another number of features or with NaN or Inf, score as frames of zeros. If
there are more claims than originals, only the first ones count, so that many claims are no
advantage. Figure 7 of HFGM compares the error at the ends with that in the middle.
"""

import torch
from torch import Tensor

from fedsim.metric import Measure, Metric
from fedsim.metrics.assignment import assigned
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import SpeechSpec

HOPELESS = 1e12
"""Cap of the errors that are matched, because the solver takes no values near infinity."""


def _differences(claim: Tensor | None, original: Tensor) -> Tensor:
    """Absolute differences of a claim (T', F), cut or padded with zeros, from an original (T, F).

    A claim that is missing, has another number of features or is not finite counts as zeros.
    """
    ours = torch.zeros_like(original)
    if claim is not None and claim.shape[1:] == original.shape[1:] and claim.isfinite().all():
        ours[: len(claim)] = claim[: len(original)]
    return (ours - original).abs()


def _originals(truth: Truth) -> list[Tensor]:
    if not truth.inputs:
        raise ValueError("this task's truth has no inputs, so no metric of frames applies")
    return [one.detach().cpu().double() for one in truth.inputs]


def pair(claimed: Reconstruction, truth: Truth) -> tuple[list[int], float]:
    """Match claims to originals.

    Returns:
        For each original the index of its claim, and the mean absolute error. An index beyond the
        last claim means that there is none.

    Raises:
        ValueError: The truth has no inputs.
    """
    originals = _originals(truth)
    claims = [one.detach().cpu().double() for one in claimed.inputs or ()][: len(originals)]
    claims += [torch.zeros(0, *originals[0].shape[1:])] * (len(originals) - len(claims))
    errors = torch.tensor(
        [[float(_differences(claim, one).mean()) for claim in claims] for one in originals]
    )
    order = assigned(errors.clamp(max=HOPELESS).tolist())
    return order, float(errors[range(len(order)), order].mean())


def framed(claimed: Reconstruction, truth: Truth) -> list[Tensor | None]:
    """The claim matched to each original as the metric `mae` does, cut to its length.

    Returns:
        Frames (T', F) float64; None if there is no claim, or if it has another number of features,
        no frame, or NaN or Inf.
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
    """Mean absolute error of every frame of each original, matched as the metric `mae` does.

    Returns:
        Errors (T,) float64 of each original.

    Raises:
        ValueError: The truth has no inputs.
    """
    both = zip(framed(claimed, truth), _originals(truth), strict=True)
    return [_differences(*pair).flatten(start_dim=1).mean(dim=1) for pair in both]


class _FrameError(Metric):
    """A mean absolute error of frames, in the units of the features."""

    fields = ("inputs",)
    keywords = ("audio reconstruction", "frames", "features")

    def chance(self, truth: Truth, spec: Spec) -> float:
        """The error of frames of zeros."""
        return self.compute(Reconstruction(inputs=[]), truth, spec)

    def suits(self, spec: Spec) -> bool:
        """Tasks whose inputs are frames."""
        return isinstance(spec, SpeechSpec)


class MAE(_FrameError):
    """Distance between recovered and true examples; 0 is a copy."""

    name = "mae"
    shown = Measure(
        "Mean absolute error",
        phrase="mean absolute error {value} over {n} updates",
        lower=True,
        rank=160,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Mean absolute error of the frames, in the units of the features."""
        return pair(claimed, truth)[1]


class MAEEnds(_FrameError):
    """Mean absolute error of the first and the last quarter of the frames."""

    name = "mae_ends"
    shown = Measure(
        "Error at the ends",
        phrase="mean absolute error {value} at the ends over {n} updates",
        lower=True,
        detail=True,
        rank=170,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Mean over the first and the last quarter of the frames, at least one frame each."""
        quarters = [(one, max(1, len(one) // 4)) for one in by_frame(claimed, truth)]
        errors = [torch.cat([one[:some], one[-some:]]).mean() for one, some in quarters]
        return float(torch.stack(errors).mean())


class MAEMiddle(_FrameError):
    """Mean absolute error of the frames between the first and the last quarter."""

    name = "mae_middle"
    shown = Measure(
        "Error in the middle",
        phrase="mean absolute error {value} in the middle over {n} updates",
        lower=True,
        detail=True,
        rank=180,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Mean over the middle half of the frames, or over all of fewer than three frames."""
        quarters = [(one, max(1, len(one) // 4)) for one in by_frame(claimed, truth)]
        errors = [(one[some:-some] if len(one) > 2 else one).mean() for one, some in quarters]
        return float(torch.stack(errors).mean())
