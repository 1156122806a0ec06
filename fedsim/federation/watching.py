"""Watching the training function of another Flower project: what it really trained on.

    @app.train(mods=[watch()])
    def train(message, context):
        for x, y in reveal(loader):
            ...

`watch` sees the optimizer's steps and the model's inputs by torch's hooks, and `reveal` the labels.
Both lie in a file of the client's own process (`fedsim.runs.truth`), and not in the reply.
"""

import contextlib
import secrets
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

import torch
from flwr.app import ConfigRecord, Context, Message
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from fedsim.federation.grid import CLIENT_KEY
from fedsim.runs.truth import Seen, write

TRUTH_KEY = "fedsim.truth"
"""The record of a reply that holds the name of the client's file in the truth store."""

MOST_BYTES = 64 * 2**20
"""Bytes of inputs that are kept of a client and round; labels and counts are kept beyond it."""

UNSTATED = ("initial_lr", "decoupled_weight_decay")
"""Entries of an optimizer's group that are no argument of every optimizer: a scheduler's, and what
AdamW sets for itself."""

LABELS = ("labels", "label", "target", "y")
"""Keys of the labels in batches that are dictionaries."""

Loaded = TypeVar("Loaded")


class Watching:
    """One call of a training function, as torch's hooks see it.

    Args:
        round: The round, from 1.
    """

    def __init__(self, round: int) -> None:
        self.round = round
        self._offered: Any = None
        self._depth = 0
        self._tensors: dict[str, Tensor] = {}
        self._sizes: list[int] = []
        self._bytes = 0
        self._partial = False
        self._training = True
        self._steps: list[dict[str, Any]] = []
        self._rates: list[float] = []
        self._ends: list[int] = []
        self._groups, self._warm = 0, False

    def offer(self, batch: Any) -> None:
        """Note a batch that the training function has asked for; it counts once it is used."""
        self._offered = batch

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Watch all modules and optimizers of the process."""
        handles = (
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
            register_optimizer_step_pre_hook(self._step),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        outermost = self._depth == 0
        self._depth += 1
        waiting = outermost and self._offered is not None and torch.is_grad_enabled()
        # A normalisation, say, has no weights, and is not the model.
        if waiting and any(parameter.requires_grad for parameter in module.parameters()):
            self._training = module.training
            self._use(next((one for one in args if isinstance(one, Tensor)), None))

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1

    def _step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._offered is not None:
            self._use(None)
        group = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        if not self._steps:
            self._groups, self._warm = len(optimizer.param_groups), bool(optimizer.state)
        self._steps.append({"kind": type(optimizer).__name__, **group})
        self._rates.append(float(group.get("lr", 0.0)))
        self._ends.append(len(self._sizes))

    def _use(self, received: Tensor | None) -> None:
        """Count the batch that was offered last: the model received it, or a step followed it."""
        inputs, labels = _parts(self._offered)
        self._offered = None
        inputs = inputs if received is None else received
        place = len(self._sizes)
        known = inputs if inputs is not None else labels
        self._sizes.append(0 if known is None else len(known))
        self._tensors[f"rng.{place}"] = torch.get_rng_state()
        if labels is not None:
            self._tensors[f"labels.{place}"] = labels.detach().cpu().clone()
        size = 0 if inputs is None else inputs.numel() * inputs.element_size()
        if inputs is None or self._bytes + size > MOST_BYTES:
            self._partial = True
            return
        self._bytes += size
        self._tensors[f"inputs.{place}"] = inputs.detach().cpu().clone()

    def replied(self, reply: Message) -> None:
        """Note the arrays of the reply, before defenses change them."""
        if len(reply.content.array_records) == 1:
            (arrays,) = reply.content.array_records.values()
            for name, value in arrays.to_torch_state_dict().items():
                self._tensors[f"after.{name}"] = value.detach().clone()

    def save(self) -> str:
        """Write what was seen to a file of the truth store, and return the file's name."""
        first = self._steps[0] if self._steps else {}
        used = {str(step["kind"]) for step in self._steps}
        plain = {k: v for k, v in first.items() if isinstance(v, bool | int | float | tuple)}
        seen = Seen(
            round=self.round,
            steps=len(self._steps),
            optimizer=next(iter(used), "unknown").lower() if len(used) < 2 else "several",
            lr=float(first["lr"]) if "lr" in first else None,
            momentum=float(first.get("momentum") or 0.0),
            weight_decay=float(first.get("weight_decay") or 0.0),
            training=self._training,
            sizes=tuple(self._sizes),
            partial=self._partial,
            kind=str(first.get("kind", "")),
            settings={k: v for k, v in plain.items() if k not in UNSTATED},
            rates=tuple(self._rates),
            ends=tuple(self._ends),
            groups=self._groups,
            warm=self._warm,
        )
        name = secrets.token_hex(16)
        write(name, seen, self._tensors)
        return name


