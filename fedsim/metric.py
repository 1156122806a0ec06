"""The base class of metrics, and the record that describes how their values are read.

This module does not import torch, so that a report can be made without it.
"""

import copy
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import TypeAdapter

from fedsim.errors import PluginError
from fedsim.plugin import Plugin

if TYPE_CHECKING:
    from fedsim.records import Reconstruction, Truth
    from fedsim.spec import Spec


def number(value: float, sign: Literal["", "+"] = "") -> str:
    """Format a number with three digits, thousands whole: 0.0123, 2,711, 1.5e+09."""
    digits = ",.0f" if 999.5 <= abs(value) < 999_999.5 else ".3g"
    return f"{value:{sign}{digits}}"


Kind = Literal["yes/no", "share", "number"]
KINDS = get_args(Kind)
"""How values of a metric are read."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How the values of a metric are read: title, wording, unit, bounds and direction.

    Attributes:
        title: A few words for tables and axes.
        words: A sentence for readers who do not know the metric; by default the summary line of
            the metric's docstring.
        phrase: Completes "adversary: ..."; {share}, {value} (the mean), {hits} (values above one
            half) and {n} (attacks) are filled in.
        kind: "yes/no" of an update, a "share" from 0 to 1, or a "number".
        lower: Whether a lower value is better for the attacker.
        unit: What follows a number, such as " dB".
        partly: The phrase for a yes/no metric that was met in part (some images of a batch).
        detail: Shown on the page and in the findings, but not in the table that a run prints.
        leaks: False for a metric of the attack's own search, for which there is no chance level.
        signed: Whether values may be negative, as the difference of two values.
        most: The largest value of a number.
        rank: An adversary's main metric is the one with the lowest rank that it is scored by.
        what: What it is about, such as "labels" or "inputs"; by default from the metric's `fields`.
    """

    title: str
    words: str = ""
    phrase: str = ""
    kind: Kind = "number"
    lower: bool = False
    unit: str = ""
    partly: str = ""
    detail: bool = False
    leaks: bool = True
    signed: bool = False
    most: float = math.inf
    rank: float = math.inf
    what: str = ""

    @property
    def range(self) -> tuple[float, float]:
        """Bounds of a value: shares up to 1, errors from 0 on (word error rates may pass 1)."""
        if self.signed:
            return -math.inf, self.most
        if self.lower or self.most < math.inf:
            return 0.0, self.most
        return (-math.inf, math.inf) if self.kind == "number" else (0.0, 1.0)

    def show(self, value: float | None) -> str:
        """Format a value: shares in per cent, their differences in percentage points.

        Numbers have three digits, thousands are whole.
        """
        if value is None or math.isnan(value):
            return "–"
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        if self.kind != "number":
            digits = f"{100 * value:.3g}" if abs(value) < 9.995 else f"{100 * value:.0f}"
            return f"{digits} points" if self.signed else f"{digits} %"
        return number(value) + self.unit

    def say(self, mean: float | None, values: list[float], n: int) -> str:
        """Complete the phrase.

        Args:
            mean: The mean of all attacks.
            values: The values of the attacks that ended.
            n: The number of attacks that the mean is over.
        """
        met_in_part = self.partly and not {0.0, 1.0}.issuperset(values)
        shown, hits = self.show(mean), sum(value > 0.5 for value in values)
        filled = {"n": n, "hits": hits, "share": shown, "value": shown}
        # Not str.format: the phrase may come from a run folder of somebody else.
        text = re.sub(
            r"\{(n|hits|share|value)\}",
            lambda found: str(filled[found[1]]),
            self.partly if met_in_part else self.phrase,
        )
        return text.replace("1 updates", "1 update") if n == 1 else text


FORMAT = TypeAdapter(dict[str, Measure])
"""Measures by the names of their metrics, as metrics.json holds them."""

CLAIMED = {"inputs": "inputs", "features": "features", "attributes": "attributes"}
CLAIMED |= dict.fromkeys(("tokens", "text", "sequences"), "texts")
"""What fields of `Reconstruction` are about, but for those of labels."""


