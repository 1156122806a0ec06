"""Conformance check of tasks."""

import dataclasses
import inspect
import math
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.libraries import brief
from fedsim.records import Batch, Reconstruction, Spec, Truth
from fedsim.seeds import torch_generator
from fedsim.task import Task
from fedsim.testing.examples import device_of_tests
from fedsim.testing.watching import frozen, same, watched

CLIENTS = 3
"""Clients that the data is divided among, unless the sample has more."""


def task_complaints(task: Task) -> list[str]:
    """List what is wrong with a task.

    Its data, model, loss, evaluation and guesses are checked, and that batches are a function of
    seed, client and round alone.

    Args:
        task: The task. Its data is divided among three clients if it has one.

    Returns:
        One sentence for each complaint, with what to do about it.
    """
    if task.clients == 1:
        task = task.model_copy(update={"clients": CLIENTS})
    found = []
    for check in (_data, _purity, _truth, _model, _loss, _utility, _guesses):
        try:
            found += list(check(task))
        except Exception as error:
            found.append(f"{check.__name__.strip('_')}: it raises {brief(error)}")
    return found


def _batch(task: Task, steps: int = 1, size: int = 4, round: int = 1) -> list[Batch]:
    return task.batches(0, round, batch_size=size, steps=steps)


def _data(task: Task) -> Iterator[str]:
    spec = task.spec
    if not isinstance(spec, Spec) or spec.classes < 2:
        yield "spec: return a Spec with two classes or more"
        return
    if type(spec) is not task.spec_type:
        yield f"spec_type: it is {task.spec_type.__name__}, and spec is a {type(spec).__name__}"
    sizes = [task.num_examples(client) for client in range(task.clients)]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        yield f"num_examples: {sizes} for its clients; each holds one example or more, an int"
    if not isinstance(task.fingerprint(), str) or not task.fingerprint():
        yield "fingerprint: return a hash of the data, a str"
    batches = _batch(task, steps=2)
    if not isinstance(batches, list):
        yield f"batches: {type(batches).__name__}; return a list with a Batch for each step"
        return
    if len(batches) != 2 or not all(isinstance(one, Batch) for one in batches):
        yield f"batches: {len(batches)} for steps = 2; return a list with a Batch for each step"
        return
    for batch in batches:
        if not isinstance(batch.inputs, Tensor) or not isinstance(batch.labels, Tensor):
            kinds = f"{type(batch.inputs).__name__} and {type(batch.labels).__name__}"
            yield f"batches: inputs and labels are {kinds}; a Batch holds tensors"
            return
        if not 0 < len(batch.labels) == len(batch.inputs) <= 4:
            shapes = f"{tuple(batch.inputs.shape)} and {tuple(batch.labels.shape)}"
            yield f"batches: inputs and labels {shapes} for batch_size = 4; one label an example"
        known = batch.labels[batch.labels >= 0]
        if batch.labels.dtype != torch.int64 or (known >= spec.classes).any():
            yield f"batches: labels are int64 from 0 to {spec.classes - 1} (spec.classes - 1)"
        shape = tuple(batch.inputs.shape[1:])
        if spec.input_shape is not None and shape != tuple(spec.input_shape):
            yield f"batches: inputs {shape}, and spec.input_shape is {spec.input_shape}"
        low, high = spec.input_range or (-math.inf, math.inf)
        if batch.inputs.is_floating_point() and not (
            low <= float(batch.inputs.min()) and float(batch.inputs.max()) <= high
        ):
            yield f"batches: inputs leave spec.input_range, {spec.input_range}, or are not finite"
    if (public := task.auxiliary()) is not None and not isinstance(public, Batch):
        yield "auxiliary: return a Batch of labelled examples that no client holds, or None"


def _purity(task: Task) -> Iterator[str]:
    first, touched = watched(lambda: _batch(task, steps=2), 0)
    again, _ = watched(lambda: _batch(task, steps=2), 1)
    if touched:
        yield f"batches: they draw from the global generator of {touched}: use fedsim.seeds"
    if not same(frozen(first), frozen(again)):
        yield "batches: not a function of (seed, client, round): seed a generator with these three"
    try:
        other = pickle.loads(pickle.dumps(task))  # noqa: S301 - what was pickled a moment ago
    except Exception as error:
        yield f"it cannot be sent to another process ({brief(error)}): keep data out of settings"
        return
    if not same(frozen(_batch(other, steps=2)), frozen(again)):
        yield "batches: another process gets other ones from the same settings"
    if other.fingerprint() != task.fingerprint():
        yield "fingerprint: another process gets another one from the same settings"
    ours, theirs = (dict(one.module().state_dict()) for one in (task, other))
    if not same(ours, theirs):
        yield "build: initial weights differ; draw them from torch's global generator alone"


def _truth(task: Task) -> Iterator[str]:
    truth = task.truth([0, 1], 1, batch_size=2, steps=2)
    batches = [b for c in (0, 1) for b in task.batches(c, 1, batch_size=2, steps=2)]
    expected = sum(len(batch.labels) for batch in batches)
    if not isinstance(truth, Truth) or truth.num_examples != expected:
        yield f"truth: not the {expected} examples of the batches of both clients and both steps"


