"""`attacks.jsonl`: what each finished attack of a run depended on.

A line with a `plan` describes an adversary with its settings, and a line with a `victim` says that
an attack ended, with the plan and the interceptions that it used. A later line for the same attack
replaces the earlier one.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedsim.errors import RunFolderError
from fedsim.runs.files import opened, write_whole
from fedsim.runs.tables import PUT_BACK, cut_to_lines, writing

FILE = "attacks.jsonl"


class Ended(BaseModel):
    """An attack that ended.

    Attributes:
        plan: The digest of the adversary's plan.
        seen: The digests of the interception and of the history that it was shown.
        rows: The number of its rows; 0 if it is not known.
        refused: Whether it failed because its client sent nothing that can be used. It is made
            when that round is trained again, and the client does.
    """

    model_config = ConfigDict(frozen=True)

    point: str
    victim: str
    label: str
    plan: str
    seen: tuple[str, ...] = ()
    status: str = "ok"
    attempt: int = 1
    rows: int = 0
    refused: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies the attack in the run: point, victim and label."""
        return self.point, self.victim, self.label


@dataclass(slots=True)
class _Content:
    plans: dict[str, dict[str, Any]]
    ended: dict[tuple[str, str, str], Ended]


class AttackLog:
    """The attacks of a run folder that have ended, and the plans of their adversaries.

    Attacks that end while the log is open are only in the file, which is read again if they are
    asked for: a process that makes thousands of attacks keeps none of them.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._content: _Content | None = None
        self._longer: set[str] = set()
        """Points whose attacks in the file are more than those that were read."""

    @property
    def plans(self) -> dict[str, dict[str, Any]]:
        """The plans by digest; raises `RunFolderError` if the file cannot be read."""
        return self._read().plans

    @property
    def ended(self) -> dict[tuple[str, str, str], Ended]:
        """The attacks by point, victim and label; raises `RunFolderError` as well."""
        if self._longer:
            self._content = None
        return self._read().ended

    def finished(self, point: str) -> list[Ended]:
        """The attacks of a point; those of others are not read again for it."""
        ended = self.ended if point in self._longer else self._read().ended
        return [one for one in ended.values() if one.point == point]

    def plans_of(self, point: str, label: str) -> set[str]:
        """The digests of the plans that attacks of a point under a label had."""
        return {one.plan for one in self.finished(point) if one.label == label}

    def plan(self, plan: Mapping[str, Any]) -> str:
        """Write a plan, if it is not there yet; returns its digest."""
        text = json.dumps(plan, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest not in self.plans:
            self.plans[digest] = json.loads(text)
            self._append({"plan": digest, **self.plans[digest]})
        return digest

    def end(self, attack: Ended) -> None:
        """Record that an attack ended; its rows are in the table by then."""
        self._read()  # what a killed process left is mended before a line follows it
        self._longer.add(attack.point)
        self._append(attack.model_dump())

    def drop(self, unwanted: Callable[[Ended], bool]) -> None:
        """Forget attacks, whose rows the caller has dropped."""
        ended, content = self.ended, self._read()
        content.ended = {key: one for key, one in ended.items() if not unwanted(one)}
        lines = [{"plan": digest, **plan} for digest, plan in content.plans.items()]
        lines += [one.model_dump() for one in content.ended.values()]
        with writing(self._path):
            write_whole(self._path, "".join(map(_line, lines)).encode())

    def _append(self, entry: Mapping[str, Any]) -> None:
        with writing(self._path), opened(self._path, "a+b") as file:
            cut_to_lines(file)  # of a line that did not fit on the disk
            file.write(_line(entry).encode())

    def _read(self) -> _Content:
        if self._content is None:
            self._content = _Content({}, {})
            self._longer = set()
            text = ""
            if self._path.exists():
                try:
                    text = self._path.read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise RunFolderError(
                        f"{self._path} cannot be read: {error}. {PUT_BACK}"
                    ) from error
            end = text.rfind("\n") + 1
            for number, line in enumerate(text[:end].splitlines(), 1):
                try:
                    self._take(json.loads(line))
                except (ValueError, TypeError, KeyError, ValidationError) as error:
                    raise RunFolderError(
                        f"{self._path} cannot be read: line {number} is no entry of it. {PUT_BACK}"
                    ) from error
            if text[end:]:  # incomplete, of a process that was killed
                self.drop(lambda one: False)
        return self._content

    def _take(self, entry: dict[str, Any]) -> None:
        assert self._content is not None  # noqa: S101 - the caller makes it
        if "victim" in entry:
            ended = Ended.model_validate(entry)
            self._content.ended[ended.key] = ended
        else:
            self._content.plans[entry.pop("plan")] = entry


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True) + "\n"