class Metric(Plugin, ABC):
    """Base class of metrics, which compare what an adversary claims with the truth.

    A subclass sets `name`, `fields` and `shown`, and implements `compute`. Its docstring defines
    the metric. It is installed by an entry point in the group "fedsim.metrics", which names the
    class or a tuple of classes.
    """

    fields: ClassVar[tuple[str, ...]]
    """Fields of `Reconstruction` that the metric can read; the first that is claimed counts."""

    shown: ClassVar[Measure]
    """Title, direction and wording of the values."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Describe a metric by its docstring and its fields where `shown` does not."""
        shown = vars(cls).get("shown")
        if isinstance(shown, Measure):
            words, what = shown.words or cls.summary(), shown.what or _about(cls)
            cls.shown = replace(shown, words=words, what=what)

    @classmethod
    def mistake(cls) -> str:
        """Declarations by which it would never be computed, or not be shown."""
        from fedsim.records import CLAIMS

        fields, shown = getattr(cls, "fields", None), getattr(cls, "shown", None)
        if not isinstance(fields, tuple) or not fields:
            return "fields is not declared: fields = ('labels', ...), what it reads of a claim"
        if unknown := [field for field in fields if field not in CLAIMS]:
            return f"fields names {unknown}, which Reconstruction lacks: use {sorted(CLAIMS)}"
        if not isinstance(shown, Measure):
            return "shown is not declared: shown = Measure(title, words, phrase, ...)"
        if shown.kind not in KINDS:
            return f"the kind of shown is {shown.kind!r}: use one of {', '.join(KINDS)}"
        return ""

    @abstractmethod
    def compute(self, claimed: "Reconstruction", truth: "Truth", spec: "Spec") -> float:
        """Score a claim that has one of `fields`.

        Args:
            claimed: What the adversary claims.
            truth: The victim's examples.
            spec: What examples of the task look like.

        Returns:
            The value; NaN if it is not defined for this victim.
        """

    def chance(self, truth: "Truth", spec: "Spec") -> float | None:
        """The expected value of a uniformly random guess, if there is a closed form.

        Returns:
            The value, NaN if it is not defined for this victim, or None if there is no closed
            form; then guesses of the task are drawn and scored.
        """
        return None

    def suits(self, spec: "Spec") -> bool:
        """Whether the metric makes sense for a task; by default for every task."""
        return True

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value is better for the attacker."""
        return not self.shown.lower

    def reads(self, claimed: "Reconstruction") -> bool:
        """Whether the claim has one of `fields`; an empty mapping of attributes claims nothing."""
        values = {field: getattr(claimed, field) for field in self.fields}
        return any(
            bool(value) if field == "attributes" else value is not None
            for field, value in values.items()
        )

    def score(self, claimed: "Reconstruction", truth: "Truth", spec: "Spec") -> float:
        """Compute the value of a claim, as a plain number even of a tensor with one value.

        A metric that is not built in gets copies: what it changes, no other metric is given.

        Raises:
            PluginError: The claim has none of the fields that the metric reads, or `compute`
                returns no number.
        """
        if not self.reads(claimed):
            raise PluginError(
                f"'{self.name}' needs {' or '.join(self.fields)}, and the adversary returned none "
                "of them: fill the field, or take it out of `recovers` and `fills()`"
            )
        if not type(self).__module__.startswith("fedsim."):
            claimed, truth = _copied(claimed), _copied(truth)
        value: Any = self.compute(claimed, truth, spec)
        try:
            if isinstance(value, str | bytes):
                raise TypeError("text")
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise PluginError(
                f"compute of '{self.name}' returned {type(value).__name__} {value!r:.80}, expected "
                "a number: return float(...), and NaN where the metric is not defined"
            ) from error


def _copied(value: Any) -> Any:
    """Copy a record or a collection with the tensors in it."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _copied(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, dict):
        own = copy.copy(value)
        for key, one in value.items():
            own[key] = _copied(one)
        return own
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value.clone() if hasattr(value, "clone") else value


def _about(metric: type[Metric]) -> str:
    """What the fields that a metric reads are about; "" of one of the attack's own search."""
    for field in map(str, getattr(metric, "fields", ())):
        if about := "labels" if "label" in field else CLAIMED.get(field, ""):
            return about
    return ""
