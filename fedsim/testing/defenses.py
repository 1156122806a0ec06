"""Conformance check of defenses."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.defense import ClientState, Defense, MeanGradient, Training
from fedsim.libraries import brief
from fedsim.records import Batch, Kind, Update
from fedsim.seeds import torch_generator
from fedsim.testing.examples import batch, device_of_tests, network
from fedsim.testing.watching import frozen, same, watched
from fedsim.victim import VictimModel


def defense_complaints(defense: Defense) -> list[str]:
    """List what is wrong with a defense.

    `protect` is called on a gradient and on a weight difference (delta) of a small network, and
    `prepare` on the training of that network, each twice with the same seed. Both must return what
    they declare, leave their input unchanged, and repeat under a seed.

    Args:
        defense: The defense.

    Returns:
        One sentence for each complaint, with what to do about it.
    """
    device = device_of_tests()
    model, examples = network().to(device), batch().to(device)
    gradient = {k: g.detach() for k, g in model.gradient(examples.inputs, examples.labels).items()}
    found = []
    kinds: tuple[Kind, ...] = ("gradient", "delta")
    for kind in kinds:
        update = Update(gradient, kind=kind, lr=0.1, num_examples=1)
        before = frozen(update)

        state: dict[str, Any] = {}

        def protect(update: Update = update, state: ClientState = state) -> list[Update]:
            rng = torch_generator(0, "conformance")
            state.clear()
            return [defense.protect(update, rng, state) for _ in range(2)]

        try:
            first, touched = watched(protect, 0)
            second, _ = watched(protect, 1)
        except Exception as error:
            found.append(f"protect raises {brief(error)} on a small {kind}")
            continue
        if not all(isinstance(one, Update) for one in first):
            found.append("protect does not return an Update: use update.replace(tensors=...)")
            continue
        sent = first[0].tensors
        if odd := [name for name, one in sent.items() if not isinstance(one, Tensor)]:
            kind_of = type(sent[odd[0]]).__name__
            found.append(f"'{odd[0]}' is {kind_of}, and no tensor: return torch tensors")
            continue
        if sparse := [name for name, one in sent.items() if one.layout != torch.strided]:
            found.append(f"'{sparse[0]}' is sparse, which no server reads: end with .to_dense()")
            continue
        try:
            first[0].check(gradient)
        except Exception as error:
            found.append(f"protect returns an update that a server refuses: {error}")
        if any(one.dtype == torch.bfloat16 for one in first[0].tensors.values()):
            found.append("protect returns bfloat16, which Flower cannot send: end with .float()")
        if state and not defense.remembers:
            found.append("protect stores values in state: let the property `remembers` be True")
        if wrong := [name for name, one in state.items() if not isinstance(one, Tensor)]:
            found.append(f"state[{wrong[0]!r}] is no tensor: store tensors alone")
        if first[0].kind != kind:
            found.append(f"protect turns a {kind} into {first[0].kind}: leave the kind alone")
        if not same(before, frozen(update)):
            found.append("protect changes the update it is given: return a new one")
        if touched:
            found.append(f"protect draws from the global generator of {touched}: draw from rng")
        if not same(first, second):
            found.append("protect gives another answer under the same seed: draw only from rng")
    return list(dict.fromkeys(found + _prepare(defense, model, examples)))


def _prepare(defense: Defense, model: VictimModel, examples: Batch) -> list[str]:
    def loss(module: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(module(batch.inputs), batch.labels)

    def run() -> Any:
        rng = torch_generator(0, "conformance")
        module = model.copy().module
        plain = MeanGradient(loss, frozenset(model.parameters()))
        training = Training(module, (examples,), loss, plain, "fedsgd", 0.1, 0.0, 0.0, rng)
        prepared = defense.prepare(training)
        if not isinstance(prepared, Training):
            return None
        return prepared.gradient(prepared.module, prepared.batches[0])[0]

    try:
        first, touched = watched(run, 0)
        second, _ = watched(run, 1)
    except Exception as error:
        return [f"prepare, or the gradient it returns, raises {brief(error)}"]
    if first is None:
        return ["prepare does not return a Training: use training.replace(...)"]
    found = []
    expected = {name: p.shape for name, p in model.parameters().items()}
    named = first.items() if isinstance(first, Mapping) else ()
    if {name: getattr(value, "shape", None) for name, value in named} != expected:
        found.append("after prepare the gradient has other names or shapes than the model")
    # Dropout cannot be handed a generator; the client seeds the global one around training.
    if not touched and not same(first, second):
        found.append("prepare gives another gradient under the same seed: draw from training.rng")
    return found
