"""Another Flower project whose clients run under `watch`: its task, and what replies reveal."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message
from torch import nn

from fedsim.adversary import Adversary
from fedsim.attacking.audit import audit_campaign
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.revealed import FOLDER, Revealed
from fedsim.errors import RunFolderError, ScenarioError
from fedsim.federation.watching import TRUTH_KEY
from fedsim.records import Interception, Update
from fedsim.runs.truth import NAME, Seen, TruthFile, discard, store, take
from fedsim.victim import Loss


class WatchedProject:
    """What the server knows of a project that gave its model, and no task.

    Args:
        make: Makes the model, such as its class.
        loss: The training loss; cross-entropy by default.
        adversaries: The adversaries.
        settings: Tables of a scenario, and `out`, the run folder.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        loss: Loss | None,
        adversaries: Sequence[Adversary],
        settings: dict[str, Any],
    ) -> None:
        self._make, self._loss = make, loss
        self._adversaries, self._settings = adversaries, settings

    def begin(self, replies: Iterable[Message], names: Collection[str], clients: int) -> Campaign:
        """Make the campaign, once the replies of the first round are there.

        Args:
            replies: The replies, of which the first one with revealed examples shows the inputs.
            names: Names of the arrays that the clients were sent.
            clients: The number of clients.

        Raises:
            ScenarioError: No client revealed an example, or the model is not theirs.
        """
        first = next((file for file in map(_peek, replies) if file and file.inputs), None)
        if first is None:
            raise ScenarioError(
                "no client of this round revealed an example on this machine: add mods=[watch()] "
                "to the ClientApp's train function, as the last mod, and iterate over "
                "reveal(loader) in it"
            )
        seed = int(self._settings.get("seed", 0))
        example = first.inputs[0][0]
        self.task = Revealed.of(self._make, example, loss=self._loss, clients=clients, seed=seed)
        self.task.fits(names)
        stated = {**_training(first.seen), **self._settings.get("training", {})}
        settings = {**self._settings, "seed": seed, "training": stated}
        campaign = audit_campaign(self._adversaries, self.task, **settings)
        self._folder = campaign.ledger.folder / FOLDER
        return campaign

    def seen(self, reply: Message, one: Interception) -> Interception:
        """Move what a client revealed to the run folder, and correct what its update means.

        Args:
            reply: The client's reply.
            one: The interception that was made of it, with settings as they were stated.
        """
        file = take(_name(reply), self._path(one.round, one.clients[0]))
        if file is None:
            return one
        self.task.add(one.clients[0], one.round, file)
        seen = file.seen
        update = one.update.replace(
            optimizer=seen.optimizer,
            lr=seen.lr,
            momentum=seen.momentum,
            weight_decay=seen.weight_decay,
            steps=max(1, seen.steps),
            num_examples=max(1, sum(seen.sizes)),
        )
        return Interception(one.round, one.clients, one.before, update)

    def refuse(self, reply: Message) -> None:
        """Remove what a client revealed whose reply could not be used."""
        discard(_name(reply))

    def keep(self, round: int, clients: Collection[int]) -> None:
        """Remove what clients that are neither attacked nor recorded revealed in a round."""
        for path in self._folder.glob(f"r{round:04d}-c*.safetensors"):
            if path not in {self._path(round, client) for client in clients}:
                path.unlink()

    def _path(self, round: int, client: int) -> Path:
        nothing = Update(tensors={}, kind="weights")
        return self._folder / f"{Interception(round, (client,), {}, nothing).victim}.safetensors"


def _name(reply: Message) -> object:
    if reply.has_error() or TRUTH_KEY not in reply.content.config_records:
        return None
    return reply.content.config_records[TRUTH_KEY].get("name")


def _peek(reply: Message) -> TruthFile | None:
    """What a client revealed, left where it is; None if it is not on this machine."""
    name = _name(reply)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return None
    try:
        return TruthFile(store() / f"{name}.safetensors")
    except RunFolderError:
        return None


def _training(seen: Seen) -> dict[str, Any]:
    """The `[training]` table that one client's training shows."""
    found: dict[str, Any] = {"optimizer": seen.optimizer}
    if seen.steps:
        found |= {
            "algorithm": "fedavg",
            "local_steps": seen.steps,
            "momentum": seen.momentum,
            "weight_decay": seen.weight_decay,
        }
    if seen.lr:
        found["lr"] = seen.lr
    if seen.sizes:
        found["batch_size"] = max(1, max(seen.sizes))
    return found
