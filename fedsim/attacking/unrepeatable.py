"""Trainings of another Flower project that cannot be repeated from what a client revealed."""

import torch

from fedsim.records import Truth
from fedsim.runs.truth import Seen, TruthFile

NO_CLASSES = "its labels are missing, or numbers that are no classes"
"""Why a training without labels that fedsim knows cannot be repeated."""

LONGEST = 100_000
"""Gradients of a training that is repeated at most: a file could name any number of steps."""


def unrepeatable(file: TruthFile, truth: Truth) -> str:
    """Say why a training cannot be repeated.

    Args:
        file: What the client revealed.
        truth: The examples in it, as far as their inputs and labels can be read.

    Returns:
        The reason; "" if it can be repeated.
    """
    seen = file.seen
    if seen.sent == "changed":
        return "the update is not what the training function returned: something changed it"
    if not seen.steps:
        return "no optimizer took a step: weights were changed by hand"
    if seen.optimizers > 1:
        return "several optimizers took steps"
    if seen.optimizer == "several" or not hasattr(torch.optim, seen.kind):
        return f"the optimizer ({seen.optimizer}) is none of torch.optim"
    if seen.groups > 1 and not all(one.trained for one in (seen, *seen.more)):
        return "the optimizer has groups of parameters that are not known by name"
    if seen.groups > 1 + len(seen.more):
        return "the optimizer's groups of parameters changed between steps"
    if (count := _gradients(seen)) > LONGEST:
        return f"its training of up to {count:,} gradients is too long to be repeated"
    if seen.warm:
        return "the optimizer has state of earlier rounds"
    if seen.partial or truth.inputs is None:
        return "inputs are missing"
    if len(file.labels) < len(seen.sizes):
        return NO_CLASSES
    if truth.labels is None:
        return "its labels are not one class for each example"
    return ""


def _gradients(seen: Seen) -> int:
    """The number of gradients that a training computed at most; L-BFGS takes several in a step."""
    tables = [each for one in (seen, *seen.more) for each in (one.settings, *one.changes.values())]
    most = max(int(each.get("max_iter", 1)) for each in tables)
    return max(len(seen.ends), len(seen.sizes)) * max(1, most)
