"""Which client each node is: known to fedsim's Grids, and said by the clients on Flower's own."""

from collections.abc import Collection, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.errors import ClientError
from fedsim.federation.replies import signed
from fedsim.federation.wrappers import clients_of


class Identities:
    """Client numbers by node.

    Attributes:
        known: Whether the Grid knows them, so that no client can say another number.
    """

    def __init__(self) -> None:
        self.known = False
        self._clients: Mapping[int, int] = {}
        self._listed: Collection[int] = ()

    def __len__(self) -> int:
        return len(self._clients)

    def begin_round(self, grid: Grid, stated: int) -> None:
        """Read the Grid's nodes.

        Args:
            grid: Reaches the nodes.
            stated: The number of clients that was stated.
        """
        self.known = hasattr(grid, "clients")
        if self.known or not self._clients:
            self._clients = ranks = clients_of(grid)
            if not self.known:  # beyond every true number until a node has named its client
                total = max(len(ranks), stated)
                self._clients = {node: total + rank for node, rank in ranks.items()}
        if not self.known:
            self._listed = {*grid.get_node_ids()}

    def client(self, node: int) -> int:
        """The number of a node's client; the node's id if that is not known yet."""
        return self._clients.get(node, node)

    def read(self, reply: Message, total: int) -> None:
        """Read the client's number from its reply if the Grid does not know clients.

        A node that was started anew may have another id. It is the client that it names once the
        Grid no longer lists the node that named this client before.

        Args:
            reply: The client's reply.
            total: The number of clients.

        Raises:
            ClientError: The reply names no client, or one that another node is.
        """
        if self.known or reply.has_error():
            return
        number, node = signed(reply, "client"), reply.metadata.src_node_id
        if not isinstance(number, int) or not 0 <= number < total:
            raise ClientError(
                f"its reply does not name its client (found {number!r}, expected 0 to "
                f"{total - 1}), so attacks on it cannot be scored. Add the mod defend() to the "
                "ClientApp's train function"
            )
        before = [n for n, other in self._clients.items() if other == number and n != node]
        if any(n in self._listed for n in before):
            raise ClientError(f"it names client {number}, as another node does")
        kept = {n: other for n, other in self._clients.items() if n not in before}
        self._clients = {**kept, node: number}
