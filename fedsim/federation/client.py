"""The Flower ClientApp, which trains the global model locally and replies with a defended update.

`defend` is a mod that adds fedsim's defenses to another ClientApp.
"""

import contextlib
import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from torch import Tensor

from fedsim.defense import Training
from fedsim.errors import PluginError
from fedsim.federation.arrays import content_of, group_size, tensor_record
from fedsim.federation.contents import config_record, filled
from fedsim.federation.defended import client_number, defend, remembered, signature
from fedsim.federation.grid import CLIENT_KEY, UPDATE_KEY, Meaning, answer
from fedsim.federation.secure.client import secured
from fedsim.federation.session import Session, session_of
from fedsim.federation.utility import utility
from fedsim.libraries import brief
from fedsim.records import Update
from fedsim.scenario.built import BuiltRun
from fedsim.seeds import isolated
from fedsim.training.local import client_training, client_update, protect

__all__ = ["app", "client_number", "defend", "update_record"]

STATED = tuple(name for name in Meaning.model_fields if name != "buffers")
"""The fields of an update that its record states, beside the names of buffers."""

_stated = operator.attrgetter(*STATED)

ALONE = "engine.vectorize: clients could not be trained at once, and each is trained alone"

app = ClientApp()


class Answering(ClientApp):
    """`app`, which replies with an error where it would raise.

    Flower's simulation replies with Ray's traceback, whose lines differ from run to run.
    """

    def __call__(self, message: Message, context: Context) -> Message:
        """A client's reply."""
        return answer(app, message, context)


def _open(message: Message, *, again: bool = False) -> tuple[Session, dict[str, Tensor], int]:
    """The session, loaded with the server's model, the arrays of the message, and the round."""
    config = _config(message)
    session = session_of(str(config["scenario"]))
    before = session.load(cast(ArrayRecord, message.content["arrays"]), again=again)
    return session, before, int(cast(int, config["server-round"]))


def _config(message: Message) -> ConfigRecord:
    """What the server states beside the arrays: the scenario, the round, rates."""
    return cast(ConfigRecord, message.content["config"])


def answers(messages: Sequence[Message], contexts: Sequence[Context]) -> Iterator[Message]:
    """Replies of clients of this process in turn; several are trained before they reply."""
    done = 0
    while done < len(messages):
        part = slice(done, done + _prepared(messages[done:], contexts[done:]))
        for message, context in zip(messages[part], contexts[part], strict=True):
            yield answer(app, message, context)
        done = part.stop


def _prepared(messages: Sequence[Message], contexts: Sequence[Context]) -> int:
    """Train the first clients, at once if `engine.vectorize` says so; returns how many there are.

    Making one reply after the other takes a fraction of the time that each takes after its client's
    training, which empties the processor's caches.
    """
    content = messages[0].content
    config = config_record(content, "config")
    if messages[0].metadata.message_type != MessageType.TRAIN or not config:
        return 1
    if not isinstance(scenario := config.get("scenario"), str):
        return 1  # which is an error that is the client's own
    session = session_of(scenario)
    session.finished.clear()
    stated = session.built.scenario.engine.vectorize
    some = 1 if stated == "auto" else stated or 1  # "auto" of a project that Flower runs itself
    if some > 1 and "arrays" in content:
        some = _number_alike(messages[:some])
        try:
            session.finished |= _together(messages[:some], contexts[:some])
        except (Exception, SystemExit) as error:  # the client that fails alone, too, is named
            if some > 1:
                session.warn(f"{ALONE}: {brief(error)}")
    elif _trains(messages[0], scenario):
        some = group_size(cast(ArrayRecord, content["arrays"]))
        with contextlib.suppress(Exception, SystemExit):  # raised again where each trains alone
            if session.is_pure([client_number(context) for context in contexts[:some]]):
                alike = _number_alike(messages[:some])
                return _in_turn(messages[:alike], contexts[:alike])
        some = _one_by_one(session, messages[:some], contexts[:some], scenario)
    return some


def _one_by_one(
    session: Session, messages: Sequence[Message], contexts: Sequence[Context], scenario: str
) -> int:
    """Train the first clients, each in its own surroundings; returns how many there are."""
    asked = zip(messages, contexts, strict=True)
    pairs = [*itertools.takewhile(lambda one: _trains(one[0], scenario), asked)]
    places = [_place(message, context) for message, context in pairs]
    prepared = session.prepare(places, [_config(message) for message, _ in pairs])
    loaded: object = None
    for place, pair, training in zip(places, pairs, prepared, strict=False):
        arrays = pair[0].content["arrays"]
        outcome = _outcome(*pair, training, again=arrays is loaded)
        loaded = None if isinstance(outcome, BaseException) else arrays
        session.finished[place] = outcome
    return len(prepared)


def _trains(message: Message, scenario: object) -> bool:
    """Whether a message asks for training in a scenario, and contains nothing else.

    Secure aggregation sends more records, and may not ask for training yet.
    """
    content = message.content
    config = config_record(content, "config")
    return (
        message.metadata.message_type == MessageType.TRAIN
        and {*content} == {"arrays", "config"}
        and config is not None
        and config.get("scenario") == scenario
        and isinstance(config.get("server-round"), int)
    )


def _number_alike(messages: Sequence[Message]) -> int:
    """How many messages ask for the same training as the first one, which is one of them."""
    kind = messages[0].metadata.message_type
    alike = functools.partial(_alike, messages[0])
    same = itertools.takewhile(
        lambda one: one.metadata.message_type == kind and alike(one), messages
    )
    return sum(1 for _ in same)


