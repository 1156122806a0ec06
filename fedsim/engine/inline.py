"""The inline engine: clients and attacks one after the other, in this process."""

from collections.abc import Iterator, Sequence

from flwr.app import Message

from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.campaign import InlineExecutor, Observer
from fedsim.engine.engine import Engine
from fedsim.federation import federate
from fedsim.federation.client import app
from fedsim.federation.grid import LocalGrid, answer
from fedsim.federation.session import share
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import BuiltRun

__all__ = ["InlineEngine", "InlineGrid"]


class InlineGrid(LocalGrid):
    """Clients answer one after the other. client_app: anyone's; fedsim's where left out."""

    def __init__(self, clients: int, client_app: object = app) -> None:
        super().__init__(clients)
        self._app = client_app

    def exchange(self, messages: Sequence[Message]) -> Iterator[Message]:
        for message in messages:
            context = self.contexts[message.metadata.dst_node_id]
            yield answer(self._app, message, context)  # type: ignore[arg-type]


class InlineEngine(Engine):
    """Everything in one process; attacks run at the end of each round."""

    def run(self, built: BuiltRun, ledger: Ledger, point: str, observer: Observer) -> None:
        share(built)
        runner = AttackRunner(built, point)
        grid = InlineGrid(built.scenario.training.clients)
        federate.run(built, ledger, grid, InlineExecutor(runner, observer), point, observer)
