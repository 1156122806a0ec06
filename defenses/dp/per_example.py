"""The gradient of each example of a batch, in three ways."""

import warnings
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedsim import Batch
from fedsim.gradients import LossModule
from fedsim.seeds import held

TOLERANCE = 1e-3
"""Share of the examples' mean norm by which equal gradients differ at most by rounding."""


def opacus_knows(module: nn.Module) -> bool:
    """Whether Opacus supports every layer; functions beside the layers are not checked."""
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    return not ModuleValidator.validate(module, strict=False) and not GradSampleModule.validate(
        module, strict=False
    )


def by_opacus(
    loss: Any, module: nn.Module, names: frozenset[str], batch: Batch, *, alone: bool = True
) -> tuple[dict[str, Tensor], float] | None:
    """Per-example gradients (B, ...) by name and the mean loss, from Opacus' hooks.

    The hooks see layers alone. What a model makes of a parameter outside its layer is missing, and
    where examples are mixed, or weighted by each other, they share gradients.

    Args:
        loss: Maps a module and a batch to the mean loss.
        module: The model.
        names: Names of the trained parameters.
        batch: The batch.
        alone: Whether the first example is compared with its gradient on its own, which takes
            another forward and backward pass of one example.

    Returns:
        None if the hooks did not record all parameters for each example, if what they recorded is
        not the gradient of the batch, or if the first example has another gradient on its own.
    """
    from opacus import GradSampleModule

    # Clients of a worker share models, so the hooks must be removed after the step.
    hooked = GradSampleModule(module, loss_reduction="mean")
    try:
        value = loss(module, batch)
        with warnings.catch_warnings():
            # Inputs need no gradient here, which is no problem for Opacus' hooks.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            value.backward()
        trained = {name: one for name, one in module.named_parameters() if name in names}
        found = {name: cast(Any, one).grad_sample for name, one in trained.items()}
        whole = {name: one.grad for name, one in trained.items()}
    finally:
        hooked.zero_grad(set_to_none=True)
        hooked.to_standard_module()
    if any(sample is None or len(sample) != len(batch) for sample in found.values()):
        return None
    found = {name: sample.detach() for name, sample in found.items()}
    if not all(_same(sample.mean(dim=0), whole[name], sample) for name, sample in found.items()):
        return None
    if alone and len(batch) > 1 and not _alone(loss, module, names, batch, found):
        return None
    return found, float(value.detach())


def _same(one: Tensor, other: Tensor | None, samples: Tensor) -> bool:
    """Whether two gradients are equal but for rounding, as compared with those of the examples."""
    if other is None:
        return False
    size = samples.flatten(1).norm(dim=1).mean()
    return bool((one - other).norm() <= TOLERANCE * size)  # False for NaN


def _alone(
    loss: Any, module: nn.Module, names: frozenset[str], batch: Batch, found: dict[str, Tensor]
) -> bool:
    """Whether the first example has the same gradient on its own, or one that is drawn anew."""
    lengths = None if batch.lengths is None else batch.lengths[:1]
    first = Batch(batch.inputs[:1], batch.labels[:1], lengths)

    def same(these: dict[str, Tensor], those: dict[str, Tensor]) -> bool:
        return all(_same(these[name][0], those[name][0], found[name]) for name in found)

    with held():
        own, _ = one_by_one(loss, module, names, first)
        if same(own, found):
            return True
        again, _ = one_by_one(loss, module, names, first)
    return not same(own, again)


def by_torch_func(
    loss: Any, module: nn.Module, names: frozenset[str], batch: Batch
) -> tuple[dict[str, Tensor], float]:
    """Per-example gradients by vmap of grad, with vectorised calls on batches of one."""
    whole = LossModule(module, partial(loss, module))
    chosen = {k: p.detach() for k, p in module.named_parameters() if k in names}

    def single(parameters: dict[str, Tensor], *example: Tensor) -> Tensor:
        inputs, labels, *lengths = (part.unsqueeze(0) for part in example)
        alone = Batch(inputs, labels, lengths[0] if lengths else None)
        call = {f"module.{name}": value for name, value in parameters.items()}
        return cast(Tensor, torch.func.functional_call(whole, call, (alone,)))

    every = (batch.inputs, batch.labels, batch.lengths)
    parts = [part for part in every if part is not None]
    each = torch.func.vmap(
        torch.func.grad_and_value(single),
        in_dims=(None, *(0 for _ in parts)),
        randomness="different",
    )
    gradients, values = each(chosen, *parts)
    return dict(gradients), float(values.mean())


def one_by_one(
    loss: Any, module: nn.Module, names: frozenset[str], batch: Batch
) -> tuple[dict[str, Tensor], float]:
    """Per-example gradients by one backward pass for each example."""
    parameters = {name: p for name, p in module.named_parameters() if name in names}
    rows, total = [], 0.0
    for index in range(len(batch)):
        own = slice(index, index + 1)
        lengths = None if batch.lengths is None else batch.lengths[own]
        value = loss(module, Batch(batch.inputs[own], batch.labels[own], lengths))
        rows.append(torch.autograd.grad(value, list(parameters.values()), materialize_grads=True))
        total += float(value.detach())
    stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
    return dict(zip(parameters, stacked, strict=True)), total / len(batch)
