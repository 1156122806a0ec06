"""Metrics of images, matched to the originals.

Pixels are scaled from the range of the task to [0, 1]. Claimed pixels are clipped to the range
first, since every adversary knows it. Claims are matched one-to-one to originals so that the total
MSE is least (Hungarian algorithm). An original without a claim, and a claim with NaN or Inf, score
as the image farthest from the original. If there are more claims than originals, only the first
ones count, so that many claims are no advantage.

LPIPS needs torchvision and the weights of its AlexNet, which no package contains and nothing here
downloads. Without them the metric suits no task and adds no rows.
"""

import functools
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedsim.metric import Measure, Metric
from fedsim.metrics.assignment import assigned
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import TabularSpec

RECOVERED = 1e-3
"""MSE below which an image looks like the original."""

PSNR_CAP = 100.0
"""PSNR of an exact match in dB, instead of infinity."""

SSIM_SIDE = 5
"""Shortest side in pixels that SSIM's window fits into."""


def match(claimed: Sequence[Tensor], originals: Tensor) -> list[int]:
    """Match claims to originals so that the total MSE is least.

    Args:
        claimed: Claimed images. Those beyond the first N, of another shape, or with NaN or Inf are
            matched to no original.
        originals: (N, ...).

    Returns:
        For each original the index of its claim, or -1.
    """
    usable = [
        index
        for index, claim in enumerate(claimed[: len(originals)])
        if claim.shape == originals.shape[1:] and bool(torch.isfinite(claim).all())
    ]
    if not usable:
        return [-1] * len(originals)
    candidates = torch.stack([claimed[index] for index in usable])
    each = ((candidates - one).square().flatten(1).mean(dim=1) for one in originals)
    cost = [[min(error, HOPELESS) for error in errors.tolist()] for errors in each]
    return [usable[place] if place >= 0 else -1 for place in assigned(cost)]


def pairs(claimed: Reconstruction, truth: Truth, spec: Spec) -> tuple[Tensor, Tensor]:
    """Claims in the order of the originals they are matched to, and the originals.

    Returns:
        Both (N, ...) float64 on the CPU, pixels in [0, 1].

    Raises:
        ValueError: The truth has no inputs.
    """
    if not truth.inputs:
        raise ValueError("this task's truth has no inputs, so no image metric applies")
    originals = torch.stack([image.detach().cpu().double() for image in truth.inputs])
    low, high = spec.input_range or (float(originals.min()), float(originals.max()))
    span = (high - low) or 1.0
    originals = (originals - low) / span
    # Infinities are not clipped, so that `match` rejects them.
    claims = [(claim.detach().cpu().double() - low) / span for claim in claimed.inputs or ()]
    claims = [torch.where(claim.isinf(), claim, claim.clamp(0, 1)) for claim in claims]
    farthest = (originals < 0.5).double()
    ours = [
        claims[index] if index >= 0 else farthest[row]
        for row, index in enumerate(match(claims, originals))
    ]
    return torch.stack(ours), originals


def _errors(claimed: Reconstruction, truth: Truth, spec: Spec) -> Tensor:
    """MSE of the claim matched to each original, (N,)."""
    ours, originals = pairs(claimed, truth, spec)
    return (ours - originals).square().flatten(1).mean(dim=1)


def is_image(spec: Spec) -> bool:
    """Whether inputs have the shape (channels, height, width) and SSIM's window fits into them."""
    shape = spec.input_shape
    return shape is not None and len(shape) == 3 and min(shape[1:]) >= SSIM_SIDE


class _OfInputs(Metric):
    """A metric of inputs that all have one shape, except rows of tables."""

    fields = ("inputs",)

    def suits(self, spec: Spec) -> bool:
        """Tasks whose inputs have one shape and are no rows of a table."""
        return spec.input_shape is not None and not isinstance(spec, TabularSpec)


