"""The chain of defenses that an update passes before it is sent, without Flower."""

from collections.abc import Mapping, MutableMapping, Sequence

from torch import Tensor

from fedsim.defense import ClientState, Defense
from fedsim.errors import PluginError
from fedsim.records import Update
from fedsim.seeds import torch_generator

STATE_KEY = "fedsim.defense"


def protect(
    update: Update,
    before: Mapping[str, Tensor],
    defenses: Sequence[Defense],
    where: tuple[int, int, int],
    states: MutableMapping[str, ClientState],
) -> Update:
    """Apply the defenses in listed order to a gradient, or to the delta behind new weights.

    Each defense gets the tensors of its own layers, if it runs on this client. A tensor that no
    defense touched stays bit-identical.

    Args:
        update: The update of local training.
        before: The weights that the server sent, by parameter name.
        defenses: The defenses, including those that do not run on this client.
        where: (seed, round, client), from which each defense's generator is derived.
        states: The client's own state of each defense, by `STATE_KEY`.POSITION; changed in place.

    Returns:
        The update to send, of the same kind.

    Raises:
        PluginError: A defense names a layer that the update does not have.
    """
    if not any(defense.guards(where[2]) for defense in defenses):
        return update
    delta = update
    if update.kind == "weights":
        changes = {name: value - before[name] for name, value in update.tensors.items()}
        delta = update.replace(tensors=changes, kind="delta")
    protected = delta
    seed, round, client = where
    for position, defense in enumerate(defenses):
        if not defense.guards(client):
            continue
        if complaint := defense.unknown_layers(protected.tensors):
            raise PluginError(f"{defense.name}: {complaint}")
        state = states.setdefault(f"{STATE_KEY}.{position}", {})
        rng = torch_generator(seed, f"defense.{position}.{defense.name}", round, client)
        whole = dict(protected.tensors)
        chosen = {name: value for name, value in whole.items() if defense.covers(name)}
        changed = defense.protect(protected.replace(tensors=chosen), rng, state)
        if len(chosen) < len(whole):
            rest = {name: value for name, value in whole.items() if name not in chosen}
            changed = changed.replace(tensors={**rest, **changed.tensors})
        protected = changed
        if not state:
            del states[f"{STATE_KEY}.{position}"]
    if update.kind != "weights":
        return protected
    tensors = {
        name: update.tensors.get(name, value)
        if value is delta.tensors.get(name)
        else before[name] + value
        if name in before and value.shape == before[name].shape
        else value
        for name, value in protected.tensors.items()
    }
    return protected.replace(tensors=tensors, kind="weights")
