"""The threat model: which part of an interception an adversary observes.

Sign and scale of the gradient are normalised here, once for every adversary: it always receives
the gradient of the loss, mean over examples. A delta of weights has the opposite sign and a factor
lr x steps, which is a frequent source of bugs in implementations of attacks.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsim.knowledge import Knowledge
from fedsim.records import Batch, Interception, Observation, Truth, Update, of_layer
from fedsim.spec import Spec
from fedsim.victim import VictimModel


class Supplier(Protocol):
    """The part of a task that a threat model uses for what it grants."""

    @property
    def spec(self) -> Spec:
        """The task's description of its examples."""

    @property
    def head(self) -> str:
        """Name of the projection layer."""

    def victim(self, arrays: Mapping[str, Tensor]) -> VictimModel:
        """Make a private copy of the model with these weights and buffers, by name."""

    def auxiliary(self) -> Batch | None:
        """Return labelled examples that no client holds; None if there are none."""

    def prior(self) -> Any:
        """Return data for a prior over the inputs, such as public texts; None without any."""


@dataclass(frozen=True, slots=True)
class ThreatModel:
    """Which parts of an interception an adversary gets.

    Attributes:
        granted: The knowledge that is granted.
        source: The task, which supplies models and auxiliary data.
        defenses: Names of the intercepted clients' defenses, granted by `DEFENSE`.
    """

    granted: Knowledge
    source: Supplier
    defenses: tuple[str, ...] = ()

    def observe(
        self,
        interception: Interception,
        *,
        truth: Truth | None = None,
        history: Sequence[Observation] = (),
    ) -> Observation:
        """Make an observation: private copies of what is granted, and nothing else.

        Args:
            interception: The update as the server received it.
            truth: The client's examples. Only labels and lengths are read, and only if `LABELS` or
                `LENGTHS` is granted (LAMP and HFGM assume that they are known). They are granted
                as a sorted bag, which does not show the local step or the client of an example.
                If both are granted, a label stays with its length.
            history: Earlier observations of the same client, granted by `HISTORY`.

        Returns:
            The observation.
        """
        granted, update = self.granted.closed(), interception.update
        head = self.source.head
        lr = update.lr if Knowledge.LEARNING_RATE in granted else None
        steps = update.steps if Knowledge.LOCAL_STEPS in granted else None
        gradient, exact = to_gradient(update, interception.before, lr=lr, steps=steps)
        if Knowledge.GRADIENT not in granted:
            gradient = of_layer(gradient, head) if Knowledge.HEAD_GRADIENT in granted else {}

        def grant(what: Knowledge, value: Any) -> Any:
            return value if what in granted else None

        labels, lengths = _bag(truth or Truth(), granted)
        model = self.source.victim(interception.before) if Knowledge.MODEL in granted else None
        buffers = {name: value.clone() for name, value in update.buffers.items()}
        auxiliary = self.source.auxiliary() if Knowledge.AUXILIARY in granted else None
        return Observation(
            granted=granted,
            spec=self.source.spec,
            head=head,
            gradient=gradient,
            exact=exact,
            divisor=_divisor(update, lr, steps) if update.kind == "weights" else None,
            model=model,
            labels=labels,
            lengths=lengths,
            num_examples=grant(Knowledge.BATCH_SIZE, update.num_examples),
            steps=grant(Knowledge.LOCAL_STEPS, update.steps),
            lr=grant(Knowledge.LEARNING_RATE, update.lr),
            optimizer=grant(Knowledge.LEARNING_RATE, update.optimizer),
            buffers=grant(Knowledge.BUFFERS, buffers),
            auxiliary=copy.deepcopy(auxiliary),
            prior=self.source.prior() if Knowledge.PRIOR in granted else None,
            defenses=grant(Knowledge.DEFENSE, self.defenses),
            history=grant(Knowledge.HISTORY, tuple(history)),
        )


def _bag(truth: Truth, granted: Knowledge) -> tuple[Tensor | None, list[int] | None]:
    """Return labels and lengths as far as they are granted, sorted.

    Args:
        truth: The client's examples.
        granted: The knowledge that is granted.

    Returns:
        Labels (N,), or (N, L) padded with -100 as in a training batch, and N lengths; None for
        what is not granted.
    """
    labels = (truth.sequences or truth.labels) if Knowledge.LABELS in granted else None
    lengths = truth.lengths if Knowledge.LENGTHS in granted else None
    columns: list[Sequence[Any]] = [] if labels is None else [[one.tolist() for one in labels]]
    if lengths is not None:
        columns.append(lengths)
    examples = list(zip(*columns, strict=True))
    order = sorted(range(len(examples)), key=examples.__getitem__)
    if labels is not None and not isinstance(labels, Tensor):
        rows = [labels[i] for i in order]
        labels = pad_sequence(rows, batch_first=True, padding_value=-100)
        if lengths is None:  # the padding would tell the length of the longest text
            labelled = (labels != -100).any(dim=0).nonzero().flatten().tolist()
            labels = labels[:, : max(labelled, default=-1) + 1]
    elif labels is not None:
        labels = labels[order]
    return labels, None if lengths is None else [lengths[i] for i in order]


def to_gradient(
    update: Update,
    before: Mapping[str, Tensor],
    *,
    lr: float | None = None,
    steps: int | None = None,
) -> tuple[dict[str, Tensor], bool]:
    """Compute the gradient behind an update.

    For one plain SGD step w' = w - lr (g + decay w) the gradient is recovered exactly (up to
    float32 cancellation in w' - w). For K steps, and for momentum m, the sum of the steps is
    divided by the weight that SGD gives them, sum_k (1 - m^(K - k)) / (1 - m): the average
    gradient along the local path, exact only if it did not turn. Any optimizer other than SGD, and
    an unknown one, is treated alike and never exact, except that Adam's weight decay is not
    subtracted, since Adam scales it along with the gradient.

    Args:
        update: What the client sent.
        before: Weights from which the client started, needed for kind "weights" and for weight
            decay.
        lr: Learning rate, if the observer knows it; None: the gradient is known up to a positive
            factor.
        steps: Number of local steps, if the observer knows it; None: 1.

    Returns:
        The gradient by parameter name, and whether it is exact.
    """
    if update.kind == "gradient":
        return {name: value.detach().clone() for name, value in update.tensors.items()}, True
    if update.kind == "weights":
        delta = {name: value - before[name] for name, value in update.tensors.items()}
    else:
        delta = dict(update.tensors)
    divisor = _divisor(update, lr, steps)
    gradient = {name: value.detach() / -divisor for name, value in delta.items()}
    if update.weight_decay and lr is not None and update.optimizer != "adam":
        gradient = {k: g - update.weight_decay * before[k] for k, g in gradient.items()}
    exact = update.optimizer == "sgd" and lr is not None and steps == 1
    return gradient, exact


def _divisor(update: Update, lr: float | None, steps: int | None) -> float:
    """What a change of weights is divided by; as for `to_gradient`."""
    return _step_weight(steps or 1, update.momentum) * (lr if lr is not None else 1.0)


def _step_weight(steps: int, momentum: float) -> float:
    """Weight of the mean gradient in K steps of SGD with momentum that starts from zero."""
    if not momentum:
        return float(steps)
    return sum((1 - momentum ** (steps - k)) / (1 - momentum) for k in range(steps))
