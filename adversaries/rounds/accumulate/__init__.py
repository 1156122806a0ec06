"""accumulate: what another adversary claims of all of a client's updates together."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from adversaries.rounds.accumulate.union import UNITED, Union, examples_of
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
        union = Union(self.tolerance, self.edits, self.counts)
        kept = union.distinct(claims, seen.spec)
        return Reconstruction(
            **union.united(claims, kept, fields),
            diagnostics={
                "updates": len(shown),
                "refused": refused,
                "claimed": sum(len(examples) for examples in map(examples_of, claims)),
                "distinct": len(kept),
            },
        )
