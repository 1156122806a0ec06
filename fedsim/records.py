"""The frozen records that pass from the client to the findings, in one direction only.

    Update -> Interception -> Observation -> Reconstruction -> Finding

The client makes an `Update`, the curious server an `Interception`, the threat model an
`Observation`, an adversary a `Reconstruction`, and the campaign a `Finding`. `Truth` is not on this
path: the scorer derives it again from (seed, client, round).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from fedsim.errors import NotGranted
from fedsim.knowledge import Knowledge
from fedsim.spec import BLANK_PIECE as BLANK_PIECE
from fedsim.spec import END as END
from fedsim.spec import UNKNOWN as UNKNOWN
from fedsim.spec import WORD_START as WORD_START
from fedsim.spec import Spec as Spec
from fedsim.spec import Tokens as Tokens
from fedsim.update import LARGEST as LARGEST
from fedsim.update import MOST as MOST
from fedsim.update import Kind as Kind
from fedsim.update import Reduction as Reduction
from fedsim.update import Update as Update
from fedsim.victim import VictimModel

Status = Literal["ok", "denied", "failed", "timeout", "unverified"]

MOST_NAMED = 16
"""Largest number of clients that the key of an interception names one by one."""

PROBES = 2**31
"""First number by which probes are drawn; no run has as many rounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch of B training examples.

    Attributes:
        inputs: float32 (B, ...); speech: frames (B, T, F), padded with 0; text: ids (B, L) int64.
        labels: int64 (B,), or (B, L) with -100 for padding and for tokens that are not predicted.
        lengths: Frames or tokens of each example, (B,) int64; None if inputs have a fixed shape.
        attributes: What else is known of public examples (the speaker): lists by attribute.
    """

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None = None
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch with all tensors on another device; itself if it is there."""
        if self.inputs.device == self.labels.device == torch.device(device):
            return self
        lengths = None if self.lengths is None else _copied(self.lengths, device)
        inputs, labels = (_copied(one, device) for one in (self.inputs, self.labels))
        return Batch(inputs, labels, lengths, self.attributes)


