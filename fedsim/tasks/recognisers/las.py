"""A stand-in for listen, attend and spell: one GRU listens, one spells."""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedsim.tasks.recognisers import Recogniser

__all__ = ["LAS"]


class _Network(nn.Module):
    def __init__(self, features: int, vocabulary: int, size: int) -> None:
        super().__init__()
        self.listen = nn.GRU(features, size, batch_first=True)
        self.embedding = nn.Embedding(vocabulary, size)
        self.spell = nn.GRU(size, size, batch_first=True)
        self.project = nn.Linear(2 * size, size)
        self.head = nn.Linear(size, vocabulary)

    def forward(self, inputs: Tensor, lengths: Tensor | None, fed: Tensor, at: str) -> Tensor:
        states, _ = self.spell(self.embedding(fed))
        context = inputs
        if at == "input":
            heard, _ = self.listen(inputs)
            scores = states @ heard.transpose(1, 2)
            if lengths is not None:
                beyond = torch.arange(inputs.shape[1], device=inputs.device) >= lengths[:, None]
                scores = scores.masked_fill(beyond[:, None], -torch.inf)
            context = scores.softmax(dim=2) @ heard
        logits: Tensor = self.head(torch.tanh(self.project(torch.cat([states, context], dim=2))))
        return logits


def _loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    fed = functional.pad(target.clamp(min=0)[:, :-1], (1, 0))
    logits = module(inputs, lengths, fed, at)
    return functional.cross_entropy(logits.transpose(1, 2), target, ignore_index=-100)


class LAS(Recogniser):
    """A stand-in until listen, attend and spell is here."""

    name: str = "las"
    size: int = Field(default=32, ge=1, description="units of each layer")

    points: ClassVar[tuple[str, ...]] = ("input", "context")
    loss = staticmethod(_loss)

    def build(self, features: int, vocabulary: int) -> nn.Module:
        """A new network."""
        return _Network(features, vocabulary, self.size)

    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor, longest: int
    ) -> list[Tensor]:
        """The likeliest label at each step, fed back."""
        fed = torch.zeros(len(inputs), 1, dtype=torch.int64, device=inputs.device)
        with torch.no_grad():
            for _ in range(longest):
                best = module(inputs, lengths, fed, "input")[:, -1].argmax(dim=1, keepdim=True)
                fed = torch.cat([fed, best], dim=1)
        ends = torch.cat([fed[:, 1:] == 0, torch.ones_like(fed[:, :1], dtype=torch.bool)], dim=1)
        stops = ends.int().argmax(dim=1).tolist()
        return [row[1 : 1 + stop].cpu() for row, stop in zip(fed, stops, strict=True)]
