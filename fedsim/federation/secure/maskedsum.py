"""The server's part of "masked-sum", an emulation of secure aggregation.

Messages, sums and the handling of dropouts are those of the protocols of Bonawitz et al. (2017)
and Bell et al. (2020). It is an emulation because pairs of clients derive their shared secrets from
the run's seed, and not by a key exchange: runs repeat, but a server that read the seed could unmask
every client. There is no second mask either, which protects a client whose vector arrives after it
was counted as dropped; this server discards such a vector.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsim.errors import ClientError, UpdateRefused
from fedsim.federation.grid import UPDATE_KEY, with_content
from fedsim.federation.secure import MASKED_KEY, ROUND_KEY, Round
from fedsim.federation.secure.masking import Masked, Vector, connected, decode, neighbours
from fedsim.records import MOST


@dataclass(frozen=True, slots=True, eq=False)
class Mean:
    """The result of a protocol.

    Attributes:
        nodes: The nodes whose updates are in it.
        values: Means, weighted by examples, of the training loss and of the arrays by sorted name,
            of shape (1 + size,), float64.
        examples: The number of examples of all nodes.
        meaning: The record that describes the arrays.
    """

    nodes: tuple[int, ...]
    values: Vector
    examples: int
    meaning: ConfigRecord


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The clients and the parameters of the protocol in one round.

    Attributes:
        grid: Reaches the clients.
        messages: The round's messages by node.
        clients: The client of each node.
        failed: Receives, by node, why a client is not in the sum.
        seed: The seed of the run.
        round: The number of the round.
        size: The number of values of an update.
        timeout: Seconds that clients have for an answer, None for no limit.
        most: The largest number of examples of an update.
    """

    grid: Grid
    messages: Mapping[int, Message]
    clients: Mapping[int, int]
    failed: dict[int, str]
    seed: int
    round: int
    size: int
    timeout: float | None
    most: int


def masked_sum(terms: Terms) -> Mean:
    """Run the protocol for one round.

    Raises:
        ClientError: The sum would reveal single updates, or is wrong.
    """
    size, messages, failed = terms.size, terms.messages, terms.failed
    node_of = {terms.clients[node]: node for node in messages}
    graph = neighbours(list(node_of))
    rounds = {
        client: Round(terms.seed, terms.round, client, len(graph), partners, size + 1)
        for client, partners in graph.items()
    }
    requests = [with_round(messages[node_of[client]], rounds[client]) for client in graph]
    masked: dict[int, Masked] = {}
    meanings: dict[int, ConfigRecord] = {}
    for reply in terms.grid.send_and_receive(requests, timeout=terms.timeout):
        node = reply.metadata.src_node_id
        try:
            vector = _read(reply, "masked", size + 1)
            record = reply.content.config_records.get(UPDATE_KEY)
            if record is None:
                raise UpdateRefused("it does not say what its masked update means")
            check_steps(record.get("steps", 1))
            meanings[node], masked[terms.clients[node]] = record, vector
        except ClientError as reason:
            failed[node] = str(reason)
    meaning = agreed(meanings, failed)
    left = {client for client in masked if node_of[client] not in failed}
    total = np.zeros(size + 1, dtype=np.uint64)
    for client in _unmasked(terms, node_of, rounds, left, total):
        total += masked[client]
    mean = decode(total)
    examples = int(np.rint(mean[0]))
    if abs(mean[0] - examples) > 1e-3 or examples < len(left):
        raise ClientError(
            f"the clients' vectors add up to {mean[0]:.6g} examples, so one of them did not send "
            "a masked update; the sum does not show which one"
        )
    nodes = tuple(node_of[client] for client in sorted(left))
    return Mean(nodes, mean[1:] / examples, examples, meaning)


def _unmasked(
    terms: Terms,
    node_of: Mapping[int, int],
    rounds: Mapping[int, Round],
    left: set[int],
    total: Masked,
) -> list[int]:
    """Subtract from `total` the masks that remaining clients share with those that dropped out.

    A client that does not send its masks counts as dropped out, and the others are asked again.

    Returns:
        The clients that remain.
    """
    graph = {client: round.partners for client, round in rounds.items()}
    while True:
        if len(left) < 2:
            raise ClientError(
                f"{len(left)} of {len(graph)} clients are left: the sum of one update is that "
                "update, so this round is not aggregated"
            )
        if not connected(graph, left):
            raise ClientError(
                f"{len(left)} of {len(graph)} clients are left, in groups that share no masks: "
                "each group's sum would show, so this round is not aggregated"
            )
        requests, masks = [], []
        for client in sorted(left):
            if lost := set(graph[client]) - left:
                query = replace(rounds[client], partners=tuple(sorted(lost)))
                content = RecordDict({ROUND_KEY: query.record()})
                requests.append(Message(content, node_of[client], MessageType.QUERY))
        missing = {request.metadata.dst_node_id for request in requests}
        replies = terms.grid.send_and_receive(requests, timeout=terms.timeout) if requests else []
        for reply in replies:
            try:
                masks.append(_read(reply, "masks", len(total)))
                missing.discard(reply.metadata.src_node_id)
            except ClientError as reason:
                terms.failed[reply.metadata.src_node_id] = str(reason)
        if not missing:
            for each in masks:
                total -= each
            return sorted(left)
        left -= {client for client in left if node_of[client] in missing}


def check_steps(steps: object) -> None:
    """Raise `UpdateRefused` for a number of steps that would cost the whole sum."""
    if not isinstance(steps, int) or not 1 <= steps <= MOST:
        raise UpdateRefused(f"it states {steps!r:.80} local steps, expected 1 to {MOST}")


def agreed(meanings: Mapping[int, ConfigRecord], failed: dict[int, str]) -> ConfigRecord:
    """The description of arrays that most clients give; the other clients are added to `failed`.

    Arrays of different kinds (a gradient and weights, say) cannot be added up. Numbers of local
    steps may differ, and the largest is returned.
    """
    if not meanings:
        return ConfigRecord()
    alike = {
        node: repr(sorted((k, v) for k, v in r.items() if k != "steps"))
        for node, r in meanings.items()
    }
    ((most, _),) = Counter(alike.values()).most_common(1)
    kept = [node for node in meanings if alike[node] == most]
    for node in meanings.keys() - kept:
        failed[node] = (
            "UpdateRefused: the description of its arrays differs from the other clients'"
        )
    steps = [meanings[node].get("steps", 1) for node in kept]
    return ConfigRecord({**meanings[kept[0]], "steps": max(s for s in steps if isinstance(s, int))})


def with_round(message: Message, parameters: Round) -> Message:
    """The message with the protocol's parameters for its client."""
    return with_content(message, RecordDict({**message.content, ROUND_KEY: parameters.record()}))


def _read(reply: Message, name: str, size: int) -> Masked:
    """The masked vector of a reply; raises `ClientError` if there is none or it is broken."""
    if reply.has_error():
        raise ClientError(reply.error.reason or f"error code {reply.error.code}")
    record = reply.content.array_records.get(MASKED_KEY)
    if record is None or list(record) != [name] or len(reply.content.array_records) != 1:
        raise UpdateRefused(f"it sent no masked vector; expected '{name}' in '{MASKED_KEY}' alone")
    try:
        vector = record[name].numpy()
    except Exception as error:  # whatever a client put there
        raise UpdateRefused(f"its masked vector cannot be read: {type(error).__name__}") from error
    if vector.dtype != np.uint64 or vector.shape != (size,):
        raise UpdateRefused(
            f"its masked vector is {vector.dtype} of shape {vector.shape}, expected uint64 of "
            f"shape ({size},)"
        )
    return vector
