"""What leaked, in numbers: a claim against the truth, and beside it what a guess would score.

    labels         which labels occur, how often, and how well scores order them
    images         how near the claimed images are, matched to the originals
    frames         how near claimed frames of utterances are, matched to the originals
    words          how near the claimed transcripts are, matched to the originals
    attributes     at which rank an attribute (who speaks) is named, of matched claims
    text           how near the claimed texts and tokens are, matched to the originals
    perception     LPIPS, where its networks are on this machine
    optimisation   how an attack's own search went; no truth, and no chance level

A task with other examples adds a metric with `register`.
"""

from fedsim.metrics.attributes import ATTRIBUTES
from fedsim.metrics.frames import FRAMES, framed
from fedsim.metrics.images import IMAGES, PSNR_CAP, RECOVERED, SSIM_SIDE, match
from fedsim.metrics.labels import LABELS, claimed_counts, true_counts
from fedsim.metrics.optimisation import OPTIMISATION
from fedsim.metrics.perception import LPIPS
from fedsim.metrics.registry import (
    DRAWS,
    METRICS,
    Guess,
    Metric,
    Score,
    applicable,
    baselines,
    register,
    remembering,
)
from fedsim.metrics.text import TEXT, read
from fedsim.metrics.words import WORDS, word_errors, worded

__all__ = [
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
    "match",
    "read",
    "register",
    "remembering",
    "true_counts",
    "word_errors",
    "worded",
]

for _metric in (*LABELS, *IMAGES, LPIPS, *ATTRIBUTES, *FRAMES, *WORDS, *TEXT, *OPTIMISATION):
    register(_metric)
