"""The records that walk the one-way path.

    Update -> Interception -> Observation -> Reconstruction -> Finding

Each is frozen and made in one place: the client makes an `Update`, the curious server an
`Interception`, the threat model an `Observation`, an adversary a `Reconstruction`, the campaign a
`Finding`. None flows back. `Truth` never walks it: the scorer re-derives it from
(seed, client, round).
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedsim.errors import NotGranted, UpdateRefused
from fedsim.knowledge import Knowledge
from fedsim.spec import BLANK_PIECE, END, UNKNOWN, WORD_START, Spec, Tokens
from fedsim.victim import VictimModel

__all__ = [
    "BLANK_PIECE",
    "END",
    "UNKNOWN",
    "WORD_START",
    "Batch",
    "Finding",
    "Interception",
    "Observation",
    "Reconstruction",
    "Spec",
    "Status",
    "Tokens",
    "Truth",
    "Update",
]

Kind = Literal["gradient", "delta", "weights"]
Reduction = Literal["example", "token", "sequence"]
Status = Literal["ok", "denied", "failed", "timeout"]

LARGEST = 1e15
"""A value above this is refused: its square overflows float32, and no honest client sends one."""

MOST = 1_000_000
"""More examples or steps than this behind one update are refused: attacks count them out."""

MOST_NAMED = 16
"""Clients that the key of an interception names one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A training batch: inputs (B, ...) float32, labels (B,) int64, lengths (B,) int64 or None.

    Of sequences, inputs are (B, T, F), padded with 0 beyond their lengths, and labels (B, L),
    padded with -100. Of text, inputs are token ids (B, L) int64, padded beyond their lengths;
    labels (B,), or (B, L) with -100 wherever nothing is to be told. attributes: of public
    examples, what else is known, one value an example (who speaks, say).
    """

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None = None
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on another device."""
        lengths = None if self.lengths is None else self.lengths.to(device)
        return Batch(self.inputs.to(device), self.labels.to(device), lengths, self.attributes)


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One client's contribution to a round, by parameter name.

    tensors: trained parameters: gradient of the loss, `delta` (after - before) or new weights.
    buffers: floating-point buffers as the client leaves them (running statistics).
    lr, momentum, weight_decay, steps: the local optimizer's settings; lr None when not known.
    optimizer: "sgd", another name, or "unknown" where nobody named it.
    num_examples: examples that went into the update, all steps together, with multiplicity.
    reduction: what the training loss is a mean over.
    """

    tensors: Mapping[str, Tensor]
    kind: Kind
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: str = "sgd"
    lr: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    steps: int = 1
    num_examples: int = 1
    reduction: Reduction = "example"

    def replace(self, **changes: Any) -> "Update":
        """A copy with some fields changed (a defense returns one)."""
        return dataclasses.replace(self, **changes)

    def check(self, before: Mapping[str, Tensor]) -> None:
        """Refuse a hostile or broken update.

        before: the global arrays that were sent; names and shapes must agree with them.
        Raises `UpdateRefused` for missing, extra or wrongly shaped tensors, NaN, Inf, values
        beyond 1e15, and for step or example counts below 1.
        """
        found = {**self.tensors, **self.buffers}
        if missing := sorted(before.keys() - found.keys()):
            raise UpdateRefused(f"tensors are missing: {_few(missing)}; expected {len(before)}")
        if extra := sorted(found.keys() - before.keys()):
            raise UpdateRefused(f"tensors that were not asked for: {_few(extra)}")
        for name, tensor in found.items():
            if tensor.shape != before[name].shape:
                raise UpdateRefused(
                    f"'{name}' has shape {tuple(tensor.shape)}, expected "
                    f"{tuple(before[name].shape)}"
                )
            if not tensor.is_floating_point():
                raise UpdateRefused(f"'{name}' holds {tensor.dtype}, expected floating point")
            if not torch.isfinite(tensor).all():
                bad = int((~torch.isfinite(tensor)).sum())
                raise UpdateRefused(f"'{name}' holds {bad} NaN or Inf of {tensor.numel()} values")
            if tensor.numel() and float(tensor.abs().max()) > LARGEST:
                raise UpdateRefused(
                    f"'{name}' holds {float(tensor.abs().max()):.1e}; beyond {LARGEST:.0e} "
                    "no honest update goes"
                )
        if not (1 <= self.steps <= MOST and 1 <= self.num_examples <= MOST):
            raise UpdateRefused(
                f"{self.num_examples} examples in {self.steps} steps; expected 1 to {MOST} of each"
            )
        settings = (0.0 if self.lr is None else self.lr, self.momentum, self.weight_decay)
        if not all(0 <= value < LARGEST for value in settings) or self.momentum >= 1:
            raise UpdateRefused(
                f"lr {self.lr}, momentum {self.momentum}, weight decay {self.weight_decay}; "
                "expected none below 0, and a momentum below 1"
            )
        if self.lr == 0:
            raise UpdateRefused("lr 0: nothing was trained")


@dataclass(frozen=True, slots=True, eq=False)
class Interception:
    """What the curious server saw of one client (several under secure aggregation) in a round.

    before: the global arrays the client started from, parameters and buffers by name.
    """

    round: int
    clients: tuple[int, ...]
    before: Mapping[str, Tensor]
    update: Update

    @property
    def victim(self) -> str:
        """A key that joins everything about this interception, such as `r0003-c0017`.

        It names files, which hold 255 characters: of more than 16 clients it names the first and
        a hash of them all.
        """
        clients = "+".join(f"{client:04d}" for client in self.clients)
        if len(self.clients) > MOST_NAMED:
            digest = hashlib.blake2b(clients.encode(), digest_size=6).hexdigest()
            clients = f"{self.clients[0]:04d}+{len(self.clients) - 1}-{digest}"
        return f"r{self.round:04d}-c{clients}"


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The examples behind an interception, re-derived by the scorer; no adversary gets this.

    inputs: one tensor an example; labels (N,) int64; sequences: one (L,) int64 tensor an example,
    in which case labels are those of all sequences, one after the other, -100 left out. lengths:
    frames or tokens of each input. tokens: of text, the ids of each example before any was masked.
    text: a transcript, or the text, an example. attributes: a list, one value an example.
    """

    inputs: Sequence[Tensor] | None = None
    labels: Tensor | None = None
    sequences: Sequence[Tensor] | None = None
    lengths: Sequence[int] | None = None
    tokens: Sequence[Tensor] | None = None
    text: Sequence[str] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_examples(self) -> int:
        """How many examples there are; 0 where nothing is known of them."""
        known = (self.sequences, self.labels, self.inputs)
        return next((len(each) for each in known if each is not None), 0)


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """All that an adversary ever sees: the parts of an interception that the threat model grants.

    gradient: gradient of the loss, mean over examples, by parameter name, float32; only the
        head's parameters under `HEAD_GRADIENT` alone. Positive direction is uphill, whatever the
        client sent.
    exact: whether that gradient is exact; False once several local steps were taken.
    head: name of the projection layer, so that its weight is `gradient[f"{head}.weight"]`.
    model: the victim's model before the round. labels (N,) int64, or (N, L) padded with -100 where
        they are sequences. lengths (N,): frames or tokens of each input. Both are sorted, labels
        first, a label with its length: their order tells nothing.
    num_examples: examples behind the update. steps, lr: local steps and learning rate.
    auxiliary: examples disjoint from every victim's. prior: of text, public texts, none of them a
        victim's.
    defenses: what the clients run, by name. history: earlier observations of the same client.

    What was not granted is None (or empty); `know` raises instead.
    """

    granted: Knowledge
    spec: Spec
    head: str
    gradient: Mapping[str, Tensor] = field(default_factory=dict)
    exact: bool = True
    model: VictimModel | None = None
    labels: Tensor | None = None
    lengths: Sequence[int] | None = None
    num_examples: int | None = None
    steps: int | None = None
    lr: float | None = None
    buffers: Mapping[str, Tensor] | None = None
    auxiliary: Batch | None = None
    prior: Any = None
    defenses: tuple[str, ...] | None = None
    history: "tuple[Observation, ...] | None" = None

    def know(self, what: Knowledge) -> Any:
        """The value of one kind of knowledge; raises `NotGranted` where it is withheld."""
        if what not in self.granted:
            raise NotGranted(
                f"this attack asked for {what.name}; the threat model grants "
                f"{self.granted.name or 'nothing'}. Add it to threat.grants, or choose an attack "
                "that does without."
            )
        name = str(what.name).lower()
        value: Any
        if name == "gradient":
            value = self.gradient
        elif name == "head_gradient":
            own = {k: v for k, v in self.gradient.items() if k.startswith(f"{self.head}.")}
            value = own or self.gradient  # of a head that is not there, what could be it
        else:
            value = getattr(self, FIELDS.get(name, name))
        if value is None:
            raise NotGranted(f"{what.name} is granted, but this task has none to give")
        return value


