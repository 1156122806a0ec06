"""The engine that runs clients and attacks one after the other in this process."""

from collections.abc import Iterator, Sequence

from flwr.app import Message

from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.executor import InlineExecutor, Observer
from fedsim.engine import Engine
from fedsim.federation import federate
from fedsim.federation.client import answers, app
from fedsim.federation.grid import LocalGrid, answer, private
from fedsim.federation.session import share, told
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import BuiltRun


class InlineGrid(LocalGrid):
    """A Grid whose clients answer one after the other.

    Args:
        clients: The number of clients.
        client_app: The ClientApp that answers, fedsim's by default.
    """

    def __init__(self, clients: int, client_app: object = app) -> None:
        super().__init__(clients)
        self._app = client_app
        self.seeded = client_app is app

    def exchange(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Replies in the order of the messages, each made when it is taken."""
        contexts = [self.contexts[message.metadata.dst_node_id] for message in messages]
        if self._app is app:
            yield from answers(messages, contexts)
            return
        for message, context in zip(messages, contexts, strict=True):
            yield answer(self._app, private(message), context)  # type: ignore[arg-type]


class InlineEngine(Engine):
    """Runs everything in one process, attacks at the end of each round."""

    def run(self, built: BuiltRun, ledger: Ledger, point: str, observer: Observer) -> None:
        """Train, intercept and attack."""
        share(built)
        runner = AttackRunner(built, point)
        grid = InlineGrid(built.scenario.training.clients)
        with told(lambda text: observer("caution", text=text)):
            federate.run(built, ledger, grid, InlineExecutor(runner, observer), point, observer)
