"""Another Flower project whose clients run under `watch`: its task, and what replies reveal."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message
from torch import Tensor, nn

from fedsim.adversary import Adversary
from fedsim.attacking.audit import OUT, audit_campaign, stated_table
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.classifier import check_arrays, firsts, seen_range
from fedsim.attacking.modalities import KINDS, revealed_task
from fedsim.attacking.revealed import FOLDER
from fedsim.errors import RunFolderError, ScenarioError, UpdateRefused
from fedsim.federation.offered import tensors_in
from fedsim.federation.replies import signed
from fedsim.federation.watching import TRUTH_KEY, digest
from fedsim.knowledge import Knowledge
from fedsim.records import Interception, Update
from fedsim.runs.tables import holds_run
from fedsim.runs.truth import Seen, TruthFile
from fedsim.runs.truth_store import VARIABLE, discard, find, move
from fedsim.scenario import Scenario
from fedsim.scenario.training import Training
from fedsim.seeds import isolated
from fedsim.victim import Loss

MOST_BYTES = 2 * 2**30
"""Bytes of a run's truth files; of further ones labels and counts are kept, without inputs."""

HOW = (
    "add mods=[watch()] to the ClientApp's train function, as the last mod, and iterate over "
    "reveal(loader) in it; with clients on other machines, give example=next(iter(loader)); if "
    f"{VARIABLE} is set, set it for the clients and for the server alike"
)


