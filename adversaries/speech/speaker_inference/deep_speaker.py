"""Deep Speaker: a residual network that embeds utterances by their speaker.

Li et al., Deep Speaker: an End-to-End Neural Speaker Embedding System, 2017, sections 2.1 and 2.3;
the encoder of Dang et al. (HFGM, 2021), appendix A.2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

CLIP = 20.0
"""Upper bound of the clipped ReLU."""

WARM_UP = 0.1
"""Share of the training steps in which the learning rate rises."""

MOST_SPEAKERS = 32
"""The largest number of speakers in a batch; the number of triplets grows with its square."""


class DeepSpeaker(nn.Module):
    """Maps utterances (T, F) to unit vectors, whose cosine measures the similarity of voices.

    Each stage has a 5x5 convolution of stride 2 and `blocks` residual blocks of two 3x3
    convolutions, all with batch normalisation and a ReLU clipped at 20. The result is averaged over
    time, mapped to `embedding` values and normalised. The paper's network has widths 64, 128, 256
    and 512, three blocks and 512 values: 24 million weights.

    Args:
        features: Number F of values of a frame.
        widths: Channels of each stage.
        blocks: Residual blocks of each stage.
        embedding: Number of values of an embedding.
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
        """The least number of frames of an utterance."""
        return shortest(self.widths)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Embed padded frames (B, T, F) with their lengths (B,) int64; returns (B, embedding).

        Padding does not change an embedding, except through batch normalisation in training.
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
        """Embed utterances (T, F) one at a time; returns (N, embedding) on the CPU.

        The encoder is left in evaluation mode.
        """
        self.eval()
        device = self.affine.weight.device
        lengths = [torch.tensor([len(one)], device=device) for one in utterances]
        rows = [self(x[None].to(device), n) for x, n in zip(utterances, lengths, strict=True)]
        return torch.cat(rows).cpu()


def shortest(widths: Sequence[int]) -> int:
    """The least number of frames for stages of these widths, 2^(stages - 1)."""
    return int(2 ** (len(widths) - 1))


class _Layer(nn.Module):
    """Convolution, batch normalisation and clipped ReLU; zero beyond an utterance's end."""

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
    """Mean of max(0, s_an - s_ap + margin) over the triplets of a batch with a positive loss.

    The cosine s_ap is that of an anchor and another utterance of its speaker, s_an that of the
    anchor and an utterance of another speaker.

    Args:
        embedded: Unit vectors, (B, d).
        speakers: (B,) int64.
        margin: Difference of cosines.

    Returns:
        A scalar; zero if no triplet has a positive loss.
    """
    cosines = embedded @ embedded.T
    same = speakers[:, None] == speakers
    positive = same & ~torch.eye(len(speakers), dtype=torch.bool, device=speakers.device)
    losses = cosines[:, None, :] - cosines[:, :, None] + margin
    wrong = positive[:, :, None] & ~same[:, None, :] & (losses > 0)
    return losses[wrong].sum() / wrong.sum().clamp(min=1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Architecture and training of an encoder; the fields are settings of `speaker-inference`."""

    widths: tuple[int, ...] = (16, 32, 64, 128)
    blocks: int = 1
    embedding: int = 128
    margin: float = 0.1
    steps: int = 300
    lr: float = 0.003
    longest: int = 100

    def network(self, features: int) -> DeepSpeaker:
        """Make an encoder; its weights are drawn from torch's global generator."""
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
    """Train an encoder with the triplet loss on random segments of utterances.

    Each step takes two utterances, or the only one, of each of up to 32 speakers. The optimizer is
    Adam; its learning rate rises at first and then falls to zero.

    Args:
        network: The encoder, trained in place.
        utterances: Frames (T, F) of each utterance.
        speakers: The speaker of each utterance.
        recipe: The training settings.
        rng: Draws speakers, utterances and segments.
        progress: Called with the step and the loss.

    Raises:
        ValueError: The utterances make no triplet.
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
