"""Voiceprints: embeddings of public utterances, and the scores of others against them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from adversaries.speech.speaker_inference.deep_speaker import DeepSpeaker, Recipe, train
from fedsim.records import UNKNOWN
from fedsim.seeds import isolated, torch_generator

Utterances = Sequence[tuple[str, Tensor]]
"""Pairs of a speaker and the frames (T, F) float32 of an utterance."""

Progress = Callable[[int, float], None]

FOLDS = 3
"""Number of folds of the speakers for the threshold; each fold is left out once."""

SHAPE, WEIGHTS = "encoder.json", "encoder.safetensors"

KEPT = 4
"""Number of voiceprints that a process caches."""


@dataclass(frozen=True, slots=True, eq=False)
class Voiceprints:
    """Embeddings of the public utterances of each speaker.

    Attributes:
        network: The encoder.
        enrolled: Embeddings (n, d) by speaker.
        stranger: The score of `UNKNOWN`; None if all speakers are public.
    """

    network: DeepSpeaker
    enrolled: Mapping[str, Tensor]
    stranger: float | None = None

    @classmethod
    def of(cls, network: DeepSpeaker, utterances: Utterances, most: int) -> "Voiceprints":
        """Embed the first `most` utterances of each speaker."""
        by_name: dict[str, list[Tensor]] = {}
        for name, frames in utterances:
            own = by_name.setdefault(name, [])
            if len(own) < most:
                own.append(frames)
        return cls(network, {name: network.embed(own) for name, own in sorted(by_name.items())})

    def scores(self, frames: Tensor) -> dict[str, float]:
        """The mean cosine of frames (T, F) with each speaker's utterances, in [-1, 1]."""
        embedded = self.network.embed([frames])[0]
        found = {name: float((own @ embedded).mean()) for name, own in self.enrolled.items()}
        return found if self.stranger is None else {**found, UNKNOWN: self.stranger}


