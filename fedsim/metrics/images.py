"""Metrics of images, matched to the originals.

Images are scored in units of their range, so that pixels lie in [0, 1]. Claimed pixels are clipped
to the range first (every adversary knows it). Claims are matched one-to-one to originals so that
the total MSE is least (Hungarian); an original without a claim, and a claim that holds NaN or Inf,
count as the image farthest from the original. Of more claims than originals only the first count,
so that claiming much does not pay.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import TabularSpec

__all__ = ["IMAGES", "PSNR_CAP", "RECOVERED", "SSIM_SIDE", "is_image", "match", "pairs"]

RECOVERED = 1e-3
"""An image whose MSE is below this looks like the original to a reader."""

PSNR_CAP = 100.0
"""Decibels of an exact match, whose MSE of 0 would give infinity."""

SSIM_SIDE = 5
"""Images with a shorter side leave no room for SSIM's window."""


def match(claimed: Sequence[Tensor], originals: Tensor) -> list[int]:
    """For every original the index of the claim matched to it, or -1 where none is left.

    originals: (N, ...). Claims beyond the first N, of another shape, or with NaN or Inf match none.
    """
    from scipy.optimize import linear_sum_assignment

    usable = [
        index
        for index, claim in enumerate(claimed[: len(originals)])
        if claim.shape == originals.shape[1:] and bool(torch.isfinite(claim).all())
    ]
    matched = [-1] * len(originals)
    if usable:
        candidates = torch.stack([claimed[index] for index in usable])
        cost = [(candidates - one).square().flatten(1).mean(dim=1).tolist() for one in originals]
        for row, column in zip(*linear_sum_assignment(cost), strict=True):
            matched[int(row)] = usable[int(column)]
    return matched


def pairs(claimed: Reconstruction, truth: Truth, spec: Spec) -> tuple[Tensor, Tensor]:
    """Claims lined up with the originals, both (N, ...) float64 on the CPU, pixels in [0, 1]."""
    if not truth.inputs:
        raise ValueError("this task's truth has no inputs, so no image metric applies")
    originals = torch.stack([image.detach().cpu().double() for image in truth.inputs])
    low, high = spec.input_range or (float(originals.min()), float(originals.max()))
    span = (high - low) or 1.0
    originals = (originals - low) / span
    # Infinities survive the clipping, so that they are not taken for extreme but honest pixels.
    claims = [(claim.detach().cpu().double() - low) / span for claim in claimed.inputs or ()]
    claims = [torch.where(claim.isinf(), claim, claim.clamp(0, 1)) for claim in claims]
    farthest = (originals < 0.5).double()
    ours = [
        claims[index] if index >= 0 else farthest[row]
        for row, index in enumerate(match(claims, originals))
    ]
    return torch.stack(ours), originals


def _errors(claimed: Reconstruction, truth: Truth, spec: Spec) -> Tensor:
    """MSE of each original's match, (N,)."""
    ours, originals = pairs(claimed, truth, spec)
    return (ours - originals).square().flatten(1).mean(dim=1)


def is_image(spec: Spec) -> bool:
    """Whether inputs are (channels, height, width), with room for SSIM's window."""
    shape = spec.input_shape
    return shape is not None and len(shape) == 3 and min(shape[1:]) >= SSIM_SIDE


class _OfInputs(Metric):
    """A metric of inputs of one shape, rows of tables apart."""

    fields = ("inputs",)

    def suits(self, spec: Spec) -> bool:
        """Inputs of one shape, which are no rows of a table."""
        return spec.input_shape is not None and not isinstance(spec, TabularSpec)


class MSE(_OfInputs):
    """Mean squared error, pixels in [0, 1]."""

    name = "mse"
    keywords = ("image reconstruction", "pixel error")
    shown = Measure(
        "Mean squared error",
        "Squared distance between recovered and true examples; 0 is a copy.",
        "mean squared error {value} over {n} updates",
        lower=True,
        rank=150,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        return float(_errors(claimed, truth, spec).mean())


class PSNR(_OfInputs):
    """Peak signal-to-noise ratio in dB, 100 for an exact match."""

    name = "psnr"
    keywords = ("image reconstruction", "image quality", "decibel")
    shown = Measure(
        "PSNR",
        "Peak signal-to-noise ratio of the recovered images; above 30 dB they look alike.",
        "peak signal-to-noise ratio {value} over {n} updates",
        unit=" dB",
        rank=190,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        floor = 10 ** (-PSNR_CAP / 10)
        return float((-10 * _errors(claimed, truth, spec).clamp(min=floor).log10()).mean())


class SSIM(_OfInputs):
    """Structural similarity, 1 for an exact match."""

    name = "ssim"
    keywords = ("image reconstruction", "image quality", "perceptual")
    shown = Measure(
        "SSIM",
        "Structural similarity of recovered and true images; 1 is a copy.",
        "structural similarity {value} over {n} updates",
        rank=200,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        from torchmetrics.functional.image import structural_similarity_index_measure

        ours, originals = pairs(claimed, truth, spec)
        # The standard window (sigma 1.5) covers 11 pixels; smaller images get one of 5.
        sigma = 1.5 if min(originals.shape[-2:]) >= 11 else 0.5
        value = structural_similarity_index_measure(ours, originals, sigma=sigma, data_range=1.0)
        return float(value)  # type: ignore[arg-type]

    def suits(self, spec: Spec) -> bool:
        """Images."""
        return is_image(spec)


class Recovered(_OfInputs):
    """Fraction of the images with a mean squared error below 0.001."""

    name = "recovered"
    keywords = ("image reconstruction", "success rate")
    shown = Measure(
        "Recovered",
        "Examples recovered recognisably (mean squared error below 0.001).",
        "examples of {hits} of {n} updates recovered",
        kind="yes/no",
        partly="{share} of the examples in {n} updates recovered",
        rank=10,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        return float((_errors(claimed, truth, spec) < RECOVERED).double().mean())


IMAGES = (MSE, PSNR, SSIM, Recovered)
"""The metrics of images, in the order in which findings list them."""