def _copied(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on a device. A GPU takes it from pinned memory while Python goes on."""
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, slots=True)
class Probe:
    """An update that no client sent: a client's local training, repeated on a round's global model.

    It is computed for an attack, on batches that are the same in every round, so that two rounds
    differ by the model alone.

    Attributes:
        number: The client's probes are numbered from 0.
        batch_size: Number of examples in a local batch.
    """

    number: int
    batch_size: int

    @property
    def draw(self) -> int:
        """The number by which its batches and noise are drawn, in place of a round's."""
        return PROBES + self.number


@dataclass(frozen=True, slots=True, eq=False)
class Interception:
    """An update as the honest-but-curious server received it, or a probe.

    `clients` holds several numbers under secure aggregation. `before` is the global model from
    which the client started: parameters and buffers by name. `probe` is None for what was received;
    the update of a probe is computed when it is attacked.
    """

    round: int
    clients: tuple[int, ...]
    before: Mapping[str, Tensor]
    update: Update
    probe: Probe | None = None

    @property
    def draw(self) -> int:
        """The round whose batches and noise the update has, or the probe's number for them."""
        return self.round if self.probe is None else self.probe.draw

    @property
    def victim(self) -> str:
        """Key in tables and file names, such as `r0003-c0017`, or `r0003-c0017-p00` of a probe.

        File names hold 255 characters at most: for more than 16 clients the key holds the first
        client, the number of the others, and a hash of all.
        """
        clients = "+".join(f"{client:04d}" for client in self.clients)
        if len(self.clients) > MOST_NAMED:
            digest = hashlib.blake2b(clients.encode(), digest_size=6).hexdigest()
            clients = f"{self.clients[0]:04d}+{len(self.clients) - 1}-{digest}"
        probe = "" if self.probe is None else f"-p{self.probe.number:02d}"
        return f"r{self.round:04d}-c{clients}{probe}"


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Examples among which a server that has feature vectors looks for a victim's examples.

    Attributes:
        public: Inputs of the task's public examples, one tensor for each of P.
        features: Inputs of the head for the public examples and then the victim's N, (P + N, d), as
            the server computes them from one batch of all.
    """

    public: Sequence[Tensor]
    features: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The N examples behind an interception, derived again by the scorer; no adversary gets it.

    `inputs` holds one tensor for each example, `lengths` its frames or tokens. `labels` is (N,)
    int64; with label `sequences`, one (L,) int64 tensor for each example, it joins them without
    -100. `tokens` are ids before masking, `text` is the transcript or text, and `attributes` holds
    lists of one value for each example. `features` are the inputs of the head, (N, d) with a row
    for each label, and `candidates` those of examples to tell from each other, where an adversary
    claims features.
    """

    inputs: Sequence[Tensor] | None = None
    labels: Tensor | None = None
    sequences: Sequence[Tensor] | None = None
    lengths: Sequence[int] | None = None
    tokens: Sequence[Tensor] | None = None
    text: Sequence[str] | None = None
    features: Tensor | None = None
    candidates: Candidates | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_examples(self) -> int:
        """Number of examples; 0 if nothing about them is known."""
        known = (self.sequences, self.labels, self.inputs)
        return next((len(each) for each in known if each is not None), 0)


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """The parts of an interception that the threat model grants: all that an adversary sees.

    A field that was not granted is None (or empty); `know` raises an error instead.

    Attributes:
        gradient: Gradient of the loss, mean over examples, by parameter name, whatever the client
            sent; in the type of its arrays, float32 for fedsim's own clients. Under `HEAD_GRADIENT`
            alone, only the head's parameters.
        exact: Whether it is exact; it is not after several local steps, for example.
        divisor: If the client sent weights, what their change was divided by, so that it sent
            before - divisor x gradient; else None. Rounding of weights leaves errors in `gradient`.
        head: Name of the projection layer, whose weight is `gradient[f"{head}.weight"]`.
        model: The victim's model before the round.
        labels: int64 (N,), or (N, L) padded with -100; sorted, so that the order shows nothing.
        lengths: Frames or tokens of each input; sorted, or in the order of `labels` if granted.
        num_examples: Number of examples behind the update; `steps`, `lr`: of local training.
        optimizer: Local optimizer, granted with `lr`: "sgd", another name, or "unknown".
        auxiliary: Labelled examples, none of them a victim's.
        prior: For text, public texts, none of them a victim's.
        defenses: Names of the clients' defenses.
        history: Earlier observations of the same client.
    """

    granted: Knowledge
    spec: Spec
    head: str
    gradient: Mapping[str, Tensor] = field(default_factory=dict)
    exact: bool = True
    divisor: float | None = None
    model: VictimModel | None = None
    labels: Tensor | None = None
    lengths: Sequence[int] | None = None
    num_examples: int | None = None
    steps: int | None = None
    lr: float | None = None
    optimizer: str | None = None
    buffers: Mapping[str, Tensor] | None = None
    auxiliary: Batch | None = None
    prior: Any = None
    defenses: tuple[str, ...] | None = None
    history: "tuple[Observation, ...] | None" = None

    def know(self, what: Knowledge) -> Any:
        """Return the value of one kind of knowledge, or raise `NotGranted` if it is withheld."""
        if what not in self.granted:
            raise NotGranted(
                f"this attack asked for {what.name}; the threat model grants "
                f"{self.granted.name or 'nothing'}. Add it to threat.grants, or choose an attack "
                "that does without."
            )
        value: Any
        if what is Knowledge.HEAD_GRADIENT:
            # Without a head of that name, all that could be it.
            value = of_layer(self.gradient, self.head) or self.gradient
        else:
            value = getattr(self, field_of(what))
        if value is None:
            raise NotGranted(f"{what.name} is granted, but this task has none to give")
        return value


def of_layer(gradient: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """Return the gradients of one layer's parameters, by their full names."""
    return {name: value for name, value in gradient.items() if name.startswith(f"{layer}.")}


FIELDS = {
    "batch_size": "num_examples",
    "local_steps": "steps",
    "learning_rate": "lr",
    "defense": "defenses",
}
"""Fields of `Observation` whose names differ from that of the knowledge, by the latter."""


def field_of(what: Knowledge) -> str:
    """Return the field of `Observation` that holds a kind of knowledge."""
    name = str(what.name).lower()
    return FIELDS.get(name, name)


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """What an adversary claims about the victim's examples; each metric scores one field.

    Attributes:
        label_set: Labels that occur; `label_counts`: how often; `labels`: one an example, (N,).
        label_scores: Estimated count of every class before rounding, (classes,).
        sequences: Label sequences, one (L,) tensor an example; `num_labels`: labels in total.
        inputs: One tensor an example. `tokens`, `text`: token ids and text of each example.
        features: Inputs of the head, (N, d).
        token_counts: Occurrences of each token in all examples; 1 each if a set is claimed.
        attributes: Such as the speaker: a score by candidate for each example, in the order of
            `inputs` if these are claimed too.
        objective: Final value of the attack's own loss; infinite if it never was finite.
        outcomes: How each start ended: "matched", "diverged", "stalled", "steps" or "budget".
        trace: Pairs (iteration, objective).
        diagnostics: Whatever explains the result, or why there is none.
    """

    label_set: frozenset[int] | None = None
    label_counts: Mapping[int, int] | None = None
    labels: Tensor | None = None
    label_scores: Tensor | None = None
    sequences: Sequence[Tensor] | None = None
    num_labels: int | None = None
    inputs: Sequence[Tensor] | None = None
    features: Tensor | None = None
    tokens: Sequence[Tensor] | None = None
    token_counts: Mapping[int, int] | None = None
    text: Sequence[str] | None = None
    attributes: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    objective: float | None = None
    outcomes: Sequence[str] | None = None
    trace: Sequence[tuple[int, float]] = ()
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


CLAIMS = frozenset({one.name for one in fields(Reconstruction)} - {"trace", "diagnostics"})
"""Fields of a reconstruction that adversaries claim and metrics read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric of one attack on one victim: a row of `findings.csv`.

    `point` is the sweep's point. `client` is the client's number, or several joined by + under
    secure aggregation; `victim` is the interception's key. `value` is None unless `status` is "ok"
    or "unverified". `baseline` is the score of a random guess on the same victim, `baseline_prior`
    that of a guess from public data. `attempt` counts how often the attack was made. `seconds` is
    the attack's wall-clock time. `granted` joins knowledge by |. `label` is the adversary's name in
    the scenario. `batch_size` is the mean number of examples a step, rounded down; it and
    `local_steps` are None where nobody knows them. `inclusion` is the probability that this victim
    was attacked, among the round's participants. `artifact` is the reconstruction's path in the run
    folder. `truth` is where the true examples come from: "derived" from the seed, or, of another
    Flower project, "revealed" by its client, "partial" or "absent". `checked` says whether revealed
    examples explain the update: "fits", "misfit: WHICH" or "not checked: WHY", "" if they are
    derived. With a misfit, an attack that ended is "unverified": its value is kept, and enters no
    average.
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
    batch_size: int | None
    local_steps: int | None
    inclusion: float
    artifact: str
    truth: str = "derived"
    checked: str = ""
