"""LPIPS, where its networks are on this machine. Nothing here ever uses a network.

The distance is learned on top of an AlexNet that torchvision loads, from weights that are no part
of any package. Without either, the metric suits no task and leaves no rows.
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

__all__ = ["LPIPS"]

SIDE = 64
"""Pixels: LPIPS was fitted on patches of this side, and AlexNet cannot read much smaller ones."""

Distance = Callable[[Tensor, Tensor], Tensor]


@functools.cache
def _distance() -> Distance | None:
    """Mean LPIPS of two stacks of images, (N, 3, H, W) float32 in [0, 1]; None where it is absent.

    Absent also where the stored weights are damaged.
    """
    try:
        from torchvision.models import AlexNet_Weights
    except ImportError:
        return None
    # torchvision downloads what is not in this folder.
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
    """(N, C, H, W) in [0, 1] as a network for photographs takes it: colour, large enough."""
    images = images.float()
    if images.shape[1] != 3:
        images = images.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    if min(images.shape[-2:]) < SIDE:
        factor = SIDE / min(images.shape[-2:])
        size = [round(side * factor) for side in images.shape[-2:]]
        images = torch.nn.functional.interpolate(images, size, mode="bilinear")
    return images.clamp(0, 1)


class LPIPS(Metric):
    """Perceived difference (LPIPS, AlexNet), 0 for an exact match.

    Images shorter than 64 pixels a side are enlarged. Only where torchvision and its weights are on
    the machine.
    """

    name = "lpips"
    keywords = ("image reconstruction", "image quality", "perceptual")
    fields = ("inputs",)
    shown = Measure(
        "LPIPS",
        "Perceived difference between recovered and true images; 0 is a copy.",
        "perceived difference {value} over {n} updates",
        lower=True,
        rank=210,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        distance = _distance()
        if distance is None:
            raise ValueError(
                "LPIPS needs torchvision and the weights of its AlexNet, stored locally"
            )
        ours, originals = pairs(claimed, truth, spec)
        with torch.no_grad():
            return float(distance(_seen(ours), _seen(originals)))

    def suits(self, spec: Spec) -> bool:
        """Images, where the networks of LPIPS are on this machine."""
        return is_image(spec) and _distance() is not None