def _model(task: Task) -> Iterator[str]:
    module = task.module()
    if not isinstance(module, nn.Module):
        yield f"build: {type(module).__name__}; return a torch.nn.Module"
        return
    layers = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    head = dict(module.named_modules()).get(task.head)
    if head is None:
        yield f"head: '{task.head}' is no layer of the model; linear ones: {', '.join(layers)}"
    elif isinstance(head, nn.Linear) and head.out_features != task.spec.classes:
        yield (
            f"head: '{task.head}' has {head.out_features} outputs, and spec.classes is "
            f"{task.spec.classes}"
        )
    if not task.trained(module) <= dict(module.named_parameters()).keys():
        yield "trained: names a parameter that the model does not have"


def _loss(task: Task) -> Iterator[str]:
    loss = task.loss
    if inspect.ismethod(loss) or getattr(loss, "__closure__", None):
        yield "loss: a method or a closure; write a plain function, as adversaries get it"
        return
    device = device_of_tests()
    module = task.module().eval().to(device)
    batch = _batch(task, size=2)[0].to(device)

    def of(rows: slice) -> Tensor:
        lengths = None if batch.lengths is None else batch.lengths[rows]
        return loss(module, batch.inputs[rows], batch.labels[rows], lengths=lengths)

    value = of(slice(None))
    if not isinstance(value, Tensor):
        yield f"loss: {value!r:.60}, {type(value).__name__}; return a tensor with one number"
        return
    if value.ndim or not bool(value.isfinite()):
        yield f"loss: {tuple(value.shape)} with values {value!r:.60}; return one finite number"
        return
    trained = task.trained(module)
    parameters = [p for name, p in module.named_parameters() if name in trained]
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    if all(one is None for one in gradients):
        yield "loss: no trained parameter has a gradient"
    if task.reduction == "example" and len(batch.labels) == 2:
        mean = (of(slice(0, 1)) + of(slice(1, 2))).item() / 2
        if not math.isclose(value.item(), mean, rel_tol=1e-3, abs_tol=1e-5):
            yield (
                f"loss: {value.item():g} of two examples whose own losses have the mean {mean:g}; "
                "take the mean over examples, or say what it is a mean over in `reduction`"
            )
    if batch.inputs.is_floating_point():
        yield from _twice(task, module, batch)


def _twice(task: Task, module: nn.Module, batch: Batch) -> Iterator[str]:
    """Check that gradients can be matched: the gradient's own gradient reaches the inputs."""
    inputs = batch.inputs.clone().requires_grad_(True)
    value = task.loss(module, inputs, batch.labels, lengths=batch.lengths)
    parameters = [p for p in module.parameters() if p.requires_grad]
    firsts = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
    squares = sum(one.square().sum() for one in firsts if one is not None)
    if not isinstance(squares, Tensor) or not squares.requires_grad:
        yield "loss: not differentiable twice, as gradient matching needs"
        return
    (second,) = torch.autograd.grad(squares, inputs, allow_unused=True)
    if second is None or not second.isfinite().all():
        yield "loss: the gradient of its gradient does not reach the inputs, or is not finite"


def _utility(task: Task) -> Iterator[str]:
    module = task.module().train().to(device_of_tests())
    before = frozen(dict(module.state_dict()))
    for client in (None, 0):
        found = task.evaluate(module, client)
        numbers = isinstance(found, Mapping) and all(
            isinstance(value, float | int) for value in found.values()
        )
        if not numbers or not found.get("num_examples", 0) >= 1:
            yield (
                f"evaluate: {found!r:.80} for client {client}; expected numbers by name, and "
                "num_examples among them"
            )
        elif "loss" not in found or not math.isfinite(found["loss"]):
            yield f"evaluate: no finite loss for client {client}"
    if not module.training or not same(before, dict(module.state_dict())):
        yield "evaluate: it changes the module; evaluate it within fedsim.task.evaluating(module)"


def _guesses(task: Task) -> Iterator[str]:
    truth = task.truth([0], 1, batch_size=4, steps=1)

    def guess(of: Truth, draw: int = 0) -> Reconstruction:
        return task.guess(of, torch_generator(0, "conformance", draw), informed=False)

    try:
        first, touched = watched(lambda: guess(truth), 0)
        again, _ = watched(lambda: guess(truth), 1)
    except NotImplementedError:
        yield "guess: not written; without it there is no level of chance"
        return
    if not isinstance(first, Reconstruction):
        yield f"guess: returns {type(first).__name__}; return a Reconstruction"
        return
    if touched or not same(frozen(first), frozen(again)):
        yield "guess: draw only from rng, so that it repeats under a seed"
    other = dataclasses.replace(truth, **{name: _blank(getattr(truth, name)) for name in _SEEN})
    if not same(frozen(guess(other)), frozen(first)):
        yield "guess: other labels or inputs of the same shapes give another guess; use only shapes"
    files = task.render(first, truth)
    if not isinstance(files, Mapping) or not all(isinstance(v, bytes) for v in files.values()):
        yield "render: return bytes by file name"


_SEEN = ("inputs", "labels", "sequences", "tokens")


def _blank(value: Any) -> Any:
    """The same shapes, without what they hold."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    return [torch.zeros_like(one) for one in value]
