"""What an adversary is: one method to write, `reconstruct`."""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Literal, cast, get_args, get_origin

import torch
from pydantic import ValidationError, ValidationInfo, field_validator
from torch import Tensor

from fedsim.errors import AttackTimeout, Cancelled, PluginError
from fedsim.knowledge import Knowledge
from fedsim.plugin import Plugin, find, make, names, table
from fedsim.records import Observation, Reconstruction
from fedsim.spec import Spec
from fedsim.victim import VictimModel

__all__ = ["Adversary", "Job", "Source"]


class Job:
    """One attack's resources: randomness, a device, an iteration budget, and a way to be stopped.

    rng: the only randomness an attack may draw from (a CPU generator). device: where to compute.
    budget: iterations allowed in all, restarts included; None leaves it to the attack's settings.
    deadline: seconds of wall clock, a safety stop only: a result must not depend on it.
    """

    def __init__(
        self,
        rng: torch.Generator,
        *,
        device: torch.device | str = "cpu",
        budget: int | None = None,
        deadline: float | None = None,
        cancelled: Callable[[], bool] | None = None,
        on_progress: Callable[[int, float], None] | None = None,
    ) -> None:
        self.rng = rng
        self.device = torch.device(device)
        self.budget = budget
        self.iterations = 0
        self.trace: list[tuple[int, float]] = []
        self._cancelled = cancelled
        self._on_progress = on_progress
        self._seconds = deadline
        self._stop_at = None if deadline is None else time.monotonic() + deadline

    @property
    def remaining(self) -> float:
        """Seconds of wall clock until the deadline, to refuse at once what would never end."""
        return math.inf if self._stop_at is None else self._stop_at - time.monotonic()

    def steps(self, limit: int) -> Iterator[int]:
        """Count from 0 to `limit`, or until the budget is used up: `for step in job.steps(300)`."""
        for step in range(limit):
            if self.budget is not None and self.iterations >= self.budget:
                return
            self.iterations += 1
            yield step

    @contextmanager
    def portion(self, of: int) -> Iterator[None]:
        """For the next of `of` searches that share the budget: its part of the iterations left."""
        whole = self.budget
        if whole is not None:
            self.budget = self.iterations + -(-max(0, whole - self.iterations) // of)
        try:
            yield
        finally:
            self.budget = whole

    def progress(self, step: int, objective: float | Tensor) -> None:
        """Report the objective, of a tensor its value; call it every iteration or so.

        Raises `Cancelled` when the run is being stopped, `AttackTimeout` past the deadline.
        """
        objective = float(objective.item() if isinstance(objective, Tensor) else objective)
        self.trace.append((int(step), objective))
        if self._cancelled is not None and self._cancelled():
            raise Cancelled("the run was stopped")
        if self._stop_at is not None and time.monotonic() > self._stop_at:
            raise AttackTimeout(f"over its limit of {self._seconds:g} s at iteration {step}")
        if self._on_progress is not None:
            self._on_progress(step, objective)


Source = str | dict[str, Any]
"""Another adversary: its name, or a table of `name` and settings. "given": the threat model."""


class Adversary(Plugin, ABC):
    """Turns what the threat model lets it see into what it claims about the victim's data.

    needs: knowledge it cannot do without, whatever its settings; one whose settings ask for more
    overrides `requires`. recovers: the fields of `Reconstruction` it fills, which decides what it
    is scored on. suits: the modalities of the tasks that it attacks, any by default. cites: the
    paper.

    Composition: a setting whose name ends in `_from`, a `Source`, names another adversary to run
    first, such as `labels_from = "llg"` or `{name = "llg", variant = "llg+"}`; its needs are
    inherited. "given" takes the value from the observation instead, and "none" is None, which TOML
    cannot say, where the setting may be that.

    group: observations of one round that `reconstruct_many` likes to be handed at once, at most;
    1 where it is not overridden.
    """

    needs: ClassVar[Knowledge]
    recovers: ClassVar[frozenset[str]]
    suits: ClassVar[tuple[type[Spec], ...]] = (Spec,)
    cites: ClassVar[str] = ""
    group: ClassVar[int] = 1

    @field_validator("*", mode="before")
    @classmethod
    def _none(cls, value: Any, info: ValidationInfo) -> Any:
        setting = str(info.field_name)
        optional = type(None) in get_args(cls.model_fields[setting].annotation)
        return None if setting.endswith("_from") and optional and value == "none" else value

    @abstractmethod
    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Attack one observation. Leave it unchanged; draw only from `job.rng`."""

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Attack many observations; a batched override must give the same answers as one by one.

        For batched attacks, which set `group`. Each job has its own generator and budget, all have
        one deadline: that of one attack times their number. Whatever this raises costs no victim
        its row: all are attacked again one by one.
        """
        return [self.reconstruct(one, job) for one, job in zip(seen, jobs, strict=True)]

    def fills(self) -> frozenset[str]:
        """The fields of `Reconstruction` that it fills as it is set, on which it is scored.

        Those it `recovers`; one that hands on more of what a part claims overrides this.
        """
        return self.recovers

    def cautions(self, model: VictimModel) -> list[str]:
        """What a user should be told before a run: what in this model makes the attack weak.

        By default what its parts say. May raise `DataError` for what it could not attack without.
        """
        return [caution for part in self.parts().values() for caution in part.cautions(model)]

    @classmethod
    def attacks(cls, kind: type[Spec]) -> bool:
        """Whether it attacks tasks of a modality; one that a task leaves open is not refused."""
        return any(issubclass(kind, one) or issubclass(one, kind) for one in cls.suits)

    def unsuited(self, kind: type[Spec], task: str) -> list[str]:
        """Say why it cannot attack a task, or why an adversary that it runs first cannot.

        Args:
            kind: The task's `spec_type`.
            task: The task's name, for the message.

        Returns:
            A sentence for each adversary that does not attack this modality.
        """
        found = []
        if not self.attacks(kind):
            others = []
            for name in names("adversaries"):
                with suppress(PluginError):  # one that cannot be imported is no alternative
                    if kind in getattr(find("adversaries", name), "suits", ()):
                        others.append(name)
            found.append(
                f"{self.name} attacks {' or '.join(one.modality for one in self.suits)}, and task "
                f"'{task}' has {kind.modality}; use "
                + (f"one of {', '.join(others)}" if others else "an adversary that suits any task")
            )
        return found + [
            text for part in self.parts().values() for text in part.unsuited(kind, task)
        ]

    def parts(self, where: str = "") -> dict[str, "Adversary"]:
        """Adversaries this one runs first, by the setting that names them.

        where: the place of this one in the scenario, for messages.
        """
        found = {}
        for setting in type(self).model_fields:
            value: Any = getattr(self, setting)
            if setting.endswith("_from") and value not in (None, "given"):
                place = f"{where}.{setting}" if where else setting
                chosen = table(value, place, example='{name = "llg", variant = "llg+"}')
                settings = {key: each for key, each in chosen.items() if key != "name"}
                try:
                    part = cast(Adversary, make("adversaries", chosen["name"], settings, place))
                except PluginError as error:
                    raise PluginError(f"{place}: {error}") from error
                part.parts(place)  # so that a mistake in theirs is told by its place too
                found[setting] = part
        return found

    def source(self, setting: str) -> str:
        """Whom a `_from` setting names: an adversary, or "given"."""
        value: Source = getattr(self, setting)
        return value if isinstance(value, str) else str(value["name"])

    def labels(self, seen: Observation, job: Job) -> Tensor | None:
        """Labels (N,) from where the setting `labels_from` says, None where it names nothing.

        Their order tells nothing: which example was in which local step is not known.
        Raises `ValueError` when what it names does not find one label an example.
        """
        if getattr(self, "labels_from", None) is None:
            return None
        if (source := self.source("labels_from")) == "given":
            found: Tensor | None = seen.know(Knowledge.LABELS)
        else:
            found = self.parts()["labels_from"].reconstruct(seen, job).labels
        count, size = 0 if found is None else len(found), seen.know(Knowledge.BATCH_SIZE)
        if found is None or count != size:
            raise ValueError(
                f"labels_from = '{source}' gives {count} labels; the update holds {size} examples. "
                "Use an adversary that finds one label an example, such as llg"
            )
        return found

    def requires(self) -> Knowledge:
        """Its own needs, those of its parts, and `LABELS` or `LENGTHS` where they are "given"."""
        required = self.needs
        for part in self.parts().values():
            required |= part.requires()
        for setting in type(self).model_fields:
            if setting.endswith("_from") and getattr(self, setting) == "given":
                required |= Knowledge[setting.removesuffix("_from").upper()]
        return required

    @classmethod
    def by_default(cls) -> Knowledge:
        """What it needs with its default settings, without what that implies."""
        try:
            more = cls().requires()
        except ValidationError:  # it has settings without a default
            return cls.needs
        return cls.needs | (more & ~cls.needs.closed())

    @classmethod
    def asking_more(cls) -> "dict[str, Adversary]":
        """The adversary by each setting that asks for more than by default, all others left alone.

        Keys read as in a scenario: `variant = "llg*"`. Only settings with a list of choices (a
        `Literal`) are looked through.
        """
        found, usual = {}, cls.by_default()
        for setting, field in cls.model_fields.items():
            if get_origin(field.annotation) is Literal:
                for value in get_args(field.annotation):
                    try:
                        chosen = cls.model_validate({setting: value})
                    except ValidationError:
                        continue  # not without another setting, which is its author's to say
                    if chosen.requires() & ~usual.closed():
                        found[f"{setting} = {json.dumps(value)}"] = chosen
        return found
