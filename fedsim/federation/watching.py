"""Watching the training function of another Flower project: what it really trained on.

    @app.train(mods=[watch()])
    def train(message, context):
        for x, y in reveal(loader):
            ...

`watch` sees the optimizer's steps and the model's inputs by torch's hooks, and `reveal` the labels.
Both lie in a file of the client's own process (`fedsim.runs.truth`), and not in the reply.
"""

import hashlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from fedsim.errors import ClientError, RunFolderError
from fedsim.federation.grid import CLIENT_KEY
from fedsim.federation.training_hooks import Watching
from fedsim.runs.truth import Origin

TRUTH_KEY = "fedsim.truth"
"""The record of a reply that holds the name of the client's file in the truth store."""

Loaded = TypeVar("Loaded")

_ACTIVE: ContextVar[Watching | None] = ContextVar("fedsim_watching", default=None)
_RUNNING: list[Watching] = []
_LOCK = threading.Lock()


class Watch:
    """The mod that `watch` returns; as a class, so that Ray can send it to its workers."""

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Watch a training message; others pass, and those that another watch sees already."""
        if not message.metadata.message_type.startswith("train") or _ACTIVE.get() is not None:
            return call_next(message, context)
        watching = Watching(_origin(message))
        token = _ACTIVE.set(watching)
        with _LOCK:
            _RUNNING.append(watching)
        try:
            with watching.hooks():
                reply = call_next(message, context)
        except KeyError as error:
            if "fitins." not in str(error):
                raise
            raise ClientError(
                "this ClientApp has a client_fn of Flower's legacy API, which a strategy of "
                "flwr.serverapp cannot ask: move what fit() does to a function "
                "train(message, context) under @app.train(mods=[watch()])"
            ) from error
        finally:
            with _LOCK:
                _RUNNING.remove(watching)
            _ACTIVE.reset(token)
        if reply.has_error():
            return reply
        if (signed := reply.content.config_records.get(CLIENT_KEY)) and "defended" in signed:
            raise ClientError(
                "watch() is listed before defend(), and sees weights that are defended already: "
                "list it last, mods=[defend(...), watch()]"
            )
        if len(reply.content.array_records) == 1:
            (arrays,) = reply.content.array_records.values()
            watching.replied(arrays)
        try:
            reply.content[TRUTH_KEY] = ConfigRecord({"name": watching.save()})
        except RunFolderError as error:  # training goes on as it would without a watch
            warnings.warn(f"attacks on this update cannot be scored: {error}", stacklevel=2)
        number = context.node_config.get("partition-id")
        if CLIENT_KEY not in reply.content and number is not None:
            reply.content[CLIENT_KEY] = ConfigRecord({"client": int(number)})
        return reply


def _origin(message: Message) -> Origin:
    """What a message tells of whose training it asks for."""
    configs = message.content.config_records.values()
    round = next((one["server-round"] for one in configs if "server-round" in one), 0)
    mu = next((one["proximal-mu"] for one in configs if "proximal-mu" in one), 0.0)
    records = [*message.content.array_records.values()]
    return Origin(
        round=int(cast(int, round)),
        node=message.metadata.dst_node_id,
        received=digest(records[0]) if len(records) == 1 else "",
        proximal_mu=mu if isinstance(mu, int | float) and 0 <= mu <= 1e6 else 0.0,
    )


def digest(arrays: ArrayRecord) -> str:
    """A digest of arrays as they are sent, the same on the server and on a client."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name} {array.dtype} {list(array.shape)} {len(array.data)}".encode())
        found.update(array.data)
    return found.hexdigest()


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

    def __init__(self, loader: Iterable[Loaded], labels: int | str | None) -> None:
        self._loader, self._labels = loader, labels

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
                watching.offer(batch, self._labels)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # before __init__, when unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)


def reveal(loader: Iterable[Loaded], *, labels: int | str | None = None) -> Iterable[Loaded]:
    """Reveal the batches of a training function to its `watch`.

        for x, y in reveal(loader):

    A batch counts once a backward pass has followed the model's forward pass, so that batches that
    were loaded ahead, skipped or used for validation do not count.

    Args:
        loader: Any iterable of batches: pairs of inputs and labels, longer tuples, or dictionaries.
        labels: Index or key of the labels in a batch; by default the second of two parts, or the
            key "labels", "label", "target" or "y". Of three parts or more, it must be named.

    Returns:
        The same batches, with the loader's length and attributes.

    Raises:
        ScenarioError: When it is iterated: a batch has no part of that index or key.
    """
    return _Revealing(loader, labels)


def _watching() -> Watching | None:
    """The watch of this call or, in another thread, the only one of the process."""
    watching = _ACTIVE.get()
    if watching is None and len(_RUNNING) == 1:
        return _RUNNING[0]
    return watching
