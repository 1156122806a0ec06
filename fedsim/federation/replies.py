"""Reading the update in a client's reply, fedsim's own clients' or another project's."""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsim.attacking.campaign import UNKNOWN
from fedsim.errors import ClientError, ScenarioError, UpdateRefused
from fedsim.federation.arrays import tensor_of
from fedsim.federation.contents import config_record, entries, is_a, records_of
from fedsim.federation.grid import CLIENT_KEY, UPDATE_KEY
from fedsim.inert import line, visible
from fedsim.plugin import validated
from fedsim.records import Update
from fedsim.runs.stored import Meaning
from fedsim.scenario.settings import Training

MOST_RECORDS, MOST_VALUES = 100, 1_000_000
"""Largest number of records of a reply, and of a record's entries and of values of an entry."""

RAISED_IN_RAY = (
    "\n\nThe above exception was the direct cause of the following exception:\n\n"
    "\x1b[36mray::ClientAppActor.run()"
)
"""What follows an exception of a client in the reason that Flower's simulation gives."""


def read_update(
    reply: Message,
    config: ConfigRecord,
    training: Training,
    trained: Collection[str] | None = None,
    optimizer: str = UNKNOWN,
    *,
    steps: int | None = None,
    examples_key: str = "num-examples",
) -> Update:
    """Read the update in a reply.

    Clients of fedsim describe their arrays. The arrays of other clients are read as new weights,
    after training as `training` states.

    Args:
        reply: The reply.
        config: The config that the server sent, which may hold the learning rate.
        training: The clients' local steps, momentum, weight decay and learning rate, if `config`
            has none. A batch size that it states counts before the reply's `num-examples`.
        trained: Names of the arrays that are parameters, the others being buffers; all by default.
        optimizer: The optimizer of the local steps, "unknown" if it is not stated.
        steps: The number of local steps, by default that of `training`. If that states epochs, the
            reply's `num-examples` are the client's examples, which every epoch uses once.
        examples_key: The metric that stands for `num-examples` where a reply has none.

    Raises:
        ClientError: The reply is an error.
        UpdateRefused: The update is broken.
    """
    if reply.has_error():
        raise ClientError(reason(reply))
    content = reply.content
    _check_length(content)
    arrays, numbers = records_of(content, ArrayRecord), records_of(content, MetricRecord)
    if len(arrays) != 1:
        raise UpdateRefused(f"{len(arrays)} array records, expected one")
    try:
        tensors = {name: tensor_of(array) for name, array in entries(arrays[0]).items()}
    except Exception as error:  # whatever a client put there
        raise UpdateRefused(f"its arrays cannot be read: {type(error).__name__}") from error
    if len(numbers) != 1:
        raise UpdateRefused(f"{len(numbers)} metric records, expected one")
    key = "num-examples" if "num-examples" in numbers[0] else examples_key
    examples = numbers[0].get(key)
    if not isinstance(examples, int | float) or not math.isfinite(examples) or examples < 1:
        raise UpdateRefused(f"{key} is {examples!r:.80}, expected a number from 1 on")
    count = int(examples)
    described = config_record(content, UPDATE_KEY)
    if described is None:
        stated = training.model_fields_set
        lr = config.get("lr", config.get("learning-rate"))
        if not isinstance(lr, int | float):
            round = int(cast(int, config.get("server-round", 1)))
            lr = training.rate(round) if "lr" in stated else None
        if steps is None and training.local_epochs is not None:  # `count` is that of an epoch
            steps = training.local_epochs * math.ceil(count / training.batch_size)
            count *= training.local_epochs
        else:
            steps = steps or training.local_steps
            count = training.batch_size * steps if "batch_size" in stated else count
        # BatchNorm's counters: integers that turn into floats when a strategy averages them.
        # Complex values stay, and are refused: a strategy cannot add them to those of others.
        kept = {k: v.is_floating_point() or v.is_complex() for k, v in tensors.items()}
        floats = {k: v if kept[k] else v.float() for k, v in tensors.items()}
        return Update(
            tensors={k: v for k, v in floats.items() if trained is None or k in trained},
            buffers={k: v for k, v in floats.items() if trained is not None and k not in trained},
            kind="weights",
            optimizer=optimizer,
            lr=None if lr is None else float(lr),
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            steps=steps,
            num_examples=count,
        )
    try:
        meaning = validated(Meaning, dict(entries(described)), UPDATE_KEY)
        buffers = {name: tensors.pop(name) for name in meaning.buffers}
    except (ScenarioError, KeyError) as error:
        raise UpdateRefused(f"the description of its arrays is broken: {error}") from error
    if meaning.num_examples != count:
        raise UpdateRefused(
            f"the description of its arrays is broken: {meaning.num_examples} examples, and "
            f"num-examples is {count}"
        )
    return Update(tensors=tensors, **{**vars(meaning), "buffers": buffers})


