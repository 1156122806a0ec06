"""Which utterances are public: held by no client, so that an attack can learn voices from them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import UNKNOWN
from fedsim.seeds import torch_generator

__all__ = ["candidates", "held_out"]


def held_out(
    speakers: Sequence[str], fraction: float, each: int | None, known: int | None, seed: int
) -> Tensor:
    """Which of shuffled utterances (N,) no client holds, bool (N,), given the speaker of each.

    fraction: share of them; each: instead of that so many of each speaker; known: they are of so
    many speakers alone, drawn by the seed, None for all. Raises `DataError` for more speakers than
    there are, and where nothing of a speaker would be left for a client.
    """
    names = sorted(set(speakers))
    if known is not None:
        if known > len(names):
            raise DataError(
                f"task.auxiliary_speakers = {known}, and {len(names)} speakers have training "
                "utterances; expected so many at most"
            )
        rng = torch_generator(seed, "auxiliary speakers")
        names = [names[i] for i in torch.randperm(len(names), generator=rng)[:known].tolist()]
    owned = {name: [i for i, one in enumerate(speakers) if one == name] for name in names}
    if each is None:
        those = sorted(i for own in owned.values() for i in own)
        chosen = those[: int(fraction * len(those))]
    else:
        for name, own in owned.items():
            if len(own) <= each:
                raise DataError(
                    f"speaker '{name}' has {len(own)} training utterances, of which "
                    f"task.auxiliary_utterances = {each} leaves none for a client. Lower it, or "
                    "task.test_fraction"
                )
        chosen = [i for own in owned.values() for i in own[:each]]
    held = torch.zeros(len(speakers), dtype=torch.bool)
    held[chosen] = True
    return held


def candidates(heard: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Whom an attack can name: the speakers heard in public, sorted, `UNKNOWN` if there are others.

    heard, others: speakers of the public utterances and of the clients'. Empty where nobody is
    heard.
    """
    names = sorted(set(heard) - {UNKNOWN})
    return (*names, UNKNOWN) if names and set(others) - set(names) else tuple(names)