class WatchedProject:
    """What the server knows of a project that gave its model, and no task.

    Args:
        make: Makes the model, such as its class.
        loss: The training loss; cross-entropy by default.
        example: A batch of inputs and labels such as the clients', if none of them reveals one.
        adversaries: The adversaries.
        settings: Tables of a scenario, and `out`, the run folder.
        attacks: When attacks are made and who hears of them, as `audit_campaign` takes it.

    Raises:
        FedsimError: The settings are wrong, no input suits the adversaries, or the run folder is
            in use.

    Attributes:
        training: The clients' training as far as it was stated.
        optimizer: Their optimizer as stated, or "unknown".
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        loss: Loss | None,
        example: Sequence[Any] | Mapping[str, Any] | None,
        adversaries: Sequence[Adversary],
        settings: dict[str, Any],
        attacks: Mapping[str, Any] | None = None,
    ) -> None:
        self._attacks = attacks or {}
        self._make, self._loss = make, loss
        self._adversaries, self._settings = adversaries, settings
        tables = {key: value for key, value in settings.items() if key != "out"}
        table, self.optimizer = stated_table(tables, clients=UNCOUNTED)
        scenario = Scenario.parse(table)
        self._seed = scenario.seed
        self.training = scenario.training
        if self.training.secure_aggregation:
            raise ScenarioError(
                "training.secure_aggregation is a setting of scenarios, whose clients mask their "
                "updates: the strategies of another Flower project receive single updates. Leave "
                "it out, or measure a sum with a scenario"
            )
        self._needs_history = Knowledge.HISTORY in scenario.knowledge()
        holds_run(Path(settings.get("out", OUT)))
        for one in adversaries:
            unsuited = [[*one.unsuited(kind.spec_type, kind.name)] for kind in KINDS]
            if all(unsuited):
                raise ScenarioError("\n".join(unsuited[0]))
        self._example: Tensor | None = None if example is None else _first(example)
        self._round, self._digests = 0, dict[int, str]()
        self._files: dict[int, TruthFile | None] = {}
        self._refused: list[object] = []
        self._bytes = 0
        self._asked = self._warned = False

    def sends(self, round: int, sent: Mapping[int, ArrayRecord]) -> None:
        """Note what each node is sent in a round.

        Raises:
            ScenarioError: The model has other arrays.
        """
        if not self._asked:
            with isolated(self._seed, "model"):
                try:
                    module = self._make()
                except Exception as error:
                    raise ScenarioError(f"model: it cannot be made: {error}") from error
            arrays = {name: one for record in sent.values() for name, one in record.items()}
            check_arrays(module, {name: tuple(one.shape) for name, one in arrays.items()})
            self._asked = True
        known = {id(record): record for record in sent.values()}
        digests = {key: digest(record) for key, record in known.items()}
        self._round, self._files = round, {}
        self._digests = {node: digests[id(record)] for node, record in sent.items()}

    def begin(self, replies: Sequence[Message], clients: int) -> Campaign | None:
        """Make the campaign, once replies of a round are there.

        Args:
            replies: The replies, of which the first one with revealed examples shows the inputs.
            clients: The number of clients.

        Returns:
            The campaign; None, with a warning the first time, if no client revealed an example.

        Raises:
            FedsimError: The model cannot take the inputs, or the settings cannot be used.
        """
        try:
            return self._begin(replies, clients)
        except BaseException:
            for reply in replies:
                self.refuse(reply)
            raise

    def _begin(self, replies: Sequence[Message], clients: int) -> Campaign | None:
        found = [file for file in map(self._revealed, replies) if file]
        example = next((batch[0] for batch in firsts(found)), self._example)
        if example is None:
            if not self._warned:
                self._warned = True
                failed = bool(replies) and all(reply.has_error() for reply in replies)
                what = (
                    f"all clients of round {self._round} failed"
                    if failed
                    else f"no client of round {self._round} revealed an example on this machine"
                )
                how = "" if failed else f": {HOW}"
                warnings.warn(
                    f"{what}, and without an example nothing is attacked{how}. Waiting for a later "
                    "round",
                    stacklevel=2,
                )
            for reply in replies:
                self.refuse(reply)
            return None
        self.task = revealed_task(
            self._make,
            example,
            loss=self._loss,
            clients=clients,
            seed=self._seed,
            input_range=seen_range(example, firsts(found)),
        )
        stated = self._settings.get("training", {})
        seen = _training([file.seen for file in found])
        if "local_epochs" in stated:
            seen.pop("local_steps", None)
        observed = [f"training.{key}" for key in seen if key not in stated and key != "optimizer"]
        settings = {**self._settings, "seed": self._seed, "training": {**seen, **stated}}
        more = {**self._attacks, **settings}
        campaign = audit_campaign(self._adversaries, self.task, observed=observed, **more)
        self._folder = campaign.ledger.folder / FOLDER
        return campaign

    def seen(self, reply: Message, one: Interception) -> Interception:
        """Move what a client revealed to the run folder, and correct what its update means.

        Args:
            reply: The client's reply.
            one: The interception that was made of it, with settings as they were stated.
        """
        file = self._revealed(reply)
        if file is None:
            return one
        update = _corrected(one.update, file.seen, self.training)
        try:
            update.check(one.before)
        except UpdateRefused as error:
            self._disregard(reply, f"what it revealed cannot be: {error}")
            return one
        to = self._path(one.round, one.clients[0])
        fits = self._bytes + file.path.stat().st_size <= MOST_BYTES
        seen = file.seen.model_copy(update={"sent": _sent(reply, one.update, file)})
        moved = move(file, to, seen, inputs=fits)
        self._bytes += moved.path.stat().st_size
        self.task.add(one.clients[0], one.round, moved)
        return Interception(one.round, one.clients, one.before, update)

    def refuse(self, reply: Message) -> None:
        """Remove what a client revealed whose reply could not be used."""
        self._refused.append(_name(reply))
        self._discard()

    def keep(self, campaign: Campaign, round: int) -> None:
        """Remove what clients that are neither attacked nor recorded revealed in a round.

        With `HISTORY`, what later attacks need is not known before the end (`close`).
        """
        self._discard()
        if not self._needs_history:
            self._prune(campaign, round)

    def close(self, campaign: Campaign) -> None:
        """Remove what no attack of the run has needed."""
        if self._needs_history:
            for round in {int(path.name[1:].partition("-")[0]) for path in self._every("*")}:
                self._prune(campaign, round)

    def _prune(self, campaign: Campaign, round: int) -> None:
        kept = {self._path(round, client) for client in campaign.used(round)}
        for path in self._every(f"{round:04d}"):
            if path not in kept:
                self._bytes -= path.stat().st_size
                path.unlink()

    def _every(self, round: str) -> list[Path]:
        return [*self._folder.glob(f"r{round}-c*.safetensors")]

    def _discard(self) -> None:
        for name in self._refused:
            discard(name)
        self._refused = []

    def _path(self, round: int, client: int) -> Path:
        nothing = Update(tensors={}, kind="weights")
        return self._folder / f"{Interception(round, (client,), {}, nothing).victim}.safetensors"

    def _revealed(self, reply: Message) -> TruthFile | None:
        """What a client revealed, left where it is; None if that is not there or cannot be used."""
        node = reply.metadata.src_node_id
        if node not in self._files:
            self._files[node] = self._found(reply, node)
        return self._files[node]

    def _found(self, reply: Message, node: int) -> TruthFile | None:
        try:
            file = find(_name(reply))
        except RunFolderError as error:
            self._disregard(reply, str(error))
            return None
        if file is None:
            return None
        seen, digests = file.seen, ("", self._digests.get(node))
        if seen.node != node or seen.round not in (0, self._round) or seen.received not in digests:
            self._disregard(reply, "its file is of another client, round or model")
            return None
        return file

    def _disregard(self, reply: Message, why: str) -> None:
        """Treat what a client revealed as absent. Its file goes once the round's are taken."""
        self._refused.append(_name(reply))
        self._files[reply.metadata.src_node_id] = None
        number = signed(reply, "client")
        number = number if isinstance(number, int) else reply.metadata.src_node_id
        warnings.warn(
            f"client {number}, round {self._round}: {why}. Attacks on it cannot be scored",
            stacklevel=2,
        )


