"""Listen, attend and spell (Chan et al., 2016): word pieces by attention. RLG attacks it."""

from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedsim.records import END
from fedsim.tasks.speech.recognisers.recogniser import PADDING, Recogniser, run_lstm

WEIGHTS = 0.1
"""Initial weights are drawn from U(-0.1, 0.1) (Chan et al., section 4)."""

State = tuple[Tensor, Tensor]


class _Listener(nn.Module):
    """The encoder: a pyramid of bidirectional LSTMs, each with half the frames of the one below."""

    def __init__(self, features: int, hidden: int, levels: int) -> None:
        super().__init__()
        sizes = [features, *[4 * hidden] * levels]
        self.levels = nn.ModuleList(
            nn.LSTM(size, hidden, batch_first=True, bidirectional=True) for size in sizes
        )

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode frames.

        Args:
            inputs: Frames of shape (B, T, features).
            lengths: The number of frames of each utterance, int64 of shape (B,).

        Returns:
            Encoded frames of shape (B, T', 2 hidden), zero beyond an utterance's end, and the
            number of them of each utterance, of shape (B,).
        """
        for index, level in enumerate(self.levels):
            if index:
                odd = inputs.shape[1] % 2
                inputs = functional.pad(inputs, (0, 0, 0, odd))
                inputs = torch.cat([inputs[:, ::2], inputs[:, 1::2]], dim=2)
                lengths = (lengths + 1) // 2
            inputs = run_lstm(level, inputs, lengths)
        return inputs, lengths


class _Cell(nn.Module):
    """An LSTM cell made of two linear layers, whose gates are input, forget, new and output."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inward = nn.Linear(inputs, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)

    def start(self, like: Tensor) -> State:
        zeros = like.new_zeros(len(like), self.recurrent.in_features)
        return zeros, zeros

    def forward(self, driven: Tensor, state: State) -> State:
        """One step; `driven` is the output of `inward` for the input, of shape (B, 4 hidden)."""
        output, memory = state
        gates = (driven + self.recurrent(output)).chunk(4, dim=1)
        forgotten = gates[1].sigmoid() * memory
        memory = forgotten + gates[0].sigmoid() * gates[2].tanh()
        return gates[3].sigmoid() * memory.tanh(), memory


class _Embedding(nn.Embedding):
    """Embeddings of labels, int64 (...,), or of soft labels (..., C): e = sum_k p^k E(c_k)."""

    def forward(self, input: Tensor) -> Tensor:
        if input.is_floating_point():
            return input @ self.weight
        return super().forward(input)


class _Speller(nn.Module):
    """The decoder: s_i = LSTM(s_{i-1}, [e_{i-1}, a_{i-1}]), logits of tanh(projection [s_i, a_i]).

    It depends on the encoder only through the context vectors a_i; a_0 is zero.
    """

    def __init__(self, context: int, vocabulary: int, settings: "LAS") -> None:
        super().__init__()
        hidden = settings.decoder
        sizes = [settings.embedding + context, *[hidden] * (settings.decoder_layers - 1)]
        self.embedding = _Embedding(vocabulary, settings.embedding)
        self.cells = nn.ModuleList(_Cell(size, hidden) for size in sizes)
        self.projection = nn.Linear(hidden + context, settings.projection)
        self.head = nn.Linear(settings.projection, vocabulary)

    def layers(self) -> list[_Cell]:
        return [cell for cell in self.cells if isinstance(cell, _Cell)]

    def logits(self, outputs: Tensor, contexts: Tensor) -> Tensor:
        scores: Tensor = self.head(self.projection(torch.cat([outputs, contexts], dim=-1)).tanh())
        return scores

    def start(self, like: Tensor) -> list[State]:
        return [cell.start(like) for cell in self.layers()]

    def step(self, embedded: Tensor, context: Tensor, states: list[State]) -> list[State]:
        """Advance all layers by one step.

        Args:
            embedded: The embedding of the previous label, of shape (B, e).
            context: The previous context vector, of shape (B, d_A).
            states: The state of each layer.
        """
        below, new = torch.cat([embedded, context], dim=1), []
        for cell, state in zip(self.layers(), states, strict=True):
            new.append(cell(cell.inward(below), state))
            below = new[-1][0]
        return new

    def forward(self, contexts: Tensor, before: Tensor) -> Tensor:
        """Compute logits of shape (B, L, C) if all context vectors are known.

        The inputs of a layer are then known for all steps at once.

        Args:
            contexts: Context vectors of shape (B, L, d_A).
            before: The label before each step, of shape (B, L), or soft labels of shape (B, L, C).
        """
        earlier = functional.pad(contexts[:, :-1], (0, 0, 1, 0))
        below = torch.cat([self.embedding(before), earlier], dim=2)
        for cell in self.layers():
            driven, state, outputs = cell.inward(below), cell.start(contexts), []
            for step in range(contexts.shape[1]):
                state = cell(driven[:, step], state)
                outputs.append(state[0])
            below = torch.stack(outputs, dim=1)
        return self.logits(below, contexts)


class ListenAttendSpell(nn.Module):
    """The network: `listener`, attention (`query`, `key`) and `speller`, which contains the head.

    Attributes:
        context_size: d_A, the length of a context vector.
    """

    def __init__(self, features: int, vocabulary: int, settings: "LAS") -> None:
        super().__init__()
        self.context_size = 2 * settings.encoder
        self.listener = _Listener(features, settings.encoder, settings.pyramid)
        self.query = nn.Linear(settings.decoder, settings.attention)
        self.key = nn.Linear(self.context_size, settings.attention)
        self.speller = _Speller(self.context_size, vocabulary, settings)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -WEIGHTS, WEIGHTS)

    def listen(self, inputs: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Encode frames for `attend`.

        Returns:
            Encoded frames h of shape (B, T', d_A), their keys of shape (B, T', attention), and
            which of them belong to an utterance, bool of shape (B, T').
        """
        if lengths is None:
            lengths = torch.full((len(inputs),), inputs.shape[1])
        encoded, left = self.listener(inputs, lengths)
        present = torch.arange(encoded.shape[1]) < left.cpu()[:, None]
        return encoded, self.key(encoded), present.to(encoded.device)

    def attend(self, output: Tensor, encoded: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Weight frames by softmax <query(s), key(h)>: the context vector, of shape (B, d_A)."""
        frames, keys, present = encoded
        energies = (keys @ self.query(output)[:, :, None])[:, :, 0]
        weights = energies.masked_fill(~present, -torch.inf).softmax(dim=1)
        return cast(Tensor, (weights[:, None] @ frames)[:, 0])

    def forward(
        self, inputs: Tensor, before: Tensor, lengths: Tensor | None = None, at: str = "input"
    ) -> Tensor:
        """Compute logits of shape (B, L, C).

        Args:
            inputs: Frames of shape (B, T, features), or at "context" context vectors of shape (B,
                L, d_A).
            before: The label before each step, int64 of shape (B, L), or soft labels of shape (B,
                L, C).
            lengths: The number of frames of each utterance, int64 of shape (B,); None if all are
                full.
            at: The kind of inputs, "input" or "context".
        """
        if at == "context":
            return cast(Tensor, self.speller(inputs, before))
        encoded = self.listen(inputs, lengths)
        embedded = self.speller.embedding(before)
        states = self.speller.start(embedded)
        context = embedded.new_zeros(len(embedded), self.context_size)
        outputs, contexts = [], []
        for step in range(embedded.shape[1]):
            states = self.speller.step(embedded[:, step], context, states)
            context = self.attend(states[-1][0], encoded)
            outputs.append(states[-1][0])
            contexts.append(context)
        return self.speller.logits(torch.stack(outputs, dim=1), torch.stack(contexts, dim=1))


def sequence_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Cross-entropy with teacher forcing, mean over all tokens of the batch.

    Args:
        module: The model.
        inputs: Frames, float32 of shape (B, T, features), padded with 0; at "context" the context
            vectors that attention would give, of shape (B, L, d_A).
        target: Labels, int64 of shape (B, L), each sequence ending with label 0 and padded with
            -100; or soft labels of shape (B, L, C) without padding, which are fed back as e_i =
            sum_k p_i^k E(c_k) (RLG, section 4.1).
        lengths: The number of frames of each utterance, int64 of shape (B,); None if all are full.
        at: The kind of inputs, "input" or "context".
    """
    if target.is_floating_point():
        first = functional.one_hot(target.new_full((len(target), 1), END).long(), target.shape[2])
        before = torch.cat([first.to(target), target[:, :-1]], dim=1)
        scores: Tensor = module(inputs, before, lengths, at).log_softmax(dim=2)
        return -(target * scores).sum(dim=2).mean()
    before = functional.pad(target.clamp(min=0)[:, :-1], (1, 0), value=END)
    logits = module(inputs, before, lengths, at)
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PADDING)


class LAS(Recogniser):
    """Listen, attend and spell (Chan et al., 2016): word pieces by attention.

    The encoder is a pyramid of LSTMs. RLG's model is of this kind; it has 16k word pieces and a
    tanh before the head, whose input has 3,072 values in the authors' code. The defaults here are
    small enough for a CPU.
    """

    units = "wordpieces"
    points = ("input", "context")
    loss = staticmethod(sequence_loss)
    reduction = "token"

    name: str = "las"
    encoder: int = Field(default=64, ge=1)
    """Units of each encoder layer in each direction; a context vector has twice as many values."""

    pyramid: int = Field(default=2, ge=0, le=6)
    """Number of encoder layers that halve the number of frames."""

    attention: int = Field(default=64, ge=1)
    """Number of values in queries and keys."""

    embedding: int = Field(default=64, ge=1)
    """Number of values in the embedding of a word piece."""

    decoder: int = Field(default=128, ge=1)
    """Units of each decoder layer."""

    decoder_layers: int = Field(default=1, ge=1, le=4)
    """Number of decoder layers."""

    projection: int = Field(default=128, ge=1)
    """Number of values in the head's input; RLG's authors have 3,072."""

    def build(self, features: int, vocabulary: int) -> ListenAttendSpell:
        """Build a model with weights from U(-0.1, 0.1)."""
        return ListenAttendSpell(features, vocabulary, self)

    def find_head(self, module: nn.Module, features: int, vocabulary: int) -> str:
        """The name of the head."""
        return "speller.head"

    @torch.no_grad()
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor | None, longest: int
    ) -> list[Tensor]:
        """Transcribe by the most probable word piece at each step, up to label 0."""
        assert isinstance(module, ListenAttendSpell)  # noqa: S101 - `build` made it
        speller, encoded = module.speller, module.listen(inputs, lengths)
        label = torch.full((len(inputs),), END, device=inputs.device)
        states = speller.start(inputs)
        context = inputs.new_zeros(len(inputs), module.context_size)
        labels: list[Tensor] = []
        ended = torch.zeros_like(label, dtype=torch.bool)
        while len(labels) < longest and not bool(ended.all()):
            states = speller.step(speller.embedding(label), context, states)
            context = module.attend(states[-1][0], encoded)
            label = speller.logits(states[-1][0], context).argmax(dim=1)
            ended |= label == END
            labels.append(label.masked_fill(ended, END))
        rows = torch.stack(labels, dim=1) if labels else label.new_zeros(len(inputs), 0)
        return [row[row != END] for row in rows]
