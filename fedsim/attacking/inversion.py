"""One attack on one update, in one call, without a federation."""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedsim.adversary import Adversary, Job
from fedsim.attacking.modalities import revealed_task
from fedsim.errors import NotGranted, ScenarioError
from fedsim.knowledge import Knowledge
from fedsim.records import Interception, Reconstruction, Truth, Update
from fedsim.scenario.devices import what_torch_sees
from fedsim.seeds import isolated, torch_defaults, torch_generator
from fedsim.threat import ThreatModel
from fedsim.victim import Loss

NOT_THERE = Knowledge.AUXILIARY | Knowledge.PRIOR | Knowledge.HISTORY | Knowledge.DEFENSE
"""Knowledge that one update does not come with."""


@torch_defaults()
def invert(  # noqa: PLR0913 - each argument is something that the attacker knows
    update: Update | Mapping[str, Tensor],
    model: nn.Module,
    adversary: Adversary,
    *,
    shape: Sequence[int],
    labels: Tensor | Sequence[int] | None = None,
    num_examples: int = 1,
    input_range: tuple[float, float] | None = (0.0, 1.0),
    loss: Loss | None = None,
    seed: int = 0,
    budget: int | None = None,
    device: torch.device | str = "cpu",
) -> Reconstruction:
    """Attack one gradient or one update, as of a script or a notebook.

        gradient = dict(zip(names, torch.autograd.grad(loss, net.parameters())))
        claimed = fedsim.invert(gradient, net, DLG(), shape=(1, 28, 28))

    Args:
        update: The gradient of the loss, mean over examples, by parameter name, as tensors or
            arrays of numpy; or an `Update`, such as new weights after several local steps.
        model: The classifier as the client had it: weights, buffers and mode, of any precision and
            on any device. It is not changed; a copy in float32 is attacked.
        adversary: The adversary.
        shape: Shape of one input without the batch dimension, such as (3, 32, 32).
        labels: The labels (N,), if they are known; they are shown as a sorted bag.
        num_examples: The number N of examples, where `labels` and an `Update` do not give it.
        input_range: The smallest and the largest value of an image's inputs; None if unbounded.
        loss: The training loss, called as `cross_entropy` is, which is the default.
        seed: Seed of the attack's random numbers.
        budget: Largest number of iterations, restarts included.
        device: Where the attack computes.

    Returns:
        What the adversary claims.

    Raises:
        NotGranted: The adversary needs more than one update comes with, such as auxiliary data.
        ScenarioError: The model cannot take the inputs, its gradient has other names or shapes,
            the adversary attacks other inputs or refuses this update, or an argument is of another
            type or out of range.
    """
    if not isinstance(adversary, Adversary):
        raise ScenarioError(f"adversary: found {adversary!r}; expected an object, such as LLG()")
    if not isinstance(update, Update | Mapping):
        raise ScenarioError(
            f"update: found {type(update).__name__}; expected tensors by parameter name, or an "
            "Update"
        )
    for name, least in (("num_examples", num_examples), ("budget", budget)):
        if least is not None and least < 1:
            raise ScenarioError(f"{name}: found {least}; expected 1 or more")
    if len(shape) > 3 and "inputs" in adversary.recovers:
        raise ScenarioError(
            f"shape: found {tuple(shape)}; expected that of one input without the batch dimension, "
            "such as (3, 32, 32)"
        )
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ScenarioError(f'device: found "{device}", and {what_torch_sees()}')
    alone = isinstance(model, nn.Linear)
    if alone:  # attacks find layers by name, and the parameters of a layer alone have none
        model = nn.Sequential(model)
    model, example = copy.deepcopy(model).cpu(), torch.zeros(tuple(shape))
    plain = copy.deepcopy(model).float()
    task = revealed_task(
        lambda: copy.deepcopy(plain), example, loss=loss, seed=seed, input_range=input_range
    )
    if unsuited := list(adversary.unsuited(task.spec_type, task.name)):
        raise ScenarioError("\n".join(unsuited))
    truth = Truth(labels=None if labels is None else _known(labels, task.spec.classes))
    if not isinstance(update, Update):
        count = num_examples if truth.labels is None else len(truth.labels)
        update = Update(tensors=update, kind="gradient", num_examples=count)
    update = update.replace(
        tensors={
            f"0.{name}" if alone else name: torch.as_tensor(value).detach().cpu()
            for name, value in update.tensors.items()
        },
        buffers={name: value.cpu() for name, value in update.buffers.items()},
    )
    before = {k: v.detach() for k, v in task.arrays(model).items()}
    trained = task.trained(model)
    if differing := sorted(update.tensors.keys() ^ trained):
        raise ScenarioError(
            f"update: '{differing[0]}' is the name of a tensor in one of update and model alone. "
            "Give a tensor for each trained parameter, by its name in model.named_parameters()"
        )
    for name, value in update.tensors.items():
        if value.shape != before[name].shape:
            raise ScenarioError(
                f"update: '{name}' has shape {tuple(value.shape)}, and the model's has "
                f"{tuple(before[name].shape)}. Give the update of this model"
            )
    granted = ~NOT_THERE if truth.labels is not None else ~(NOT_THERE | Knowledge.LABELS)
    threat = ThreatModel(granted & ~Knowledge.LENGTHS, task)
    if lacking := adversary.requires() & ~threat.granted.closed():
        fix = ": give labels=" if Knowledge.LABELS in lacking else ""
        raise NotGranted(
            f"{adversary.name} needs {', '.join(lacking.names())}, which one update does not come "
            f"with{fix}"
        )
    with isolated(seed, "invert"):
        seen = threat.observe(Interception(1, (0,), before, update), truth=truth)
        if seen.model is not None:
            for ours, theirs in zip(seen.model.module.modules(), model.modules(), strict=True):
                ours.training = theirs.training
        rng = torch_generator(seed, "invert")
        try:
            return adversary.reconstruct(seen, Job(rng, device=device, budget=budget))
        except ValueError as error:
            hint = (
                ". A shape of two numbers is that of an utterance, (frames, values); that of a "
                "grey image is (1, height, width)"
            )
            why = f"{error}{hint if len(shape) == 2 else ''}"
            raise ScenarioError(f"{adversary.name} cannot attack this: {why}") from error


def _known(labels: Tensor | Sequence[int], classes: int) -> Tensor:
    """Labels that were given, (N,) int64; raises `ScenarioError` if they are none."""
    given = torch.as_tensor(labels)
    found = given.reshape(-1).tolist()
    several = given.shape[1:].numel() > 1  # such as one-hot rows
    if several or not found or not all(label in range(classes) for label in found):
        raise ScenarioError(
            f"labels: found {given.tolist()!r:.200}; expected classes from 0 to {classes - 1}, one "
            "for each example"
        )
    return given.reshape(-1).long()
