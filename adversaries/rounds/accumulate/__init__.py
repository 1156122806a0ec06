"""accumulate: what another adversary claims of all of a client's updates together."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedsim import (
    Adversary,
    Job,
    Knowledge,
    NotGranted,
    Observation,
    Reconstruction,
    Requirement,
    VictimModel,
)
from fedsim.adversary import Source
from fedsim.spec import Spec

CONTENT = ("inputs", "tokens", "sequences", "text")
"""Fields that show what an example is; the first that a claim has is compared."""

WHOLE = ("label_set", "label_counts", "token_counts")
"""Fields about all examples together."""

UNITED = frozenset({*CONTENT, *WHOLE, "labels", "attributes"})
"""Fields of which there is a union."""


@dataclass(slots=True)
class _Example:
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


class Accumulate(Adversary):
    """Unite what another adversary claims of all updates of a client up to the present round.

    Leakage builds up over rounds: even if each update leaks little, a client that is seen often
    uses most of its examples in the end. `claims_from` attacks the present update and each earlier
    one that the threat model shows (`HISTORY`), with the knowledge that it has of each. Examples
    that recur are claimed once:

    - Claims of two updates are one example if their content is the same: inputs up to a mean
      squared difference of `tolerance`, tokens, sequences of labels and texts up to a share `edits`
      of them. Of such claims the one whose attack ended with the lowest objective is kept. Examples
      that were claimed of most updates come first, then those with a low objective.
    - Labels are those of the examples that are kept. An attack on labels alone does not show which
      examples recur: its counts are united by `counts`.

    It is scored on the union of the examples behind all updates that it was shown, each once, so
    that a score of 1 is everything that the client has used so far. Attack the followed client
    (`threat.follow`) in a few rounds only (`rounds = "log"`): each attack costs as much as one of
    `claims_from` for every update so far.

    Labels and lengths of earlier rounds are never granted, so `claims_from` must do without.
    """

    name = "accumulate"
    keywords = ("leakage over rounds", "history", "union")
    needs = Knowledge.HISTORY
    recovers = frozenset({"inputs", "labels", "label_counts", "label_set"})
    over_history: ClassVar[bool] = True
    cites = (
        "Marchand et al., SRATTA: Sample Re-ATTribution Attack of Secure Aggregation in Federated "
        "Learning, ICML 2023, which collects the samples of many rounds, too"
    )
    requirements = (Requirement("clients", "a sum has no history of one client", most=1),)

    claims_from: Source = "dlg"
    """The adversary that attacks each update, by name."""

    tolerance: float = Field(default=0.004, ge=0)
    """Mean squared difference up to which two claimed inputs are one example, as a share of the
    squared input range; two claims that each count as `recovered` differ by 0.004 at most."""

    edits: float = Field(default=0.0, ge=0, le=1)
    """Share of tokens (of sequences labels, of texts words) to change, add or remove, up to which
    two claims are one example; more than 0 for attacks that make mistakes."""

    counts: Literal["most", "sum"] = "most"
    """How counts of labels or tokens without examples are united: "most" (as many as in the update
    with most, the least that all claims allow), or "sum" (right if no example recurs)."""

    @field_validator("claims_from")
    @classmethod
    def _no_threat_model_grants_claims(cls, value: Source) -> Source:
        if value == "given":
            raise ValueError("no threat model grants claims; name an adversary, such as dlg")
        return value

    def fills(self) -> frozenset[str]:
        """The fields of the other attack of which there is a union."""
        return self.parts()["claims_from"].fills() & UNITED

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of an attack that needs what is never granted of earlier rounds."""
        withheld = self._withheld()
        return [*super().cautions(model), *([withheld] if withheld else [])]

    def _withheld(self) -> str:
        """Why the other attack cannot have what it needs; "" if it can."""
        part = self.parts()["claims_from"]
        missing = part.requires() & (Knowledge.LABELS | Knowledge.LENGTHS)
        if not missing:
            return ""
        return (
            f"{part.name} needs {', '.join(missing.names())}, which is not granted of earlier "
            "rounds. Choose an adversary for claims_from that does without"
        )

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Attack all updates, and unite the claims.

        Raises:
            NotGranted: The other attack needs the labels or lengths of earlier rounds.
            ValueError: It fails on every update, or claims nothing that can be united.
        """
        part, fields = self.parts()["claims_from"], self.fills()
        if withheld := self._withheld():
            raise NotGranted(withheld)
        if not fields:
            raise ValueError(f"{part.name} claims nothing of which there is a union")
        shown = (*seen.know(Knowledge.HISTORY), seen)
        claims: list[Reconstruction] = []
        refused: list[str] = []
        for at, one in enumerate(shown):
            with job.portion(of=len(shown) - at):
                try:
                    claims.append(part.reconstruct(replace(one, history=shown[:at]), job))
                except ValueError as error:
                    refused.append(str(error))
        if not claims:
            raise ValueError(f"{part.name} fails on every update; on the last one: {refused[-1]}")
        kept = self._distinct(claims, seen.spec)
        return Reconstruction(
            **self._united(claims, kept, fields),
            diagnostics={
                "updates": len(shown),
                "refused": refused,
                "claimed": sum(len(examples) for examples in map(_examples, claims)),
                "distinct": len(kept),
            },
        )

    def _distinct(self, claims: Sequence[Reconstruction], spec: Spec) -> list[_Example]:
        """The distinct examples of all claims, those found most often first."""
        found = [
            _Example(values, float("inf") if claim.objective is None else claim.objective, update)
            for update, claim in enumerate(claims)
            for values in _examples(claim)
        ]
        kept: list[_Example] = []
        for one in sorted(found, key=lambda one: one.objective):
            alike = (
                other
                for other in kept
                if one.update not in other.updates and self._same(one.values, other.values, spec)
            )
            same = next(alike, one)
            if same is one:
                kept.append(one)
            same.updates.add(one.update)
        return sorted(kept, key=lambda one: (-len(one.updates), one.objective))

    def _same(self, one: Mapping[str, Any], other: Mapping[str, Any], spec: Spec) -> bool:
        """Whether two claimed examples are one, by the first field of `CONTENT` that both have."""
        content = next((name for name in CONTENT if name in one and name in other), None)
        if content is None:
            return False
        a, b = one[content], other[content]
        if content == "inputs":
            low, high = spec.input_range or (0.0, 1.0)
            if a.shape != b.shape:
                return False
            return float((a - b).square().mean()) <= self.tolerance * (high - low) ** 2
        a, b = (list(x.split()) if content == "text" else x.tolist() for x in (a, b))
        return _edits(a, b) <= self.edits * max(len(a), len(b))

    def _united(
        self, claims: Sequence[Reconstruction], kept: Sequence[_Example], fields: frozenset[str]
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


def _examples(claim: Reconstruction) -> list[dict[str, Any]]:
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


def _edits(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The least number of items to substitute, delete and insert (Levenshtein distance)."""
    row = list(range(len(other) + 1))
    for count, item in enumerate(one, 1):
        above, row = row, [count]
        for at, theirs in enumerate(other):
            row.append(min(above[at + 1] + 1, row[at] + 1, above[at] + (item != theirs)))
    return row[-1]