FIELDS = {
    "batch_size": "num_examples",
    "local_steps": "steps",
    "learning_rate": "lr",
    "defense": "defenses",
}
"""The field of `Observation` by the name of the knowledge, where the two differ."""


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """What an adversary claims about the victim's examples; a metric says which field it scores.

    label_set: labels present. label_counts: how often each. labels (N,): one an example.
    label_scores (classes,): an estimate of every count before it is made a whole number.
    sequences: label sequences. num_labels: how many labels in all. inputs: one tensor an example.
    tokens, text: one an example. token_counts: how often each token, all examples together; of a
    set, once each. attributes: of a speaker, say, one ranking an example, in the order of `inputs`
    if there are such: a score by candidate.
    objective: the attack's own final loss, infinite where it never was finite.
    trace: (iteration, objective) pairs.
    outcomes: how each start of an optimisation ended: "matched" the gradient, "diverged",
        "stalled", or ran out of "steps" or "budget".
    diagnostics: whatever explains the outcome, or why there is none.
    """

    label_set: frozenset[int] | None = None
    label_counts: Mapping[int, int] | None = None
    labels: Tensor | None = None
    label_scores: Tensor | None = None
    sequences: Sequence[Tensor] | None = None
    num_labels: int | None = None
    inputs: Sequence[Tensor] | None = None
    tokens: Sequence[Tensor] | None = None
    token_counts: Mapping[int, int] | None = None
    text: Sequence[str] | None = None
    attributes: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    objective: float | None = None
    outcomes: Sequence[str] | None = None
    trace: Sequence[tuple[int, float]] = ()
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric of one attack on one victim: a row of `findings.csv`.

    point: which point of a sweep. client: the client's number, joined by + for an aggregate.
    victim: the interception's key. value: the score, None unless `status` is ok.
    baseline: what a random guess scores on the same victim. baseline_prior: what a guess from
    public data scores. attempt: which try this was (1, as none is repeated yet). seconds: wall
    clock of the attack. granted: knowledge, joined by |. label: the adversary's own name in the
    scenario.
    inclusion: probability that this victim was attacked, among the round's participants.
    artifact: path in the run folder of what was reconstructed.
    """

    scenario: str
    point: str
    seed: int
    round: int
    client: str
    victim: str
    adversary: str
    metric: str
    value: float | None
    baseline: float | None
    baseline_prior: float | None
    status: Status
    error: str
    attempt: int
    seconds: float
    iterations: int
    granted: str
    label: str
    batch_size: int
    local_steps: int
    inclusion: float
    artifact: str


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name)[:60] for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
