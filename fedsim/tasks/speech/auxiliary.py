"""The choice of public utterances, which no client holds: attacks learn voices from them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import UNKNOWN
from fedsim.seeds import torch_generator


def held_out(
    speakers: Sequence[str], fraction: float, each: int | None, known: int | None, seed: int
) -> Tensor:
    """Choose the utterances that no client holds.

    Args:
        speakers: The speaker of each utterance. Utterances are in random order: the first are
            taken.
        fraction: The share of utterances to choose.
        each: The number of utterances to choose of each speaker, instead of a share of all.
        known: The number of speakers that the chosen utterances are of, drawn by the seed; None for
            all.
        seed: The run's seed.

    Returns:
        Which utterances are chosen, bool of shape (N,).

    Raises:
        DataError: There are fewer speakers than `known`, or a speaker would have none left for a
            client.
    """
    names = sorted(set(speakers))
    if known is not None:
        if known > len(names):
            raise DataError(
                f"task.auxiliary_speakers = {known}, and {len(names)} speakers have training "
                "utterances; expected at most that many"
            )
        rng = torch_generator(seed, "auxiliary speakers")
        names = [names[i] for i in torch.randperm(len(names), generator=rng)[:known].tolist()]
    owned = {name: [i for i, one in enumerate(speakers) if one == name] for name in names}
    if each is None:
        available = sorted(i for own in owned.values() for i in own)
        chosen = available[: int(fraction * len(available))]
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


def candidates(public: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The speakers that an attack can name: those of public utterances, sorted.

    Args:
        public: The speakers of the public utterances.
        others: The speakers of the clients' utterances. If any is not public, `UNKNOWN` is added.

    Returns:
        The names; empty if there are no public speakers.
    """
    names = sorted(set(public) - {UNKNOWN})
    return (*names, UNKNOWN) if names and set(others) - set(names) else tuple(names)
