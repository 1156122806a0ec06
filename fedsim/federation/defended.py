"""What a client's defenses need beside its training: their states, and `defend` for other apps."""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedsim.defense import ClientState, Defense
from fedsim.errors import ClientError, PluginError
from fedsim.federation.contents import filled
from fedsim.federation.grid import CLIENT_KEY
from fedsim.plugin import check_objects
from fedsim.records import Update
from fedsim.training.local import STATE_KEY, protect

MEMORY_KEY = "fedsim.memory"


def client_number(context: Context) -> int:
    """The number of a node's client, from 0."""
    return int(context.node_config["partition-id"])


def signature(client: int, defenses: Sequence[Defense], state: RecordDict) -> ConfigRecord:
    """The client's number, and the number of rounds that its defenses have kept state over."""
    signed: dict[str, int] = {"client": client}
    if any(defense.remembers for defense in defenses):
        kept = state.array_records.get(MEMORY_KEY)
        rounds = 1 + (int(kept.to_torch_state_dict()["rounds"]) if kept else 0)
        state[MEMORY_KEY] = ArrayRecord({"rounds": torch.tensor(float(rounds))})
        signed["remembers"] = rounds
    return filled(ConfigRecord(), signed)


@contextlib.contextmanager
def remembered(context: Context) -> Iterator[dict[str, ClientState]]:
    """The states of a client's defenses, kept in the node's context between rounds."""
    states: dict[str, ClientState] = {
        key: dict(record.to_torch_state_dict())
        for key, record in context.state.items()
        if isinstance(record, ArrayRecord) and key.startswith(f"{STATE_KEY}.")
    }
    ours = set(states)
    yield states
    for key in ours - set(states):
        del context.state[key]
    for key, state in states.items():
        kept = {name: value.contiguous() for name, value in state.items()}
        context.state[key] = ArrayRecord(kept)


def defend(
    *defenses: Defense, seed: int | None = None
) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """Make a Flower mod that applies defenses, in listed order, to the replies of a ClientApp.

        @app.train(mods=[defend(GaussianNoise(sigma=0.01))])

    The reply's only ArrayRecord is read as new weights, and the defenses change its difference from
    the weights that were received. A defense that takes part in the training itself (`prepare`)
    cannot be added in this way. The mod also adds the client's number (`partition-id`) to the
    reply, which Flower's node ids lack; `defend()` without a defense does that alone.

    Args:
        defenses: The defenses.
        seed: The seed, with round and client, of the defenses' noise. By default a secret one is
            drawn from the operating system for each reply. Whoever knows the seed can subtract the
            noise and has the weights without it, so give one in tests only.

    Returns:
        A mod for `ClientApp.train`.

    Raises:
        PluginError: A defense changes the training itself.
        ScenarioError: What is given is no defense, such as the class of one.
    """
    check_objects("defenses", defenses)
    for defense in defenses:
        if type(defense).prepare is not Defense.prepare:
            raise PluginError(
                f"'{defense.name}' changes local training, which a mod cannot reach; "
                "use it in a scenario, or call its prepare() in your training function"
            )

    def mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        reply = call_next(message, context)
        if reply.has_error() or not message.metadata.message_type.startswith("train"):
            return reply
        for there in (message.content, reply.content):
            if len(there.array_records) != 1:
                raise ClientError(
                    f"{len(there.array_records)} array records; defend() protects a reply with "
                    "one ArrayRecord, to a message with one"
                )
        client = client_number(context)
        running = [defense for defense in defenses if defense.guards(client)]
        signed = signature(client, running, context.state)
        reply.content[CLIENT_KEY] = signed
        if not running:
            return reply
        signed["defended"] = True
        (sent,) = message.content.array_records.values()
        before = dict(sent.to_torch_state_dict())
        ((key, arrays),) = reply.content.array_records.items()
        after = dict(arrays.to_torch_state_dict())
        floating = {name: value for name, value in after.items() if value.is_floating_point()}
        for name, value in floating.items():
            if name not in before or before[name].shape != value.shape:
                received = tuple(before[name].shape) if name in before else "nothing"
                raise ClientError(
                    f"the reply's array '{name}' has shape {tuple(value.shape)}, and {received} "
                    "was received for it; defend() protects the difference of the two. Reply with "
                    "arrays of the same names and shapes"
                )
        configs = message.content.config_records.values()
        round = next((one["server-round"] for one in configs if "server-round" in one), 0)
        # A new seed for each reply: equal noise would cancel in the difference of two replies.
        drawn_from = secrets.randbits(63) if seed is None else seed
        where = (drawn_from, int(cast(int, round)), client)
        update = Update(tensors=floating, kind="weights")
        with remembered(context) as states:
            protected = protect(update, before, defenses, where, states)
        reply.content[key] = ArrayRecord({**after, **dict(protected.tensors)})
        return reply

    return mod
