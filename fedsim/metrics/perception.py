"""LPIPS: learned perceptual distance of images, if its weights are stored on this machine.

LPIPS needs torchvision and the weights of its AlexNet, which no package contains and nothing here
downloads. Without them the metric suits no task and adds no rows.
"""

import functools
import pickle
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedsim.metric import Measure, Metric
from fedsim.metrics.images import is_image, pairs
from fedsim.records import Reconstruction, Spec, Truth

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


class LPIPS(Metric):
    """Perceived difference between recovered and true images; 0 is a copy.

    LPIPS with AlexNet (Zhang et al., 2018). Images with a side below 64 pixels are enlarged.
    """

    name = "lpips"
    keywords = ("image reconstruction", "image quality", "perceptual")
    fields = ("inputs",)
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