class MSE(_OfInputs):
    """Squared distance between recovered and true examples; 0 is a copy."""

    name = "mse"
    keywords = ("image reconstruction", "pixel error")
    shown = Measure(
        "Mean squared error",
        phrase="mean squared error {value} over {n} updates",
        lower=True,
        rank=150,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Mean squared error over pixels in [0, 1], then over the images."""
        return float(_errors(claimed, truth, spec).mean())


class PSNR(_OfInputs):
    """Peak signal-to-noise ratio of the recovered images; above 30 dB they look alike."""

    name = "psnr"
    keywords = ("image reconstruction", "image quality", "decibel")
    shown = Measure(
        "PSNR",
        phrase="peak signal-to-noise ratio {value} over {n} updates",
        unit=" dB",
        signed=True,
        most=PSNR_CAP,
        rank=190,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """-10 log10(MSE) in dB, at most 100 (an exact match), averaged over the images."""
        floor = 10 ** (-PSNR_CAP / 10)
        return float((-10 * _errors(claimed, truth, spec).clamp(min=floor).log10()).mean())


class SSIM(_OfInputs):
    """Structural similarity of recovered and true images; 1 is a copy."""

    name = "ssim"
    keywords = ("image reconstruction", "image quality", "perceptual")
    shown = Measure(
        "SSIM",
        phrase="structural similarity {value} over {n} updates",
        signed=True,
        most=1.0,
        rank=200,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """SSIM with a Gaussian window of 11 pixels, or of 5 for smaller images (torchmetrics).

        The mean is over all pixels, with the images mirrored at their borders. Where others leave
        the borders out, small images have other values (16 x 16: by a tenth).
        """
        from torchmetrics.functional.image import structural_similarity_index_measure

        ours, originals = pairs(claimed, truth, spec)
        sigma = 1.5 if min(originals.shape[-2:]) >= 11 else 0.5
        value = structural_similarity_index_measure(ours, originals, sigma=sigma, data_range=1.0)
        return float(value)  # type: ignore[arg-type]

    def suits(self, spec: Spec) -> bool:
        """Images."""
        return is_image(spec)


class Recovered(_OfInputs):
    """Examples recovered recognisably (mean squared error below 0.001)."""

    name = "recovered"
    keywords = ("image reconstruction", "success rate")
    shown = Measure(
        "Recovered",
        phrase="examples of {hits} of {n} updates recovered",
        kind="yes/no",
        partly="{share} of the examples in {n} updates recovered",
        rank=10,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Fraction of the images whose mean squared error is below 0.001."""
        return float((_errors(claimed, truth, spec) < RECOVERED).double().mean())


HOPELESS = 1e300
"""Cap of the errors that are matched, because the solver takes no infinite ones."""

SIDE = 64
"""Side in pixels of the patches that LPIPS was fitted on; AlexNet needs nearly as many."""

Distance = Callable[[Tensor, Tensor], Tensor]


@functools.cache
def _distance() -> Distance | None:
    """Load the mean LPIPS of two batches of images, (N, 3, H, W) float32 in [0, 1].

    Returns:
        None if torchvision or its weights are missing or damaged.
    """
    try:
        from torchvision.models import AlexNet_Weights
    except ImportError:
        return None
    # torchvision downloads weights that are not in this folder.
    stored = Path(torch.hub.get_dir()) / "checkpoints" / Path(AlexNet_Weights.DEFAULT.url).name
    if not stored.is_file():
        return None
    from torchmetrics.image.lpip import LearnedPerceptualImagePatchSimilarity

    try:
        lpips = LearnedPerceptualImagePatchSimilarity(net_type="alex", normalize=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
        return None
    distance: Distance = lpips.eval()
    return distance


def _seen(images: Tensor) -> Tensor:
    """Make images (N, C, H, W) fit AlexNet: three channels, at least `SIDE` pixels a side."""
    images = images.float()
    if images.shape[1] != 3:
        images = images.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    if min(images.shape[-2:]) < SIDE:
        factor = SIDE / min(images.shape[-2:])
        size = [round(side * factor) for side in images.shape[-2:]]
        images = torch.nn.functional.interpolate(images, size, mode="bilinear")
    return images.clamp(0, 1)


class LPIPS(_OfInputs):
    """Perceived difference between recovered and true images; 0 is a copy.

    LPIPS with AlexNet (Zhang et al., 2018). Images with a side below 64 pixels are enlarged.
    """

    name = "lpips"
    keywords = ("image reconstruction", "image quality", "perceptual")
    shown = Measure(
        "LPIPS", phrase="perceived difference {value} over {n} updates", lower=True, rank=210
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Mean LPIPS of the matched images."""
        distance = _distance()
        if distance is None:
            raise ValueError(
                "LPIPS needs torchvision and the weights of its AlexNet, stored locally"
            )
        ours, originals = pairs(claimed, truth, spec)
        with torch.no_grad():
            return float(distance(_seen(ours), _seen(originals)))

    def suits(self, spec: Spec) -> bool:
        """Images, if the networks of LPIPS are on this machine."""
        return is_image(spec) and _distance() is not None
