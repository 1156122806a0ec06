"""The base class of adversaries, whose authors write one method."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal, cast, get_args, get_origin

from pydantic import ValidationError, ValidationInfo, field_validator
from torch import Tensor

from fedsim.errors import PluginError
from fedsim.job import Job as Job
from fedsim.knowledge import Knowledge
from fedsim.plugin import Plugin, find, make, names, table
from fedsim.records import Observation, Reconstruction
from fedsim.requirement import Requirement
from fedsim.spec import Spec
from fedsim.victim import VictimModel

Source = str | dict[str, Any]
"""Another adversary, as its name or a table of `name` and settings; "given": the threat model."""


PLANNED = frozenset({"name", "label", "victims", "rounds", "budget", "timeout", "settings"})
"""Keys of a scenario's `[[adversaries]]` tables that are no settings of the adversary."""


def group_size(adversary: "Adversary") -> int:
    """How many observations an adversary attacks at once: what its `together` says, up to `group`.

    One where that is no such number, or raises.
    """
    try:
        said = adversary.together()
    except Exception:
        return 1
    return said if isinstance(said, int) and 1 <= said <= adversary.group else 1


class Adversary(Plugin, ABC):
    """Base class of attacks: from an observation to a claim about the victim's data.

    An adversary may run another one first. A setting whose name ends in `_from`, of type `Source`,
    names it: `labels_from = "llg"`, or `labels_from = {name = "llg", variant = "llg+"}`. Its needs
    are inherited. "given" takes the value from the observation instead. If the setting may be
    None, "none" stands for it, because TOML has no null.

    Attributes:
        needs: Knowledge that the attack needs with any settings. If some settings need more, the
            class overrides `requires`.
        recovers: Fields of `Reconstruction` that the attack fills, on which it is scored.
        suits: Modalities of the tasks that it attacks; any by default.
        cites: The paper, with equation or section.
        requirements: What an update must be like for the attack to find something, as bounds on
            what `fedsim diagnose` measures. An adversary without any is not diagnosed.
        over_history: Whether it claims the examples of all observations that it is shown, the
            present one and its `history`, each example once. Such claims are scored on the union
            of the distinct examples behind all of them.
        group: Largest number of one round's observations that `reconstruct_many` attacks at once;
            1 if that method is not overridden.
    """

    needs: ClassVar[Knowledge]
    recovers: ClassVar[frozenset[str]]
    suits: ClassVar[tuple[type[Spec], ...]] = (Spec,)
    cites: ClassVar[str] = ""
    requirements: ClassVar[tuple[Requirement, ...]] = ()
    over_history: ClassVar[bool] = False
    group: ClassVar[int] = 1

    @classmethod
    def mistake(cls) -> str:
        """Declarations of another type than fedsim compares them with."""
        needs, recovers = getattr(cls, "needs", None), getattr(cls, "recovers", None)
        if not isinstance(needs, Knowledge):
            return f"needs is {needs!r:.80}: needs = Knowledge.GRADIENT | ..."
        if not isinstance(recovers, frozenset):
            return f"recovers is {recovers!r:.80}: recovers = frozenset({{'labels', ...}})"
        return ""

    @field_validator("*", mode="before")
    @classmethod
    def _none(cls, value: Any, info: ValidationInfo) -> Any:
        setting = str(info.field_name)
        optional = type(None) in get_args(cls.model_fields[setting].annotation)
        return None if setting.endswith("_from") and optional and value == "none" else value

    @abstractmethod
    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Attack one observation.

        Args:
            seen: What the threat model grants; it must not be changed.
            job: Resources of the attack. All randomness must come from `job.rng`.

        Returns:
            The claim about the victim's examples.
        """

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Attack several observations of one round.

        Batched attacks override this method and set `group`. Results must equal those of attacking
        one observation at a time. If the method raises an error, the observations are attacked
        again one by one.

        Args:
            seen: Observations, at most `group`.
            jobs: Resources of each attack. Each has its own generator and budget; all share one
                deadline, that of one attack times their number.

        Returns:
            A claim for each observation.
        """
        return [self.reconstruct(one, job) for one, job in zip(seen, jobs, strict=True)]

    def together(self) -> int:
        """Return the largest number of observations to attack at once with the present settings.

        By default this is `group`; an adversary that gains nothing with some settings overrides it.
        """
        return self.group

    def fills(self) -> frozenset[str]:
        """Return the fields of `Reconstruction` that are filled with the present settings.

        The attack is scored on them. By default they are `recovers`; an adversary that passes on
        further fields from one of its `parts` overrides this.
        """
        return self.recovers

    def cautions(self, model: VictimModel) -> list[str]:
        """Return warnings to show before a run: properties of the model that weaken the attack.

        By default these are the warnings of the adversaries that it runs first.

        Args:
            model: The victim's model.

        Raises:
            DataError: The attack is impossible, because something that it needs is missing.
        """
        return [caution for part in self.parts().values() for caution in part.cautions(model)]

    @classmethod
    def attacks(cls, kind: type[Spec]) -> bool:
        """Return whether the adversary attacks tasks of a modality.

        Args:
            kind: A task's `spec_type`. A base class of a suitable modality is accepted, because
                the task's modality is then not known yet.
        """
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
        """Make the adversaries that this one runs first.

        Args:
            where: Place of this adversary in the scenario, for messages.

        Returns:
            Adversaries by the setting that names them.

        Raises:
            DataError: A setting is neither a name nor a table with one.
            PluginError: There is no adversary of that name.
            ScenarioError: Its settings are invalid.
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
                part.parts(place)  # so that an error in theirs names its place, too
                found[setting] = part
        return found

    def source(self, setting: str) -> str:
        """Return the name in a `_from` setting: that of an adversary, or "given"."""
        value: Source = getattr(self, setting)
        return value if isinstance(value, str) else str(value["name"])

    def labels(self, seen: Observation, job: Job) -> Tensor | None:
        """Return the labels from the source that the setting `labels_from` names.

        Args:
            seen: The observation.
            job: Resources of the attack, also for the adversary that infers the labels.

        Returns:
            Labels (N,) int64, None without such a setting. Their order shows nothing: it is not
            known in which local step an example was used.

        Raises:
            ValueError: The source does not give one label for each example.
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
        """Return the knowledge that the attack needs with the present settings.

        It consists of `needs`, the needs of the adversaries that run first, and the knowledge
        (`LABELS`, `LENGTHS`) of each `_from` setting that is "given".
        """
        required = self.needs
        for part in self.parts().values():
            required |= part.requires()
        for setting in type(self).model_fields:
            if setting.endswith("_from") and getattr(self, setting) == "given":
                required |= Knowledge[setting.removesuffix("_from").upper()]
        return required

    def conditions(self) -> tuple[Requirement, ...]:
        """Return the requirements with the present settings, the most important first.

        They are `requirements`, and those of the adversaries that run first. If a setting changes
        them, the class overrides this.
        """
        found = dict.fromkeys(self.requirements)
        for part in self.parts().values():
            found |= dict.fromkeys(part.conditions())
        return tuple(found)

    @classmethod
    def by_default(cls) -> Knowledge:
        """Return the knowledge that the attack needs with default settings.

        Knowledge that `needs` implies is left out.
        """
        try:
            more = cls().requires()
        except ValidationError:  # it has settings without a default
            return cls.needs
        return cls.needs | (more & ~cls.needs.closed())

    @classmethod
    def asking_more(cls) -> "dict[str, Adversary]":
        """Find the settings for which the attack needs more knowledge than by default.

        Only settings with a list of choices (a `Literal`) are tried, one at a time.

        Returns:
            The adversary with that setting, by the setting as a scenario writes it, such as
            `variant = "llg*"`.
        """
        found, usual = {}, cls.by_default()
        for setting, field in cls.model_fields.items():
            if get_origin(field.annotation) is Literal:
                for value in get_args(field.annotation):
                    try:
                        chosen = cls.model_validate({setting: value})
                    except ValidationError:
                        continue  # this choice is only valid along with another setting
                    if chosen.requires() & ~usual.closed():
                        found[f"{setting} = {json.dumps(value)}"] = chosen
        return found