UNCOUNTED = 1_000_000
"""The number of clients that settings are checked for before it is known."""


def _first(example: Sequence[Any] | Mapping[str, Any]) -> Tensor:
    """The first input of a batch."""
    inputs: Any = example[0] if isinstance(example, tuple | list) and example else example
    if isinstance(example, Mapping):
        inputs = next(tensors_in(example), None)
    if not isinstance(inputs, Tensor) or inputs.dim() < 1 or not len(inputs):
        raise ScenarioError(
            "example: expected a batch of inputs (B, ...) and labels, or a dictionary of them, as "
            "next(iter(loader)) gives"
        )
    return inputs[0]


def _name(reply: Message) -> object:
    if reply.has_error() or TRUTH_KEY not in reply.content.config_records:
        return None
    return reply.content.config_records[TRUTH_KEY].get("name")


def _sent(reply: Message, update: Update, file: TruthFile) -> str:
    """Whether an update is what its training function returned."""
    after = file.after
    same = all(
        name in after and value.equal(after[name].to(value.dtype))
        for name, value in {**update.tensors, **update.buffers}.items()
    )
    if same and update.kind == "weights":
        return "as returned"
    return "defended" if signed(reply, "defended") else "changed"


def _corrected(update: Update, seen: Seen, stated: Training) -> Update:
    """An update with the settings that were seen; those that were not stay as they were stated."""
    changes: dict[str, Any] = {}
    if seen.steps:
        changes = {key: getattr(seen, key) for key in OBSERVED}
        changes["lr"] = seen.lr or None  # rates that are all 0 say nothing of the gradient
    if total := sum(seen.sizes):
        changes["num_examples"] = total
    elif seen.steps and "batch_size" in stated.model_fields_set and stated.local_epochs is None:
        changes["num_examples"] = stated.batch_size * seen.steps
    return update.replace(**changes)


OBSERVED = ("optimizer", "lr", "momentum", "weight_decay", "steps")
"""Fields of an update that its client's steps show."""


def _training(every: Iterable[Seen]) -> dict[str, Any]:
    """The `[training]` table that clients' training shows: what they have in common."""
    tables = [_table(seen) for seen in every if seen.steps or seen.sizes]
    first = tables[0] if tables else {}
    return {k: v for k, v in first.items() if all(table.get(k) == v for table in tables)}


def _table(seen: Seen) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if seen.steps:
        found = {
            "optimizer": seen.optimizer,
            "algorithm": "fedavg",
            "local_steps": seen.steps,
        }
    if seen.steps and seen.uniform:
        found |= {"momentum": seen.momentum, "weight_decay": seen.weight_decay}
    if seen.steps and seen.lr:
        found["lr"] = seen.lr
    if seen.sizes:
        found["batch_size"] = max(1, *seen.sizes)
    return found