def _alike(first: Message, message: Message) -> bool:
    """Whether two messages ask for the same training: the same arrays, rates and round."""
    if message is first or message.content is first.content:
        return True
    if {*message.content} != {*first.content} or not {"arrays", "config"} <= {*message.content}:
        return False
    one, other = (cast(ArrayRecord, each.content["arrays"]) for each in (first, message))
    same = one is other or (
        list(one) == list(other)
        and all(map(operator.is_, map(content_of, one.values()), map(content_of, other.values())))
    )
    return same and dict(_config(first)) == dict(_config(message))


def _together(
    messages: Sequence[Message], contexts: Sequence[Context]
) -> dict[tuple[int, int], tuple[Update, float] | BaseException]:
    """Train clients at once that were sent the same, and defend each update alone."""
    session, before, round = _open(messages[0])
    lr, mu = session.rates(_config(messages[0]))
    clients = [client_number(context) for context in contexts]
    made = session.train_together(before, round, clients, lr=lr, proximal_mu=mu)
    return {
        (round, client): _defended(session.built, before, (round, client), context, one)
        for client, context, one in zip(clients, contexts, made, strict=True)
    }


def _in_turn(messages: Sequence[Message], contexts: Sequence[Context]) -> int:
    """Train the first clients of those that were sent the same, with nothing between two of them.

    Whoever fails is trained alone later, where the error is raised.

    Returns:
        How many there are.
    """
    session, before, round = _open(messages[0])
    lr, _ = session.rates(_config(messages[0]))
    clients = [client_number(context) for context in contexts]
    made = session.train_in_turn(round, clients, lr=lr)
    for client, context, one in zip(clients, contexts, made, strict=False):
        place = round, client
        if one is not None and place not in session.finished:
            session.finished[place] = _defended(session.built, before, place, context, one)
    return len(made)


def _defended(
    built: BuiltRun,
    before: Mapping[str, Tensor],
    place: tuple[int, int],
    context: Context,
    trained: tuple[Update, float],
) -> tuple[Update, float] | BaseException:
    """The update after the client's defenses, and the training loss, or why there is none."""
    update, loss = trained
    where = (built.scenario.seed, *place)
    try:
        if not any(defense.guards(place[1]) for defense in built.defenses):
            return trained
        with remembered(context) as states, isolated(where[0], "client", *place):
            return protect(update, before, built.defenses, where, states), loss
    except (Exception, SystemExit) as error:
        return error


def _place(message: Message, context: Context) -> tuple[int, int]:
    """Round and client."""
    return int(cast(int, _config(message)["server-round"])), client_number(context)


def _outcome(
    message: Message, context: Context, training: Training | None = None, *, again: bool = False
) -> tuple[Update, float] | BaseException:
    """The defended update and the training loss of a client, or why there is none."""
    try:
        session, before, round = _open(message, again=again)
        built, place = session.built, (round, client_number(context))
        with remembered(context) as states:
            lr, mu = session.rates(_config(message))
            if training is None:
                batches = built.batches(place[1], round)
                training = client_training(built, session.module, place, batches, lr=lr)
            return client_update(
                built, session.module, before, place, states, training, proximal_mu=mu
            )
    except (Exception, SystemExit) as error:
        return error


@app.train(mods=[secured])
def train(message: Message, context: Context) -> Message:
    """Train locally, and reply with the update and a record of what its arrays mean."""
    session = session_of(str(_config(message)["scenario"]))
    place = _, client = _place(message, context)
    outcome = session.finished.pop(place, None) or _outcome(message, context)
    if isinstance(outcome, BaseException):
        raise outcome
    update, loss = outcome
    defenses = [defense for defense in session.built.defenses if defense.guards(client)]
    metrics = {"num-examples": update.num_examples, "train_loss": float(loss)}
    content = {
        "arrays": tensor_record({**update.tensors, **update.buffers}),
        "metrics": filled(MetricRecord(), metrics),
        UPDATE_KEY: update_record(update),
        CLIENT_KEY: signature(client, defenses, context.state),
    }
    return Message(filled(RecordDict(), content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Reply with the global model's loss and metrics on the client's own examples."""
    session, _, _ = _open(message)
    task = session.built.task
    found = utility(task, session.module, client_number(context))
    examples = found.pop("num_examples", math.nan)
    if not 1 <= examples < math.inf:
        raise PluginError(
            f"evaluate() of task '{task.name}' returned num_examples = {examples}; expected the "
            "number of examples that its means are over"
        )
    metrics = MetricRecord({"num-examples": int(examples), **found})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query(mods=[secured])
def query(message: Message, context: Context) -> Message:
    """Reply with the client's number."""
    record = ConfigRecord({"client": client_number(context)})
    return Message(RecordDict({"client": record}), reply_to=message)


def update_record(update: Update) -> ConfigRecord:
    """The record that describes an update's arrays."""
    buffers = tuple(update.buffers)
    record = _described(buffers, *_stated(update)).copy()
    record["buffers"] = list(buffers)
    return record


@functools.lru_cache(maxsize=1024)
def _described(buffers: tuple[str, ...], *stated: Any) -> ConfigRecord:
    """The record of an update, which most clients of a round share, with a list of its own."""
    fields = dict(zip(STATED, stated, strict=True))
    return ConfigRecord(Meaning(**fields, buffers=[*buffers]).model_dump(exclude_none=True))
