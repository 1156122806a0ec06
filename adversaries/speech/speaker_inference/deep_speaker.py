"""Deep Speaker: a residual network whose embeddings of one person's utterances point the same way.

Li et al., Deep Speaker: an End-to-End Neural Speaker Embedding System, 2017, sections 2.1 and 2.3;
the encoder of Dang et al. (HFGM, 2021), appendix A.2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

__all__ = ["DeepSpeaker", "Recipe", "shortest", "train", "triplet_loss"]

CLIP = 20.0
"""Where the ReLU ends."""

WARM_UP = 0.1
"""Share of the training in which the learning rate rises."""

MOST_SPEAKERS = 32
"""Speakers in one batch: triplets grow with their square."""


class DeepSpeaker(nn.Module):
    """Utterances as frames (T, F) -> unit vectors, of which a cosine says whether a voice is one.

    For each width: a 5x5 convolution of stride 2, then `blocks` residual blocks of two 3x3
    convolutions, each with batch normalisation and a ReLU clipped at 20. What is left is averaged
    over time, mapped to `embedding` values and divided by its length. The paper's has widths 64,
    128, 256 and 512, three blocks and 512 values: 24 million weights.
    """

    def __init__(
        self, features: int, widths: Sequence[int], blocks: int = 1, embedding: int = 128
    ) -> None:
        super().__init__()
        self.features, self.widths = features, tuple(widths)
        self.blocks, self.embedding = blocks, embedding
        self.stages, bands = nn.ModuleList(), features
        for before, width in zip((1, *widths), widths, strict=False):
            parts = [_Layer(before, width, 5, stride=2), *(_Residual(width) for _ in range(blocks))]
            self.stages.append(nn.ModuleList(parts))
            bands = (bands + 1) // 2
        self.affine = nn.Linear(bands * widths[-1], embedding)

    @property
    def shortest(self) -> int:
        """Frames that an utterance needs."""
        return shortest(self.widths)

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments that it was built with."""
        names = ("features", "widths", "blocks", "embedding")
        return {name: getattr(self, name) for name in names}

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, F) padded frames and their numbers (B,) int64 -> (B, embedding) unit vectors.

        An utterance's is the same whatever it is padded to, batch normalisation in training aside.
        """
        hidden, left = frames[:, None], lengths
        for stage in self.stages:
            left = (left + 1) // 2
            steps = torch.arange((hidden.shape[2] + 1) // 2, device=frames.device)
            inside = (steps < left[:, None])[:, None, :, None].to(frames.dtype)
            for part in stage:  # type: ignore[attr-defined]
                hidden = part(hidden, inside)
        means = hidden.sum(dim=2) / left[:, None, None]
        return functional.normalize(self.affine(means.flatten(1)), dim=1)

    @torch.no_grad()
    def embed(self, utterances: Sequence[Tensor]) -> Tensor:
        """Embeddings (N, embedding), on the CPU, of utterances (T, F), one utterance at a time.

        Switches the encoder to evaluation mode and leaves it there.
        """
        self.eval()
        device = self.affine.weight.device
        lengths = [torch.tensor([len(one)], device=device) for one in utterances]
        rows = [self(x[None].to(device), n) for x, n in zip(utterances, lengths, strict=True)]
        return torch.cat(rows).cpu()


def shortest(widths: Sequence[int]) -> int:
    """Frames that stages of these widths need: half of what one after the last stands for."""
    return int(2 ** (len(widths) - 1))


class _Layer(nn.Module):
    """Convolution, batch normalisation, clipped ReLU; zero beyond an utterance's end."""

    def __init__(self, before: int, width: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False)
        self.normalisation = nn.BatchNorm2d(width)

    def linear(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.normalisation(self.convolution(hidden))
        return found

    def forward(self, hidden: Tensor, inside: Tensor) -> Tensor:
        return self.linear(hidden).clamp(0, CLIP) * inside


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _Layer(width, width, 3), _Layer(width, width, 3)

    def forward(self, hidden: Tensor, inside: Tensor) -> Tensor:
        added = hidden + self.second.linear(self.first(hidden, inside))
        return added.clamp(0, CLIP) * inside


def triplet_loss(embedded: Tensor, speakers: Tensor, margin: float) -> Tensor:
    """Mean of max(0, s_an - s_ap + margin) over all triplets of a batch that are not yet apart.

    embedded (B, d) unit vectors, speakers (B,) int64; s are cosines of an anchor with another
    utterance of its speaker (p) and with one of another's (n). Zero where all are apart.
    """
    cosines = embedded @ embedded.T
    same = speakers[:, None] == speakers
    positive = same & ~torch.eye(len(speakers), dtype=torch.bool, device=speakers.device)
    losses = cosines[:, None, :] - cosines[:, :, None] + margin
    wrong = positive[:, :, None] & ~same[:, None, :] & (losses > 0)
    return losses[wrong].sum() / wrong.sum().clamp(min=1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an encoder looks like and how it is trained, as the settings of `speaker-inference`."""

    widths: tuple[int, ...] = (16, 32, 64, 128)
    blocks: int = 1
    embedding: int = 128
    margin: float = 0.1
    steps: int = 300
    lr: float = 0.003
    longest: int = 100

    def network(self, features: int) -> DeepSpeaker:
        """A new encoder, its weights drawn from torch's global generator."""
        return DeepSpeaker(features, self.widths, self.blocks, self.embedding)


def train(
    network: DeepSpeaker,
    utterances: Sequence[Tensor],
    speakers: Sequence[str],
    recipe: Recipe,
    *,
    rng: torch.Generator,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train by triplets of random stretches of utterances (T, F), of `longest` frames at most.

    A step takes two utterances of each of up to 32 speakers, and of a speaker who has a single one
    that one, which is no positive. Adam, its learning rate up at first and then down to zero.
    progress: told the step and the loss. Raises `ValueError` where there is no triplet.
    """
    owned: dict[str, list[int]] = {}
    for index, speaker in enumerate(speakers):
        owned.setdefault(speaker, []).append(index)
    if len(owned) < 2 or max(map(len, owned.values())) < 2:
        raise ValueError(
            f"{len(speakers)} public utterances of {len(owned)} speakers make no triplet: that "
            "takes two of one speaker and one of another. Raise task.auxiliary_utterances or "
            "task.auxiliary_fraction"
        )
    held, device = list(owned.values()), network.affine.weight.device
    optimizer = torch.optim.Adam(network.parameters())
    network.train()
    for step in range(recipe.steps):
        along = (step + 0.5) / recipe.steps
        optimizer.param_groups[0]["lr"] = (
            recipe.lr * min(1, along / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * along))
        )
        batch, whose = list[Tensor](), list[int]()
        for who in torch.randperm(len(held), generator=rng)[:MOST_SPEAKERS].tolist():
            for place in torch.randperm(len(held[who]), generator=rng)[:2].tolist():
                batch.append(_stretch(utterances[held[who][place]], recipe.longest, rng))
                whose.append(who)
        sizes = torch.tensor([len(one) for one in batch], device=device)
        embedded = network(pad_sequence(batch, batch_first=True).to(device), sizes)
        loss = triplet_loss(embedded, torch.tensor(whose, device=device), recipe.margin)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        progress(step, loss.item())
    network.eval()


def _stretch(frames: Tensor, longest: int, rng: torch.Generator) -> Tensor:
    start = torch.randint(max(1, len(frames) - longest + 1), (), generator=rng)
    return frames[int(start) : int(start) + longest]
