"""Metrics: scores of an adversary's claim against the truth, and of guesses for comparison.

labels         sets, counts and distributions of labels
images         pixel errors and similarity of claimed images; LPIPS, if its weights are stored
tables         errors of the cells of claimed rows, by kind of column
frames         errors of claimed speech features
features       errors of claimed feature vectors, the inputs of the head
words          word errors of claimed transcripts
attributes     rank of an attribute of an example, such as its speaker
text           ROUGE and token scores of claimed texts
text_pairs     claimed texts matched to the originals
optimisation   how an attack's own optimisation went, without truth and chance level
assignment     one-to-one assignment of claims to originals
fixed          claims that are the same for every update
registry       the installed metrics, and which of them apply
claims         the form of a claim's fields, and shapes that match no original

Each metric is a subclass of `fedsim.metric.Metric`. A package adds its own by an entry point.
"""

from typing import Any

from fedsim.metric import Metric
from fedsim.metrics import (
    attributes,
    features,
    frames,
    images,
    labels,
    optimisation,
    tables,
    text,
    words,
)
from fedsim.metrics.claims import misshapen, plain
from fedsim.metrics.frames import framed
from fedsim.metrics.images import PSNR_CAP, RECOVERED, SSIM_SIDE, match
from fedsim.metrics.labels import claimed_counts, true_counts
from fedsim.metrics.registry import (
    DRAWS,
    Guess,
    Score,
    applicable,
    baselines,
    installed,
    register,
    remembering,
)
from fedsim.metrics.text_pairs import read
from fedsim.metrics.words import word_errors, worded

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
    "misshapen",
    "plain",
    "read",
    "register",
    "remembering",
    "true_counts",
    "word_errors",
    "worded",
]

BUILT_IN = [
    cls
    for module in (
        labels,
        images,
        attributes,
        features,
        frames,
        words,
        text,
        tables,
        optimisation,
    )
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Metric) and cls.name
]
"""fedsim's own metrics, in the order in which they are defined and findings list them."""


def __getattr__(name: str) -> Any:
    # Not when this package is imported: a package that adds a metric may need it first.
    if name == "METRICS":
        return installed()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
