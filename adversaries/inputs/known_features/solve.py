"""The inputs of a batch whose features, labels and head errors are known."""

from collections.abc import Mapping

import torch

from adversaries.inputs.known_features import KnownBatch
from adversaries.inputs.known_features.equations import BatchEquations
from adversaries.inputs.known_features.gauss_newton import gauss_newton
from adversaries.inputs.known_features.smoothness import usual_directions
from fedsim import Job, Knowledge, Observation, Reconstruction
from fedsim.gradients import claim_labels
from fedsim.gradients.problem import parameter_weights


def solve_inputs(
    seen: Observation,
    job: Job,
    known: KnownBatch,
    *,
    parameters: Mapping[str, float],
    smooth: bool,
    iterations: int,
) -> Reconstruction:
    """Find the inputs by Gauss-Newton from grey images.

    Args:
        seen: What the adversary sees.
        job: The attack's job.
        known: What is known of the batch.
        parameters: Weight of each parameter in the equations, by pattern of its name.
        smooth: Whether the solution nearest to grey is that of a norm which penalises high
            frequencies and colour, or of the Euclidean norm.
        iterations: How often derivatives are computed at most.

    Raises:
        ValueError: Inputs have different shapes, or there are too many unknown values.
    """
    model, gradient = seen.know(Knowledge.MODEL), seen.know(Knowledge.GRADIENT)
    shape = seen.spec.input_shape
    if shape is None:
        raise ValueError("inputs of different shapes are no inputs of one network")
    names = [name for name in model.parameters() if name in gradient]
    equations = BatchEquations(
        model.copy().to(job.device),
        gradient,
        parameter_weights(names, parameters),
        known,
        shape,
    )
    low, high = seen.spec.input_range or (-1.0, 1.0)
    directions = (high - low) * usual_directions(shape, smooth=smooth)
    start = torch.full(shape, (low + high) / 2, dtype=torch.float64, device=job.device)
    found = gauss_newton(equations, start, directions.to(start), job, iterations)
    return claim_labels(
        known.labels.cpu(),
        inputs=list(found.inputs.float().cpu()),
        objective=found.missed**2,
        outcomes=(found.outcome,),
        trace=tuple(job.trace),
        diagnostics={"missed": found.missed},
    )
