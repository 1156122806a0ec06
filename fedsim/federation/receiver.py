"""What the curious server makes of one client's reply: an interception, or why it is refused."""

from collections import Counter
from collections.abc import Mapping
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message
from torch import Tensor

from fedsim.attacking.campaign import Campaign, Clients
from fedsim.errors import ClientError, UpdateRefused
from fedsim.federation.contents import config_record
from fedsim.federation.grid import UPDATE_KEY
from fedsim.federation.identities import Identities
from fedsim.federation.project import WatchedProject
from fedsim.federation.replies import read_update, signed
from fedsim.federation.secure import CLIENTS_KEY
from fedsim.records import Interception, Update
from fedsim.scenario.training import Training


class Receiver:
    """Reads and checks the replies of each round, one after the other.

    Args:
        identities: Which client each node is.
        examples_key: The metric that stands for `num-examples` where a reply has none.

    Attributes:
        taken_part: The number of rounds that each client took part in.
    """

    def __init__(self, identities: Identities, examples_key: str) -> None:
        self.taken_part: Counter[int] = Counter()
        self._identities = identities
        self._examples_key = examples_key
        self._sent: Mapping[int, tuple[ArrayRecord, ConfigRecord]] = {}
        self._arrays: dict[int, dict[str, Tensor]] = {}

    def begin_round(self, sent: Mapping[int, tuple[ArrayRecord, ConfigRecord]]) -> None:
        """Take what each node was sent in this round."""
        self._sent, self._arrays = sent, {}

    def clients(self, reply: Message, training: Training) -> Clients:
        """The clients whose update a reply contains; several if secure aggregation added them up.

        Args:
            reply: The reply.
            training: The scenario's.

        Raises:
            ClientError: The node was not asked, names no client, or names one that another is.
            UpdateRefused: It is a single update, and secure aggregation was agreed on.
        """
        node = reply.metadata.src_node_id
        if node not in self._sent:
            raise UpdateRefused("it was not asked for an update this round")
        self._identities.read(reply, training.clients)
        if training.secure_aggregation and not reply.has_error():
            record = config_record(reply.content, CLIENTS_KEY)
            if record is None or not self._identities.known:  # clients of other Grids may write it
                raise UpdateRefused(
                    "it is a single update, and training.secure_aggregation is set; train on a "
                    "SecureGrid"
                )
            if together := sorted(cast(list[int], record["clients"])):
                return tuple(together)
        return (self._identities.client(node),)

    def interception(
        self,
        round: int,
        reply: Message,
        clients: Clients,
        campaign: Campaign,
        project: WatchedProject | None = None,
    ) -> Interception:
        """The interception of a reply.

        Args:
            round: The number of the round.
            reply: The reply.
            clients: Whose update it contains.
            campaign: The attacks, which say how clients train.
            project: Another project, which says so in place of the campaign.

        Raises:
            ClientError: The reply is an error, or the client's defense has lost its state.
            UpdateRefused: The update is broken.
        """
        sent, config = self._sent[reply.metadata.src_node_id]
        if id(sent) not in self._arrays:  # most strategies send all clients the same
            self._arrays[id(sent)] = dict(sent.to_torch_state_dict())
        before = self._arrays[id(sent)]
        training, optimizer, steps = campaign.scenario.training, campaign.optimizer, None
        if project is not None:  # what clients do not reveal is as it was stated
            training, optimizer = project.training, project.optimizer
        elif not reply.has_error():  # of a client that may not have said its number
            steps = max([campaign.built.steps(client) for client in clients])
        update = read_update(
            reply,
            config,
            training,
            campaign.trained,
            optimizer,
            steps=steps,
            examples_key=self._examples_key,
        )
        update.check(before)
        _check_size(campaign, reply, update, clients)
        self._check_memory(reply, clients)
        return Interception(round, clients, before, update)

    def _check_memory(self, reply: Message, clients: Clients) -> None:
        """Refuse a client whose defense has lost state of a round that it took part in.

        Replies of secure aggregation do not contain that number.
        """
        rounds = signed(reply, "remembers")
        before = self.taken_part[clients[0]]
        if isinstance(rounds, int) and rounds <= before:
            raise ClientError(
                f"its defense keeps state from round to round, and remembers {rounds - 1} of the "
                f"{before} rounds it took part in before: this engine, or a node "
                "that was started anew, does not keep Context.state. Use an engine that does, or "
                "switch the error feedback off"
            )


def _check_size(campaign: Campaign, reply: Message, update: Update, clients: Clients) -> None:
    """Refuse updates of fedsim's clients that claim more examples than their steps hold."""
    size = campaign.scenario.training.batch_size
    steps = [campaign.built.steps(client) for client in clients]
    most = size * sum(steps)
    if config_record(reply.content, UPDATE_KEY) is not None and update.num_examples > most:
        raise UpdateRefused(
            f"it claims {update.num_examples} examples; {max(steps)} steps of {size} hold "
            f"{most}" + (f" for {len(clients)} clients" if len(clients) > 1 else "")
        )
