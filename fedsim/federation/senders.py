"""The source node of each reply, also where Flower's SuperLink answers in its place."""

from collections.abc import Iterable, Iterator

from flwr.app import Message


def by_node(messages: Iterable[Message], replies: Iterable[Message]) -> Iterator[Message]:
    """Attribute the SuperLink's errors to the nodes in whose place it answers.

    For a node that is no longer connected, Flower's SuperLink replies with an error whose source
    is its own node id, 1.

    Args:
        messages: The messages, as they were sent.
        replies: The replies to them.

    Returns:
        The replies in the same order; an error comes from the node that the message was sent to.
    """
    asked = {m.metadata.message_id: m for m in messages if m.metadata.message_id}
    for reply in replies:
        sent = asked.get(reply.metadata.reply_to_message_id)
        if sent is not None and reply.has_error():
            yield Message(reply.error, reply_to=sent)
        else:
            yield reply
