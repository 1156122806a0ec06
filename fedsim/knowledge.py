"""What an adversary may know, and the one door through which it learns it."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.gradients import to_gradient
from fedsim.records import Batch, Interception, Observation, Spec, Truth
from fedsim.victim import VictimModel

__all__ = ["PRESETS", "Knowledge", "Supplier", "ThreatModel"]


class Knowledge(enum.Flag):
    """What a threat model can grant. Combine with `|`."""

    HEAD_GRADIENT = enum.auto()
    GRADIENT = enum.auto()
    BUFFERS = enum.auto()
    MODEL = enum.auto()
    BATCH_SIZE = enum.auto()
    LOCAL_STEPS = enum.auto()
    LEARNING_RATE = enum.auto()
    LABELS = enum.auto()
    LENGTHS = enum.auto()
    AUXILIARY = enum.auto()
    PRIOR = enum.auto()
    DEFENSE = enum.auto()
    HISTORY = enum.auto()

    @classmethod
    def parse(cls, grants: str | Iterable[str]) -> "Knowledge":
        """From a preset's name, or a list of knowledge names; raises `ScenarioError`.

        Whoever sees the whole gradient sees the head's.
        """
        if isinstance(grants, str):
            if grants not in PRESETS:
                raise ScenarioError(
                    f"threat.grants: there is no preset '{grants}'. {did_you_mean(grants, PRESETS)}"
                    " Or give a list of knowledge names."
                )
            return PRESETS[grants]
        granted = cls(0)
        for name in grants:
            if name not in cls.__members__:
                raise ScenarioError(
                    f"threat.grants: there is no knowledge '{name}'. "
                    f"{did_you_mean(name, cls.__members__)}"
                )
            granted |= cls[name]
        return granted.closed()

    def closed(self) -> "Knowledge":
        """With what follows from it: the whole gradient includes the head's."""
        return self | Knowledge.HEAD_GRADIENT if Knowledge.GRADIENT in self else self

    def names(self) -> list[str]:
        """The names of the flags that are set, in declaration order."""
        return [str(flag.name) for flag in self]


_GRADIENTS = (
    Knowledge.HEAD_GRADIENT
    | Knowledge.GRADIENT
    | Knowledge.BATCH_SIZE
    | Knowledge.LOCAL_STEPS
    | Knowledge.LEARNING_RATE
)
_WHITE_BOX = _GRADIENTS | Knowledge.MODEL | Knowledge.BUFFERS

PRESETS: dict[str, Knowledge] = {
    "gradients": _GRADIENTS,
    "white-box": _WHITE_BOX,
    "auxiliary": _WHITE_BOX | Knowledge.AUXILIARY,
    "full": ~Knowledge(0),
}
"""The first three are the levels of Wainakh et al. (LLG), section 4: shared gradients only,
white-box model, auxiliary data. `full` grants everything, labels and lengths too."""


class Supplier(Protocol):
    """What the threat model asks a task for, when it grants it."""

    @property
    def spec(self) -> Spec: ...
    @property
    def head(self) -> str: ...
    def victim(self, arrays: Mapping[str, Tensor]) -> VictimModel: ...
    def auxiliary(self) -> Batch | None: ...
    def prior(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class ThreatModel:
    """Which parts of an interception an adversary gets.

    granted: the knowledge; source: the task that supplies models and auxiliary data;
    defenses: names of the defenses that the intercepted clients run, told under `DEFENSE`.
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
        """An observation with private copies of what is granted, and nothing else.

        truth: only its labels and lengths are read, and only when `LABELS` or `LENGTHS` is
        granted (LAMP and HFGM assume that they are known). They are granted as a bag, sorted: not
        which example was in which local step, nor whose it was. Where both are granted, a label
        stays with its length.
        """
        granted, update = self.granted.closed(), interception.update
        head = self.source.head
        gradient, exact = to_gradient(
            update,
            interception.before,
            lr=update.lr if Knowledge.LEARNING_RATE in granted else None,
            steps=update.steps if Knowledge.LOCAL_STEPS in granted else None,
        )
        if Knowledge.GRADIENT not in granted:
            shown = Knowledge.HEAD_GRADIENT in granted
            gradient = {
                name: value
                for name, value in gradient.items()
                if shown and name.startswith(f"{head}.")
            }

        def grant(what: Knowledge, value: Any) -> Any:
            return value if what in granted else None

        labels, lengths = _bag(truth or Truth(), granted)
        model = self.source.victim(interception.before) if Knowledge.MODEL in granted else None
        buffers = {name: value.clone() for name, value in update.buffers.items()}
        return Observation(
            granted=granted,
            spec=self.source.spec,
            head=head,
            gradient=gradient,
            exact=exact,
            model=model,
            labels=labels,
            lengths=lengths,
            num_examples=grant(Knowledge.BATCH_SIZE, update.num_examples),
            steps=grant(Knowledge.LOCAL_STEPS, update.steps),
            lr=grant(Knowledge.LEARNING_RATE, update.lr),
            buffers=grant(Knowledge.BUFFERS, buffers),
            auxiliary=_copy(self.source.auxiliary()) if Knowledge.AUXILIARY in granted else None,
            prior=self.source.prior() if Knowledge.PRIOR in granted else None,
            defenses=grant(Knowledge.DEFENSE, self.defenses),
            history=grant(Knowledge.HISTORY, tuple(history)),
        )


def _bag(truth: Truth, granted: Knowledge) -> tuple[Tensor | None, list[int] | None]:
    """Labels and lengths as far as they are granted, examples sorted by what is granted of them.

    A label an example, or a row of labels, padded with -100 as in a training batch.
    """
    labels = (truth.sequences or truth.labels) if Knowledge.LABELS in granted else None
    lengths = truth.lengths if Knowledge.LENGTHS in granted else None
    told: list[Sequence[Any]] = [] if labels is None else [[one.tolist() for one in labels]]
    if lengths is not None:
        told.append(lengths)
    examples = list(zip(*told, strict=True))
    order = sorted(range(len(examples)), key=examples.__getitem__)
    if labels is not None and not isinstance(labels, Tensor):
        rows = [labels[i] for i in order]
        labels = pad_sequence(rows, batch_first=True, padding_value=-100)
    elif labels is not None:
        labels = labels[order]
    return labels, None if lengths is None else [lengths[i] for i in order]


def _copy(batch: Batch | None) -> Batch | None:
    if batch is None:
        return None
    lengths = None if batch.lengths is None else batch.lengths.clone()
    return Batch(batch.inputs.clone(), batch.labels.clone(), lengths, dict(batch.attributes))