def reason(reply: Message) -> str:
    """Why a client failed, of a reply that is an error."""
    return visible(_raised(reply.error.reason)) or f"error code {reply.error.code}"


def _raised(reason: str | None) -> str:
    """Why a client failed: what it raised, where Flower's simulation sends Ray's traceback."""
    traceback, from_ray, _ = (reason or "").rpartition(RAISED_IN_RAY)
    if not from_ray:
        return reason or ""
    last = itertools.takewhile(lambda line: line[:1] != " ", reversed(traceback.splitlines()))
    return "\n".join(reversed([*last]))


def _check_length(content: RecordDict) -> None:
    """Raise `UpdateRefused` if a reply holds more than any model needs, before it is read."""
    if len(content) > MOST_RECORDS:
        raise UpdateRefused(f"{len(content)} records, at most {MOST_RECORDS} are read")
    for name, record in content.items():
        held = entries(record)
        longest = len(held)
        if not is_a(record, ArrayRecord):
            longest = max([longest, *[len(one) for one in held.values() if type(one) is list]])
        if longest > MOST_VALUES:
            raise UpdateRefused(
                f"its record {name!r:.80} holds {longest} values, at most {MOST_VALUES} are read"
            )


def signed(reply: Message, key: str) -> object:
    """What a client says of itself, or None."""
    record = config_record(reply.content, CLIENT_KEY)
    return None if record is None else record.get(key)


Names = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of a reply's records of arrays and metrics, and of what each holds."""


def check_metrics(reply: Message) -> None:
    """Raise `UpdateRefused` if a metric is NaN or infinite, as the weighted mean would be then."""
    for record in records_of(reply.content, MetricRecord):
        for key, value in record.items():
            if not all(map(math.isfinite, value if isinstance(value, list) else [value])):
                raise UpdateRefused(f"its metric {key!r:.80} is {value!r:.80}, not finite")


def names_of(reply: Message) -> Names:
    """Names in a reply, which Flower's strategies require to be equal in all replies of a round."""
    return tuple(
        (name, tuple(sorted(record)))
        for name, record in sorted(reply.content.items())
        if isinstance(record, ArrayRecord | MetricRecord)
    )


def outnumbered(named: Mapping[tuple[int, ...], Names]) -> dict[tuple[int, ...], str]:
    """Clients whose replies have other names than those of most, and what is wrong with them."""
    (usual, _), *_ = Counter(named.values()).most_common(1) or [((), 0)]
    return {
        clients: f"UpdateRefused: its records are {_words(names)}; most clients' {_words(usual)}"
        for clients, names in named.items()
        if names != usual
    }


def _words(names: Names) -> str:
    return ", ".join(f"{name!r:.40} with {', '.join(keys)!r:.120}" for name, keys in names)


def failures(failed: Mapping[int, str]) -> str:
    """Clients that failed, and why: their number, and three of them."""
    words = [f"client {client}: {line(why):.200}" for client, why in failed.items()]
    more = [f"and {len(words) - 3} more"] if len(words) > 3 else []
    return f"{len(words)} client{'s' * (len(words) > 1)}: {'; '.join(words[:3] + more)}"
