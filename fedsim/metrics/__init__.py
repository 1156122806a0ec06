"""Metrics: what an adversary claims against the truth, and what a guess would score.

    labels         which labels occur, how often, and how well scores order them
    images         how near the claimed images are, matched to the originals
    frames         how near claimed frames of utterances are, matched to the originals
    words          how near the claimed transcripts are, matched to the originals
    attributes     at which rank an attribute (who speaks) is named, of matched claims
    text           how near the claimed texts and tokens are, matched to the originals
    perception     LPIPS, where its networks are on this machine
    optimisation   how an attack's own search went; no truth, and no chance level

Each metric is a class of `fedsim.metric.Metric`. A package adds its own by an entry point.
"""

from typing import Any

from fedsim.metrics.attributes import ATTRIBUTES
from fedsim.metrics.frames import FRAMES, framed
from fedsim.metrics.images import IMAGES, PSNR_CAP, RECOVERED, SSIM_SIDE, match
from fedsim.metrics.labels import LABELS, claimed_counts, true_counts
from fedsim.metrics.optimisation import OPTIMISATION
from fedsim.metrics.perception import LPIPS
from fedsim.metrics.registry import (
    DRAWS,
    Guess,
    Metric,
    Score,
    applicable,
    baselines,
    installed,
    register,
    remembering,
)
from fedsim.metrics.text import TEXT
from fedsim.metrics.text_pairs import read
from fedsim.metrics.words import WORDS, word_errors, worded

__all__ = [
    "BUILT_IN",
    "DRAWS",
    "METRICS",
    "PSNR_CAP",
    "RECOVERED",
    "SSIM_SIDE",
    "Guess",
    "Metric",
    "Score",
    "applicable",
    "baselines",
    "claimed_counts",
    "framed",
    "installed",
    "match",
    "read",
    "register",
    "remembering",
    "true_counts",
    "word_errors",
    "worded",
]

BUILT_IN = (*LABELS, *IMAGES, LPIPS, *ATTRIBUTES, *FRAMES, *WORDS, *TEXT, *OPTIMISATION)
"""fedsim's own metrics, in the order in which findings list them."""


def __getattr__(name: str) -> Any:
    # Not when this package is imported: a package that adds a metric may need it first.
    if name == "METRICS":
        return installed()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