_ACTIVE: ContextVar[Watching | None] = ContextVar("fedsim_watching", default=None)
_RUNNING: list[Watching] = []
_LOCK = threading.Lock()


class Watch:
    """The mod that `watch` returns; as a class, so that Ray can send it to its workers."""

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Watch a training message; others pass."""
        if not message.metadata.message_type.startswith("train"):
            return call_next(message, context)
        configs = message.content.config_records.values()
        round = next((one["server-round"] for one in configs if "server-round" in one), 0)
        watching = Watching(int(cast(int, round)))
        token = _ACTIVE.set(watching)
        with _LOCK:
            _RUNNING.append(watching)
        try:
            with watching.hooks():
                reply = call_next(message, context)
        finally:
            with _LOCK:
                _RUNNING.remove(watching)
            _ACTIVE.reset(token)
        if reply.has_error():
            return reply
        watching.replied(reply)
        reply.content[TRUTH_KEY] = ConfigRecord({"name": watching.save()})
        number = context.node_config.get("partition-id")
        if CLIENT_KEY not in reply.content and number is not None:
            reply.content[CLIENT_KEY] = ConfigRecord({"client": int(number)})
        return reply


def watch() -> Watch:
    """Make a Flower mod that sees what a training function really trains on.

        @app.train(mods=[defend(GaussianNoise(sigma=0.01)), watch()])

    List it last, so that it is the innermost. While the training function runs, torch's global
    hooks note the optimizer and its steps, and the inputs that the model receives; labels come from
    `reveal`. All of it is written to a file on the client's machine (`FEDSIM_TRUTH`, by default a
    folder of the user in the temporary folder), from which a server on the same machine scores
    attacks. The reply carries the random name of the file, and nothing of its content.

    Returns:
        A mod for `ClientApp.train`.
    """
    return Watch()


class _Revealing(Generic[Loaded]):
    """A loader whose batches are offered to the watch that is active when it is iterated."""

    def __init__(self, loader: Iterable[Loaded]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Loaded]:
        watching = _watching()
        if watching is None:
            warnings.warn(
                "reveal() outside of a watched training function: add mods=[watch()] to "
                "app.train, as the last one; batches pass and are not noted",
                stacklevel=2,
            )
        for batch in self._loader:
            if watching is not None:
                watching.offer(batch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # before __init__, when unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)


def reveal(loader: Iterable[Loaded]) -> Iterable[Loaded]:
    """Reveal the batches of a training function to its `watch`.

        for x, y in reveal(loader):

    A batch counts once the model has received it or a step has followed it, so that batches which
    were loaded ahead and not used do not count.

    Args:
        loader: Any iterable of batches: pairs of inputs and labels, or dictionaries.

    Returns:
        The same batches, with the loader's length and attributes.
    """
    return _Revealing(loader)


def _watching() -> Watching | None:
    """The watch of this call or, in another thread, the only one of the process."""
    watching = _ACTIVE.get()
    if watching is None and len(_RUNNING) == 1:
        return _RUNNING[0]
    return watching


def _parts(batch: Any) -> tuple[Tensor | None, Tensor | None]:
    """The inputs and the labels of a batch, as far as they can be told."""
    if isinstance(batch, Mapping):
        labels = next((batch[key] for key in LABELS if isinstance(batch.get(key), Tensor)), None)
        others = [one for key, one in batch.items() if key not in LABELS]
    elif isinstance(batch, tuple | list):
        *others, last = batch
        labels = last if isinstance(last, Tensor) and not last.is_floating_point() else None
        if labels is None:
            others = list(batch)
    else:
        labels, others = None, [batch]
    inputs = next((one for one in others if isinstance(one, Tensor)), None)
    return inputs, labels
