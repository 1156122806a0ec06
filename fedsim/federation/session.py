"""A process's run and model for its clients, kept between two messages of the server.

Flower calls a ClientApp with a message and a context alone, so the built run is looked up by the
scenario's text, which every message carries.
"""

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import Tensor

from fedsim.defense import Defense, Training
from fedsim.federation.arrays import GROUP_BYTES, content_of
from fedsim.parts import is_pure, parts, training_mode
from fedsim.records import Batch, Update
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.scenario.devices import device_of
from fedsim.seeds import deterministic, isolated
from fedsim.tasks.classification import cross_entropy
from fedsim.training.local import client_training, gradients_in_turn
from fedsim.training.together import train_together

KEPT = 2
"""Sessions that a process keeps: a run may begin before the last message of another came."""


class Session:
    """A built run with one model on this process's device, used by all clients in turn.

    Attributes:
        built: The run.
        module: The model.
        finished: By round and client, the update and loss of clients that have not replied yet, or
            why they have none.
    """

    def __init__(self, built: BuiltRun) -> None:
        self.built, self._told = built, set[str]()
        deterministic(built.scenario.engine.deterministic)
        self.module = built.task.module().to(device_of(built.scenario.engine, "client"))
        self._initial = {key: value.clone() for key, value in self.module.state_dict().items()}
        self._sent: list[object] = []
        self._arrays: dict[str, Tensor] = {}
        self._loaded: list[tuple[list[str], list[Tensor]]] = []
        self.finished: dict[tuple[int, int], tuple[Update, float] | BaseException] = {}

    def warn(self, text: str) -> None:
        """Warn of something in the training of this process, once."""
        if text not in self._told:
            self._told.add(text)
            _LISTENERS[-1](text)

    def train_together(
        self,
        before: Mapping[str, Tensor],
        round: int,
        clients: Sequence[int],
        *,
        lr: float,
        proximal_mu: float,
    ) -> list[tuple[Update, float]]:
        """Train clients at once.

        Args:
            before: The arrays that the server sent, which the model holds.
            round: The round.
            clients: The clients.
            lr: The learning rate of the round.
            proximal_mu: The weight of FedProx's term.

        Returns:
            The update, before any defense, and the mean training loss of each client.
        """
        built, task = self.built, self.built.task
        with isolated(built.scenario.seed, "clients", round):
            batches = [list(built.batches(client, round)) for client in clients]
            where = round, clients[0]
            return train_together(
                client_training(built, self.module, where, (), lr=lr, device="cpu"),
                batches,
                before,
                loss=task.loss,
                trained=task.trained(self.module),
                reduction=task.reduction,
                proximal_mu=proximal_mu,
                warn=self.warn,
            )

    def is_pure(self, clients: Sequence[int]) -> bool:
        """Whether clients' training is known to change nothing and to draw no random number.

        Then nothing has to be seeded, loaded or restored between two of them.

        Args:
            clients: The clients.
        """
        built = self.built
        return (
            built.scenario.training.algorithm == "fedsgd"
            and built.task.loss is cross_entropy
            and not any(
                type(defense).prepare is not Defense.prepare and any(map(defense.guards, clients))
                for defense in built.defenses
            )
            and is_pure(self.module)
        )

    def train_in_turn(
        self, round: int, clients: Sequence[int], *, lr: float
    ) -> list[tuple[Update, float] | None]:
        """Train clients whose training `is_pure`, with nothing between two of them.

        Args:
            round: The round.
            clients: The clients.
            lr: The learning rate of the round.

        Returns:
            The update, before any defense, and the training loss of the first clients, as many as
            fit into a group's memory; None for a client that fails, and has to be trained alone.
        """
        built, task = self.built, self.built.task
        device = device_of(built.scenario.engine, "client")
        drawn = [*self._drawn([(round, client) for client in clients])]
        with isolated(built.scenario.seed, "clients", round):  # so that a GPU computes as always
            training_mode(self.module)
            made = iter(
                gradients_in_turn(
                    client_training(built, self.module, (round, clients[0]), (), lr=lr),
                    [[batch.to(device) for batch in own] for own in drawn if own is not None],
                    loss=task.loss,
                    trained=task.trained(self.module),
                    reduction=task.reduction,
                )
            )
            return [None if own is None else next(made) for own in drawn]

    def prepare(
        self, places: Sequence[tuple[int, int]], configs: Sequence[ConfigRecord]
    ) -> list[Training | None]:
        """Prepare the trainings of clients before the first of them is trained, which is faster.

        Args:
            places: Round and client of each.
            configs: What each was sent beside the arrays.

        Returns:
            The training of the first clients, as many as fit into a group's memory; None for a
            client that has none.
        """
        found: list[Training | None] = []
        for place, config, batches in zip(places, configs, self._drawn(places), strict=False):
            training = None
            if batches is not None:
                with contextlib.suppress(Exception, SystemExit):  # raised where it is trained
                    lr = self.rates(config)[0]
                    training = client_training(self.built, self.module, place, batches, lr=lr)
            found.append(training)
        return found

    def _drawn(self, places: Sequence[tuple[int, int]]) -> Iterator[list[Batch] | None]:
        """The batches of the first clients, as many as fit into a group's memory.

        None for a client that has none, which is an error that is raised where it is trained.
        """
        taken = 0
        for round, client in places:
            if taken >= GROUP_BYTES:
                return
            batches = None
            with contextlib.suppress(Exception, SystemExit):
                found = list(self.built.batches(client, round))
                taken += sum(batch.inputs.nbytes for batch in found)
                batches = found
            yield batches

    def rates(self, config: ConfigRecord) -> tuple[float, float]:
        """The learning rate of a round, and the weight of FedProx's term, as the server sent them.

        Raises:
            ValueError: One of them is no number.
        """
        lr = config.get("lr", self.built.scenario.training.lr)
        return float(cast(float, lr)), float(cast(float, config.get("proximal-mu", 0.0)))

    def load(self, record: ArrayRecord, *, again: bool = False) -> dict[str, Tensor]:
        """Load the global model into `module`.

        All clients of a round get the same arrays, so that they are decoded once a round.

        Args:
            record: The arrays that the server sent.
            again: Whether it is the record that was loaded last, unchanged since.

        Returns:
            The arrays as tensors by name, shared between the clients: not to be changed.
        """
        if not again:
            sent = [content_of(array) for array in record.values()]
            same = list(record) == list(self._arrays)
            if not same or not all(map(operator.is_, sent, self._sent)):
                self._sent, self._arrays = sent, dict(record.to_torch_state_dict())
                rest = {name: v for name, v in self._initial.items() if name not in self._arrays}
                # In this order: of tied weights, what was sent counts.
                self._loaded = [([*one], [*one.values()]) for one in (rest, self._arrays) if one]
        held = parts(self.module).state
        with torch.no_grad():
            for names, values in self._loaded:
                torch._foreach_copy_([held[name] for name in names], values)
        return dict(self._arrays)


