"""The client's part of secure aggregation, which masks an update before it is sent."""

import math
from collections.abc import Callable
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedsim.errors import ClientError, UpdateRefused
from fedsim.federation.grid import UPDATE_KEY
from fedsim.federation.secure import MASKED_KEY, ROUND_KEY, SECAGGPLUS_KEY, Plain, Round
from fedsim.federation.secure.masking import encode, flatten, mask
from fedsim.records import Update

Answer = Callable[[Message, Context], Message]


def secured(message: Message, context: Context, call_next: Answer) -> Message:
    """A Flower mod, for train and query, that replies with a masked update.

    Messages without secure aggregation are passed on. Of the reply of `train`, only the record that
    describes its arrays stays unmasked, without the number of examples.
    """
    content = message.content
    if SECAGGPLUS_KEY in content:
        from fedsim.federation.secure import secaggplus  # Flower's legacy server comes with it

        return secaggplus.answer(message, context, lambda m, c: _train(m, c, call_next))
    if ROUND_KEY not in content:
        return call_next(message, context)
    own = Round.read(content.config_records[ROUND_KEY])
    masks = mask(own.seed, own.round, own.client, own.partners, own.size)
    if message.metadata.message_type.startswith("query"):
        content = RecordDict({MASKED_KEY: ArrayRecord({"masks": Array(masks)})})
        return Message(content, reply_to=message)
    plain = _train(message, context, call_next)
    masked = encode(np.concatenate([[1.0], plain.values]), plain.examples, own.clients) + masks
    arrays = ArrayRecord({"masked": Array(masked)})
    content = RecordDict({MASKED_KEY: arrays, UPDATE_KEY: plain.meaning})
    return Message(content, reply_to=message)


def _train(message: Message, context: Context, call_next: Answer) -> Plain:
    """Train, and refuse an update that is broken, which the server cannot see in a sum."""
    (sent,) = message.content.array_records.values()
    before = dict(sent.to_torch_state_dict())
    reply = call_next(message, context)
    if reply.has_error():
        raise ClientError(reply.error.reason or f"error code {reply.error.code}")
    (arrays,) = reply.content.array_records.values()
    (metrics,) = reply.content.metric_records.values()
    after = dict(arrays.to_torch_state_dict())
    examples = int(cast(int, metrics["num-examples"]))
    loss = float(cast(float, metrics["train_loss"]))
    Update(tensors=after, kind="weights", num_examples=examples).check(before)
    if not math.isfinite(loss):
        raise UpdateRefused(f"its training loss is {loss}")
    fields = reply.content.config_records[UPDATE_KEY].items()
    meaning = ConfigRecord({key: value for key, value in fields if key != "num_examples"})
    values = flatten({name: value.numpy() for name, value in after.items()}, loss)
    return Plain(values, examples, meaning)
