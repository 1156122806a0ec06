"""The union of what an attack claims of several updates of a client."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, Literal

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from fedsim import Reconstruction
from fedsim.spec import Spec

CONTENT = ("inputs", "tokens", "sequences", "text")
"""Fields that show what an example is; the first that a claim has is compared."""

WHOLE = ("label_set", "label_counts", "token_counts")
"""Fields about all examples together."""

UNITED = frozenset({*CONTENT, *WHOLE, "labels", "attributes"})
"""Fields of which there is a union."""


@dataclass(slots=True)
class Example:
    """A claimed example.

    Attributes:
        values: Its values by field.
        objective: That of the attack which claimed it.
        update: Index of the update that it was claimed of.
        updates: Indices of all updates that it was claimed of.
    """

    values: dict[str, Any]
    objective: float
    update: int
    updates: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Union:
    """How claims are united.

    Attributes:
        tolerance: Mean squared difference up to which two claimed inputs are one example, as a
            share of the squared input range.
        edits: Share of tokens to change, add or remove, up to which two claims are one example.
        counts: How counts without examples are united, by "most" or "sum".
    """

    tolerance: float
    edits: float
    counts: Literal["most", "sum"]

    def distinct(self, claims: Sequence[Reconstruction], spec: Spec) -> list[Example]:
        """The distinct examples of all claims, those found most often first.

        An example of another update is the nearest one that is alike.
        """
        found = [
            Example(values, float("inf") if claim.objective is None else claim.objective, update)
            for update, claim in enumerate(claims)
            for values in examples_of(claim)
        ]
        kept: list[Example] = []
        for one in sorted(found, key=lambda one: one.objective):
            others = [other for other in kept if one.update not in other.updates]
            away = [self._distance(one.values, other.values, spec) for other in others]
            nearest = min(away, default=math.inf)
            same = others[away.index(nearest)] if nearest < math.inf else one
            if same is one:
                kept.append(one)
            same.updates.add(one.update)
        return sorted(kept, key=lambda one: (-len(one.updates), one.objective))

    def _distance(self, one: Mapping[str, Any], other: Mapping[str, Any], spec: Spec) -> float:
        """The distance of two claimed examples by the first field of `CONTENT` that both have.

        Infinite if they are not one: a mean squared difference, or a number of edits.
        """
        content = next((name for name in CONTENT if name in one and name in other), None)
        if content is None:
            return math.inf
        a, b = one[content], other[content]
        if content == "inputs":
            low, high = spec.input_range or (0.0, 1.0)
            if a.shape != b.shape:
                return math.inf
            error = float((a - b).square().mean())
            return error if error <= self.tolerance * (high - low) ** 2 else math.inf
        a, b = (list(x.split()) if content == "text" else x.tolist() for x in (a, b))
        edits = Levenshtein.distance(a, b)
        return edits if edits <= self.edits * max(len(a), len(b)) else math.inf

    def united(
        self, claims: Sequence[Reconstruction], kept: Sequence[Example], fields: frozenset[str]
    ) -> dict[str, Any]:
        """The fields of the union."""
        united: dict[str, Any] = {
            name: [one.values[name] for one in kept if name in one.values]
            for name in fields.intersection(CONTENT)
        }
        if "attributes" in fields:
            keys = {key for claim in claims for key in claim.attributes}
            united["attributes"] = {
                key: [one.values["attributes"].get(key, {}) for one in kept] for key in sorted(keys)
            }
        for name in fields.intersection(WHOLE):
            wholes = [whole for claim in claims if (whole := getattr(claim, name)) is not None]
            united[name] = (
                frozenset(chain(*wholes)) if name == "label_set" else self._counted(wholes)
            )
        if kept and all("labels" in one.values for one in kept):
            labels = [int(one.values["labels"]) for one in kept]
            own = {"label_set": frozenset(labels), "label_counts": dict(Counter(labels))}
            united |= {name: value for name, value in own.items() if name in fields}
            united["labels"] = torch.tensor(labels)
        elif "labels" in fields:
            counts = self._counted(
                Counter(claim.labels.flatten().tolist())
                for claim in claims
                if claim.labels is not None
            )
            united["labels"] = torch.tensor(sorted(Counter(counts).elements()), dtype=torch.int64)
        return united

    def _counted(self, wholes: Iterable[Mapping[int, int]]) -> dict[int, int]:
        """Counts of all updates together."""
        counters = [Counter(dict(whole)) for whole in wholes]
        if self.counts == "sum":
            return dict(sum(counters, Counter()))
        return dict(reduce(or_, counters, Counter()))


def examples_of(claim: Reconstruction) -> list[dict[str, Any]]:
    """The values of each claimed example by field; none of a claim about all examples together."""
    of_each: dict[str, Sequence[Any]] = {
        name: value for name in CONTENT if (value := getattr(claim, name)) is not None
    }
    if not of_each:
        return []
    size = min(map(len, of_each.values()))
    if isinstance(claim.labels, Tensor) and claim.labels.shape == (size,):
        of_each["labels"] = claim.labels.tolist()
    of_each["attributes"] = [
        {key: values[at] for key, values in claim.attributes.items() if at < len(values)}
        for at in range(size)
    ]
    return [{name: values[at] for name, values in of_each.items()} for at in range(size)]
