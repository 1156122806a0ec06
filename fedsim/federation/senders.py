"""The senders of replies, where Flower's SuperLink answers in place of a node."""

from collections.abc import Iterable, Iterator

from flwr.app import Message


def by_node(messages: Iterable[Message], replies: Iterable[Message]) -> Iterator[Message]:
    """Replies, the SuperLink's errors as those of the nodes in whose place it answers.

    For a node that is gone, Flower's SuperLink replies with an error under an id of its own.

    Args:
        messages: The messages, as they were sent.
        replies: The replies.
    """
    asked = {m.metadata.message_id: m for m in messages if m.metadata.message_id}
    for reply in replies:
        sent = asked.get(reply.metadata.reply_to_message_id)
        if sent is not None and reply.has_error():
            yield Message(reply.error, reply_to=sent)
        else:
            yield reply
