"""What torch's global hooks see of one call of a training function."""

import contextlib
import itertools
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fedsim.federation.compiled import compiled_calls
from fedsim.federation.offered import (
    Offered,
    Parts,
    Pass,
    Used,
    further_inputs,
    outputs_in,
    tensors_in,
)
from fedsim.runs.truth import SHARED, Group, Origin, Seen
from fedsim.runs.truth_store import write


@dataclass(slots=True)
class _Step:
    """One step of an optimizer: its class, each group's settings, and what went with it."""

    kind: str
    groups: list[dict[str, Any]]
    last_use: int = 0
    holds_another: bool = False


class Watching:
    """One call of a training function, as torch's hooks see it.

    Hooks are global, so that what other threads do is left out: only the thread of the training
    function counts (`here`), and those that iterate over `reveal`.

    Args:
        origin: Whose call it is.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._offered, self._used = Offered(), Used()
        self._thread = threading.get_ident()
        self._threads = {self._thread}
        self._depth: dict[int, int] = defaultdict(int)
        self._root: nn.Module | None = None
        self._forward: Pass | None = None
        self._passes = itertools.count()
        self._reached: dict[int, Pass] = {}
        self._training, self._device = True, "cpu"
        self._frozen: tuple[str, ...] = ()
        self._running: list[_Step] = []
        self._steps: list[_Step] = []
        self._optimizers: list[Optimizer] = []
        self._warm, self._wrapper = False, ""
        self._others: set[str] = set()
        self._trained: list[tuple[str, ...]] = []
        self._after: dict[str, Tensor] = {}

    def offer(self, batch: Any, labels: int | str | None = None) -> None:
        """Note a batch that the training function has asked for; it counts once it is used."""
        if threading.get_ident() == self._thread:
            self._count()
        self._threads.add(threading.get_ident())
        self._offered.add(Parts.of(batch, labels))

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Watch the modules and optimizers of this thread."""
        handles = (
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._behind, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._begin_step),
            register_optimizer_step_post_hook(self._end_step),
        )
        try:
            with compiled_calls(self._before, self._behind):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _here(self) -> bool:
        """Whether what happens is training; of functions that are traced, nothing can be noted."""
        traced = (
            torch._C._get_tracing_state() is not None
            or torch._C._functorch.peek_interpreter_stack() is not None
        )
        return threading.get_ident() in self._threads and not traced

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return  # what is compiled stays as it would be without a watch
        if not self._here():
            return
        outermost = not self._depth[threading.get_ident()]
        self._depth[threading.get_ident()] += 1
        if not (outermost and torch.is_grad_enabled()):
            return
        if self._root is None and self._offered and _is_trained(module):
            self._root = module
        if module is self._root:
            self._count()
            received = next(tensors_in(args), None)
            still = (name for name, layer in module.named_modules() if not layer.training)
            self._forward = Pass(
                None if received is None else received.detach().cpu().clone(),
                torch.get_rng_state(),
                module.training,
                tuple(still) if module.training else (),
            )

    def _behind(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """Note the end of a forward pass: `rest` is (kwargs, output).

        If the pass ended in an exception, torch leaves the kwargs out. One such pass is the second
        one of gradient checkpointing, which stops once it has what the backward pass needs.
        """
        if torch.compiler.is_compiling():
            return
        if not self._here():
            return
        self._depth[threading.get_ident()] -= 1
        if self._forward is None or self._depth[threading.get_ident()]:
            return
        one, self._forward = self._forward, None
        if len(rest) < 2:
            return
        kwargs, output = rest
        every = [*tensors_in(args, kwargs)]
        one.others = frozenset(further_inputs(args, kwargs))
        if every:
            one.device = every[0].device.type
        if one.received is None and every:
            one.received = every[0].detach().cpu().clone()
        if one.received is not None:
            known = self._used.place_of(one.received) is not None
            one.batch, one.first = self._offered.claim(one.received, known=known)
        number, returned = next(self._passes), [*outputs_in(output)]

        def reached(_: Tensor) -> None:
            self._reached.setdefault(number, one)

        for each in returned:
            if each.requires_grad:
                each.register_hook(reached)  # type: ignore[no-untyped-call]
        if not returned:  # a kind of output that cannot be seen into
            self._reached[number] = one

    def _count(self) -> None:
        """Count the batches that a backward pass has reached since the last step, in order."""
        last = self._steps[-1].last_use if self._steps else 0
        for _, one in sorted(self._reached.items()):
            self._training, self._frozen, self._device = one.training, one.frozen, one.device
            self._others |= one.others
            if one.received is None:
                parts = self._offered.next() if self._offered else None
                self._used.add(None, parts.labels if parts else None, one.state)
                continue
            if not one.first and self._used.place_of(one.received, last) is not None:
                continue  # again before the next step, as in a closure
            earlier = None if one.first else self._used.place_of(one.received)
            labels = self._offered.use(one.batch) if earlier is None else self._used.labels(earlier)
            self._used.add(one.received, labels, one.state)
        self._reached = {}

    def _begin_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._here():
            return
        if not any(optimizer is one for one in self._optimizers):
            self._optimizers.append(optimizer)
        if any(hasattr(p, "grad_sample") for one in optimizer.param_groups for p in one["params"]):
            self._wrapper = "Opacus"  # it clips each example's gradient and adds noise
        groups = [{k: v for k, v in one.items() if k != "params"} for one in optimizer.param_groups]
        if self._running:
            self._running[-1].holds_another = True
        elif not self._steps:
            self._warm = _has_stepped(optimizer)
        self._running.append(_Step(type(optimizer).__name__, groups))

    def _end_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._here() or not self._running:
            return
        step = self._running.pop()
        if step.holds_another:  # a wrapper, such as Lookahead; the optimizer in it was counted
            self._wrapper = step.kind
            self._optimizers = [one for one in self._optimizers if one is not optimizer]
            return
        if self._root is None and self._offered:  # a model that is called as a function
            parts = self._offered.next()
            inputs = next((one.detach().cpu().clone() for one in parts.tensors), None)
            self._used.add(inputs, parts.labels, torch.get_rng_state())
        if not self._steps:
            self._trained = [self._names(group["params"]) for group in optimizer.param_groups]
        self._count()
        self._offered.release()
        step.last_use = len(self._used.sizes)
        self._steps.append(step)

    def _names(self, parameters: Sequence[Tensor]) -> tuple[str, ...]:
        """Names of the model's parameters among those of a group."""
        if self._root is None:
            return ()
        changed = {id(one) for one in parameters}
        named = self._root.named_parameters(remove_duplicate=False)
        return tuple(name for name, one in named if id(one) in changed and one.requires_grad)

    def replied(self, arrays: ArrayRecord) -> None:
        """Note the arrays of the reply, before defenses change them."""
        self._after = {
            f"after.{name}": value.detach().clone()
            for name, value in arrays.to_torch_state_dict().items()
        }

    def save(self) -> str:
        """Write what was seen to a file of the truth store, and return the file's name.

        Raises:
            RunFolderError: It cannot be written, such as on a full disk.
        """
        self._count()
        first = self._steps[0] if self._steps else None
        kinds = {step.kind for step in self._steps}
        steps = self._steps
        if len(self._optimizers) > 1:  # those on one batch, such as of body and head, are one step
            steps = [*{step.last_use: step for step in steps}.values()]
        prefix = self._prefix()
        own, *more = self._every_group(prefix) or [Group()]
        groups = max((len(step.groups) for step in self._steps), default=0)
        if len(self._optimizers) > 1 and len({*_shared(self._steps)}) > 1:
            groups, more = max(groups, 2), []
        named = groups < 2 or (groups == 1 + len(more) and all(one.trained for one in (own, *more)))
        several = len(self._optimizers) > 1 or not named
        known = first is not None and hasattr(torch.optim, first.kind)
        if self._offered.guessed and (several or self._warm or not known):
            self._used.without_labels()  # which batch was which cannot be checked later
        # What followed the last step changed nothing.
        sizes = self._used.sizes[: self._steps[-1].last_use] if first else self._used.sizes
        seen = Seen(
            **dict(self._origin),
            steps=len(steps),
            optimizer=next(iter(kinds), "unknown").lower() if len(kinds) < 2 else "several",
            training=self._training,
            frozen=tuple(name.removeprefix(prefix) for name in self._frozen),
            device=self._device,
            sizes=tuple(sizes),
            same=self._used.same,
            partial=self._used.partial,
            kind=first.kind if first else "",
            ends=tuple(step.last_use for step in steps),
            groups=groups,
            more=tuple(more),
            optimizers=len(self._optimizers),
            warm=self._warm,
            wrapper=self._wrapper,
            others=tuple(sorted(self._others)),
            **dict(own),
        )
        if first and seen.uniform:
            shared = {key: float(own.settings.get(key) or 0.0) for key in SHARED}
            lr = _mean(own.rates) if "lr" in own.settings else None
            seen = seen.model_copy(update={"lr": lr, **shared})
        name = secrets.token_hex(16)
        write(name, seen, {**self._used.tensors, **self._after})
        return name

    def _prefix(self) -> str:
        """What the names of a model have before those of the reply if a wrapper is called for it.

        Examples are "module." of `DataParallel` and "_orig_mod." of `torch.compile`.
        """
        for name, _ in self._root.named_parameters() if self._root is not None else ():
            parts = name.split(".")
            for place in range(len(parts)):
                if f"after.{'.'.join(parts[place:])}" in self._after:
                    return "".join(f"{part}." for part in parts[:place])
        return ""

    def _every_group(self, prefix: str) -> list[Group]:
        """The groups of parameters; the first alone if their number changed between steps.

        Args:
            prefix: What is removed from the names of parameters.
        """
        numbers = {len(step.groups) for step in self._steps}
        number = 1 if len(numbers) > 1 else max(numbers, default=0)
        found = []
        for place in range(number):
            each = [step.groups[place] for step in self._steps]
            rates = tuple(float(settings.get("lr", 0.0)) for settings in each)
            changes = dict(_changes(each))
            trained = tuple(name.removeprefix(prefix) for name in self._trained[place])
            group = Group(settings=_plain(each[0]), rates=rates, changes=changes, trained=trained)
            found.append(group)
        return found


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an optimizer that a file can hold."""
    return {k: v for k, v in settings.items() if isinstance(v, bool | int | float | tuple)}


def _changes(steps: Sequence[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The place of each step before which arguments other than the learning rate changed."""
    for place, (before, now) in enumerate(itertools.pairwise(steps), 1):
        old, new = _plain(before), _plain(now)
        if changed := {k: v for k, v in new.items() if k != "lr" and old.get(k) != v}:
            yield place, changed


def _has_stepped(optimizer: Optimizer) -> bool:
    """Whether an optimizer has state of earlier steps; Adagrad's has some from the beginning on."""
    return any(float(one.get("step", 1)) > 0 for one in optimizer.state.values())


def _shared(steps: Sequence[_Step]) -> Iterator[tuple[Any, ...]]:
    """The learning rate, momentum and weight decay of each group at each step."""
    for step in steps:
        for group in step.groups:
            yield tuple(float(group.get(key) or 0.0) for key in ("lr", *SHARED))


def _is_trained(module: nn.Module) -> bool:
    """Whether a module has weights to train; a normalisation, say, has none, and is no model."""
    return any(parameter.requires_grad for parameter in module.parameters())


def _mean(rates: tuple[float, ...]) -> float:
    """The mean learning rate, by which the sum of the gradients is scaled."""
    return rates[0] if len({*rates}) == 1 else sum(rates) / len(rates)
