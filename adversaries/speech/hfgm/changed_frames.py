"""Incremental forward pass of DeepSpeech for many utterances that differ in one frame."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

SETTLED = 1e-7
"""Distance from the unchanged utterance's recurrent state below which both count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class _Direction:
    """Weights of one direction of an LSTM, with the sum of both biases."""

    inputs: Tensor
    recurrent: Tensor
    bias: Tensor
    backwards: bool

    def turn(self, values: Tensor, dim: int) -> Tensor:
        """Bring values in the order of time into that of the direction, or back."""
        return values.flip(dim) if self.backwards else values


class ChangedFrames:
    """Head inputs and logits of K utterances that differ from a base utterance in one frame each.

    A changed frame is part of 2 context + 1 windows. Layers that see one window at a time are
    recomputed for these alone, the first layer only for the share of the changed frame. The
    recurrence continues from the base utterance's state before the first changed window, and stops
    when its state has returned to that of the base utterance (`SETTLED`), since an LSTM forgets.
    Later layers are recomputed where the recurrence was.

    Args:
        module: A model with the parts `dense`, `recurrent`, `joint` and `head` of DeepSpeech, in
            evaluation mode. All tensors are on its device.
        features: Number of values of a frame.

    Raises:
        ValueError: The model is built differently.
    """

    def __init__(self, module: nn.Module, features: int) -> None:
        parts = ("dense", "recurrent", "joint", "head")
        dense, recurrent, joint, head = (getattr(module, name, None) for name in parts)
        first = dense[0] if isinstance(dense, nn.Sequential) else None
        if not (
            isinstance(dense, nn.Sequential)
            and isinstance(first, nn.Linear)
            and isinstance(joint, nn.Module)
            and isinstance(head, nn.Linear)
            and isinstance(recurrent, nn.LSTM)
            and (recurrent.num_layers, recurrent.proj_size, recurrent.bias) == (1, 0, True)
            and first.in_features % features == 0
            and first.in_features // features % 2 == 1
        ):
            raise ValueError("no DeepSpeech of one LSTM layer over windows of frames")
        self.first, self.rest, self.joint, self.head = first, dense[1:], joint, head
        self.seen = first.in_features // features
        self.context = self.seen // 2
        # (features, places in a window, units): the contribution of a frame to a unit
        shares = first.weight.detach().view(-1, self.seen, features)
        self.shares = shares.permute(2, 1, 0).contiguous()
        self.directions = [
            _Direction(inputs.detach(), hidden.detach(), (bias + other).detach(), at > 0)
            for at, (inputs, hidden, bias, other) in enumerate(recurrent.all_weights)
        ]

    @torch.no_grad()
    def base(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Set the base utterance (T, features); return its head inputs (T, h) and logits (T, C)."""
        padded = functional.pad(frames, (0, 0, self.context, self.context))
        windows = padded.unfold(0, self.seen, 1).transpose(1, 2).flatten(1)
        self.before = self.first(windows)
        entered, ways = self.rest(self.before), self.directions
        self.gates = [way.turn(functional.linear(entered, way.inputs, way.bias), 0) for way in ways]
        self.states = [
            _states(gates, way.recurrent) for gates, way in zip(self.gates, ways, strict=True)
        ]
        outputs = [
            way.turn(states[0, 1:], 0) for states, way in zip(self.states, ways, strict=True)
        ]
        self.outputs = torch.cat(outputs, dim=1)
        self.features = self.joint(self.outputs)
        self.logits = self.head(self.features)
        return self.features, self.logits

    @torch.no_grad()
    def __call__(self, at: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
        """Head inputs (K, T, h) and logits (K, T, C) for K changes of the base utterance.

        Args:
            at: Index of the changed frame, (K,) int64.
            moves: Vectors added to that frame, (K, features).
        """
        frames, count = len(self.before), len(at)
        places = torch.arange(self.seen, device=at.device)
        # In the window around frame t, frame f has the place f - t + context.
        windows = at[:, None] + self.context - places
        inside = (windows >= 0) & (windows < frames)
        added = (moves @ self.shares.flatten(1)).view(count, self.seen, -1)
        # Places rather than masks, as a GPU has to end its work for each index by a mask.
        who, place = inside.nonzero(as_tuple=True)
        near = windows[who, place]
        changed = self.rest(self.before[near] + added[who, place])
        rows = torch.full((count, frames), -1, dtype=torch.int64, device=at.device)
        rows[who, near] = torch.arange(len(changed), device=at.device)

        outputs = self.outputs.expand(count, -1, -1).clone()
        touched = torch.zeros(count, frames, dtype=torch.bool, device=at.device)
        parts = outputs.chunk(len(self.directions), dim=2)
        for way, gates, states, part in zip(
            self.directions, self.gates, self.states, parts, strict=True
        ):
            own = functional.linear(changed, way.inputs, way.bias)
            turned, marked = way.turn(part, 1), way.turn(touched, 1)
            self._recur(way, gates, states, own, way.turn(rows, 1), turned, marked)
            part.copy_(way.turn(turned, 1))
            touched = way.turn(marked, 1)
        features = self.features.expand(count, -1, -1).clone()
        logits = self.logits.expand(count, -1, -1).clone()
        who, when = touched.nonzero(as_tuple=True)
        features[who, when] = self.joint(outputs[who, when])
        logits[who, when] = self.head(features[who, when])
        return features, logits

    def _recur(
        self,
        way: _Direction,
        gates: Tensor,
        states: Tensor,
        own: Tensor,
        rows: Tensor,
        outputs: Tensor,
        touched: Tensor,
    ) -> None:
        """Recompute one direction where it changes.

        Args:
            way: Weights of the direction.
            gates: Gate inputs of the base utterance, (T, 4 R).
            states: Outputs and cells of the base utterance, (2, T + 1, R).
            own: Gate inputs of changed windows, (N, 4 R).
            rows: For each change and time the row of `own`, -1 if unchanged, (K, T) int64.
            outputs: Written in place, (K, T, R).
            touched: Set where `outputs` was written, (K, T) bool.
        """
        frames = rows.shape[1]
        begins = (rows >= 0).int().argmax(dim=1)
        ends = frames - (rows >= 0).flip(1).int().argmax(dim=1)
        times = torch.arange(frames, device=begins.device)
        counts = (begins == times[:, None]).sum(dim=1).tolist()
        beginning = torch.split(begins.argsort(stable=True), counts)
        going = rows.new_zeros(0)
        now = states[:, 0].new_zeros(2, 0, states.shape[2])
        for t, new in enumerate(beginning):
            if len(new):
                going = torch.cat([going, new])
                now = torch.cat([now, states[:, t, None].expand(-1, len(new), -1)], dim=1)
            if not len(going):
                continue
            row = rows[going, t]
            mine = torch.where((row >= 0)[:, None], own[row.clamp(min=0)], gates[t])
            now = _step(mine, now, way.recurrent)
            outputs[going, t] = now[0]
            touched[going, t] = True
            apart = (now - states[:, t + 1, None]).abs().amax(dim=(0, 2))
            stays = (apart > SETTLED) | (ends[going] > t + 1)
            if not bool(stays.all()):
                going, now = going[stays], now[:, stays]


def _step(gates: Tensor, state: Tensor, recurrent: Tensor) -> Tensor:
    """One LSTM step: output and cell (2, n, R) from gate inputs (n, 4 R) and the state before."""
    enter, forget, cell, leave = (gates + state[0] @ recurrent.T).chunk(4, dim=1)
    kept = forget.sigmoid() * state[1] + enter.sigmoid() * cell.tanh()
    return torch.stack([leave.sigmoid() * kept.tanh(), kept])


def _states(gates: Tensor, recurrent: Tensor) -> Tensor:
    """Outputs and cells (2, T + 1, R) from gate inputs (T, 4 R), beginning with zeros."""
    start = gates.new_zeros(2, 1, recurrent.shape[1])
    steps = itertools.accumulate(
        gates, lambda state, own: _step(own[None], state, recurrent), initial=start
    )
    return torch.cat(list(steps), dim=1)
