"""The client's part of secure aggregation: the last thing done to an update before it leaves."""

import math
from collections.abc import Callable
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedsim.errors import ClientError, UpdateRefused
from fedsim.federation.secure import MASKED_KEY, ROUND_KEY, SECAGGPLUS_KEY
from fedsim.federation.secure.masking import encode, flatten, mask
from fedsim.federation.secure.protocol import Plain, Round
from fedsim.records import Update

__all__ = ["secured"]

Answer = Callable[[Message, Context], Message]


def secured(meaning_key: str) -> Callable[[Message, Context, Answer], Message]:
    """A Flower mod, for train and query, that lets an update out under masks only.

    Does nothing to messages that ask for no secure aggregation. meaning_key: the record of a
    reply that says what its arrays mean; of all that `train` replies it is what stays in the
    clear, without the number of examples.
    """

    def mod(message: Message, context: Context, call_next: Answer) -> Message:
        records = message.content.config_records
        if SECAGGPLUS_KEY in records:
            from fedsim.federation.secure import secaggplus  # Flower's legacy server comes with it

            return secaggplus.answer(
                message, context, lambda m, c: _train(m, c, call_next, meaning_key), meaning_key
            )
        if ROUND_KEY not in records:
            return call_next(message, context)
        told = Round.read(records[ROUND_KEY])
        if message.metadata.message_type.startswith("query"):
            masks = mask(told.seed, told.round, told.client, told.partners, told.size)
            content = RecordDict({MASKED_KEY: ArrayRecord({"masks": Array(masks)})})
            return Message(content, reply_to=message)
        plain = _train(message, context, call_next, meaning_key)
        values = np.concatenate([[1.0], plain.values])
        masked = encode(values, plain.examples, told.clients)
        masked = masked + mask(told.seed, told.round, told.client, told.partners, len(masked))
        arrays = ArrayRecord({"masked": Array(masked)})
        return Message(
            RecordDict({MASKED_KEY: arrays, meaning_key: plain.meaning}), reply_to=message
        )

    return mod


def _train(message: Message, context: Context, call_next: Answer, meaning_key: str) -> Plain:
    """Train, and refuse here what the server will not be able to see in a sum."""
    (sent,) = message.content.array_records.values()
    before = dict(sent.to_torch_state_dict())
    reply = call_next(message, context)
    if reply.has_error():
        raise ClientError(reply.error.reason or f"error code {reply.error.code}")
    (arrays,) = reply.content.array_records.values()
    (metrics,) = reply.content.metric_records.values()
    after = dict(arrays.to_torch_state_dict())
    examples, loss = (
        int(cast(int, metrics["num-examples"])),
        float(cast(float, metrics["train_loss"])),
    )
    Update(tensors=after, kind="weights", num_examples=examples).check(before)
    if not math.isfinite(loss):
        raise UpdateRefused(f"its training loss is {loss}")
    said = reply.content.config_records[meaning_key].items()
    meaning = ConfigRecord({key: value for key, value in said if key != "num_examples"})
    values = flatten({name: value.numpy() for name, value in after.items()}, loss)
    return Plain(values, examples, meaning)