_SESSIONS: dict[str, Session] = {}
"""The latest sessions, by the text of their scenarios, oldest first."""

_LISTENERS: list[Callable[[str], object]] = [warnings.warn]
"""Functions that take a warning about the training; the last one is called (see `told`)."""


@contextlib.contextmanager
def told(listener: Callable[[str], object]) -> Iterator[None]:
    """Pass warnings of the training within to a function, and not to Python's `warnings`."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.pop()


def share(built: BuiltRun) -> None:
    """Let the clients of this process use a run that is built already."""
    _keep(built.scenario.model_dump_json(), built)


def session_of(text: str) -> Session:
    """The session of a scenario, which is built if this process does not have it.

    Args:
        text: The scenario as JSON, as the server sends it.
    """
    if text not in _SESSIONS:
        before = next(reversed(_SESSIONS.values()), None)
        after = before.built if before else None
        # Clients attack nobody: no adversary is made, nor a process for it.
        _keep(text, build(Scenario.model_validate_json(text), after=after, adversaries=()))
    return _SESSIONS[text]


def _keep(text: str, built: BuiltRun) -> None:
    _SESSIONS.pop(text, None)
    _SESSIONS[text] = Session(built)
    for oldest in list(_SESSIONS)[:-KEPT]:
        del _SESSIONS[oldest]