def threshold(own: Iterable[float], others: Iterable[float]) -> float:
    """The score that separates known speakers from unknown ones best.

    It maximises the mean of the share of `own` above it and of the share of `others` below; if
    several values do, it is the middle one.

    Args:
        own: Scores of utterances for their own speaker.
        others: Best scores of utterances of unknown speakers.

    Raises:
        ValueError: One of them is empty.
    """
    mine, theirs = (torch.tensor(sorted(each), dtype=torch.float64) for each in (own, others))
    if not len(mine) or not len(theirs):
        raise ValueError(
            "too few public utterances for a threshold between known and unknown speakers: it is "
            "set from 3 speakers or more with 2 utterances each (3 if the encoder is trained), "
            f"and {len(mine)} utterances serve as known, {len(theirs)} as unknown. Raise "
            "task.auxiliary_utterances or task.auxiliary_fraction"
        )
    edges = torch.unique(torch.cat([mine, theirs]))
    edges = torch.cat([edges[:1] - 1e-6, (edges[1:] + edges[:-1]) / 2, edges[-1:] + 1e-6])
    reached = (mine >= edges[:, None]).double().mean(dim=1)
    kept_out = (theirs < edges[:, None]).double().mean(dim=1)
    best = reached + kept_out
    winners = edges[best >= best.max() - 1e-9]
    return float(winners[(len(winners) - 1) // 2])


def between(utterances: Utterances, encode: Callable[[Utterances], DeepSpeaker]) -> float:
    """Estimate the threshold for unknown speakers by cross-validation over speakers.

    In each of three folds, a third of the speakers is left out of the training, and the last
    utterance of each other speaker. The threshold separates the scores of those last utterances for
    their own speaker from the best scores of utterances of the speakers left out.
    """
    names = sorted({name for name, _ in utterances})
    own, others = list[float](), list[float]()
    for fold in range(min(FOLDS, len(names))):
        strangers = set(names[fold::FOLDS])
        known = [each for each in utterances if each[0] not in strangers]
        last = {name: index for index, (name, _) in enumerate(known)}
        count = {name: sum(name == one for one, _ in known) for name in last}
        left = {index for name, index in last.items() if count[name] > 1}
        learned_from = [each for index, each in enumerate(known) if index not in left]
        if not left:
            continue
        prints = Voiceprints.of(encode(learned_from), learned_from, len(utterances))
        own += [prints.scores(known[index][1])[known[index][0]] for index in left]
        foreign = [frames for name, frames in utterances if name in strangers]
        others += [max(prints.scores(frames).values()) for frames in foreign]
    return threshold(own, others)


_KNOWN: dict[str, Voiceprints] = {}


def voiceprints(
    utterances: Utterances,
    encoder: Recipe | Path,
    *,
    most: int,
    strangers: bool,
    device: torch.device,
    progress: Progress,
) -> Voiceprints:
    """Make voiceprints with an encoder that is trained on the utterances, or loaded; cached.

    The random numbers of the training are seeded by a hash of the arguments and the kind of device.

    Args:
        utterances: The public utterances.
        encoder: How to train an encoder, or the folder of one.
        most: Number of utterances of a speaker that are embedded.
        strangers: Whether to estimate a threshold for unknown speakers.
        device: Where to compute.
        progress: Called with the step and the loss of the training.
    """
    stamp = (encoder / WEIGHTS).stat().st_mtime_ns if isinstance(encoder, Path) else 0
    digest = hashlib.sha256(repr((encoder, stamp, most, strangers, device.type)).encode())
    for name, frames in utterances:
        digest.update(f"{name}\x1f{tuple(frames.shape)}".encode())
        digest.update(frames.contiguous().numpy().tobytes())
    key = digest.hexdigest()
    if key in _KNOWN:
        return _KNOWN[key]

    def encode(some: Utterances) -> DeepSpeaker:
        names, frames = [name for name, _ in some], [one for _, one in some]
        if isinstance(encoder, Path):
            return loaded(encoder, frames[0].shape[1], device)
        with isolated(0, "deep speaker", key):
            network = encoder.network(frames[0].shape[1]).to(device)
        rng = torch_generator(0, "triplets", key)
        train(network, frames, names, encoder, rng=rng, progress=progress)
        return network

    stranger = between(utterances, encode) if strangers else None
    prints = Voiceprints.of(encode(utterances), utterances, most)
    while len(_KNOWN) >= KEPT:
        del _KNOWN[next(iter(_KNOWN))]
    _KNOWN[key] = Voiceprints(prints.network, prints.enrolled, stranger)
    return _KNOWN[key]


def saved(network: DeepSpeaker, folder: Path) -> None:
    """Write an encoder as encoder.json (its shape) and encoder.safetensors (its weights)."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ("features", "widths", "blocks", "embedding")
    shape = {name: getattr(network, name) for name in arguments}
    (folder / SHAPE).write_text(json.dumps(shape) + "\n")
    weights = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(weights, folder / WEIGHTS)


def loaded(folder: Path, features: int, device: torch.device) -> DeepSpeaker:
    """Load an encoder that `saved` wrote, in evaluation mode.

    Raises:
        ValueError: The folder holds no valid encoder, or one for other features.
    """
    try:
        shape = json.loads((folder / SHAPE).read_text())
        network = DeepSpeaker(**shape)
        network.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"encoder = '{folder}' holds no speaker encoder ({type(error).__name__}: {error}); "
            "expected the encoder.json and encoder.safetensors that benchmarks/train_speakers.py "
            "writes"
        ) from error
    if network.features != features:
        raise ValueError(
            f"encoder = '{folder}' was trained on frames of {network.features} values, and this "
            f"task's have {features}: train one with the task's features"
        )
    if not all(bool(torch.isfinite(value).all()) for value in network.state_dict().values()):
        raise ValueError(f"encoder = '{folder}' has NaN or Inf among its weights: train it again")
    return network.to(device).eval()
