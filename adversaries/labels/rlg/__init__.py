"""RLG: the set and the number of labels behind an update, from the head's gradient alone."""

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from adversaries.labels.rlg.acceptance import by_majority, by_margin
from adversaries.labels.rlg.separability import SCREEN, Verdict, by_lp, by_perceptron, normalised
from adversaries.labels.rlg.spanning import by_spanning
from adversaries.labels.rlg.subspace import Rank, Subspace, leading
from fedsim import (
    Adversary,
    Job,
    Knowledge,
    Observation,
    Reconstruction,
    Requirement,
    SpeechSpec,
    VictimModel,
)
from fedsim.gradients import HeadGradient, rounding, tied

FRAMES = (
    "the model is trained with CTC: a row behind dW is a frame, negative at several classes. S "
    "counts frames, and classes that are claimed need not be labels"
)

UNBALANCED = 1e-3
"""Norm of the columns' sum, as a share of the gradient's norm, above which it is not rounding."""


class RLG(Adversary):
    """The classes whose column of dW a hyperplane through the origin separates from all others.

    With cross-entropy dW = H' G, (features, classes). G has a row for each example (each label of
    a sequence) in each local step, which is negative at its own label and positive elsewhere. So
    the number of rows S is the rank of dW (Remark 2), and in dW = P Sigma Q each label's column q_c
    has an r with r.q_c < 0 <= r.q_j for all j != c (Remark 4). The converse does not hold: a
    separable class need not be a label, and with few classes it often is not.

    `accept` selects the classes to claim: `strict`, the separable ones; `margin`, those that point
    away from the rest, which is robust to noise, dropped coordinates and low precision; `authors`,
    those that the paper's code accepts, as far as it is known.

    Assumes cross-entropy over a softmax, local steps of SGD and S < min(d, C). The activation
    before the head does not matter, nor do sign and scale of dW. Labels have no counts.
    """

    name = "rlg"
    keywords = (
        "label inference",
        "label leakage",
        "label set",
        "revealing labels",
        "linear program",
    )
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"label_set", "num_labels"})
    cites = (
        "Dang et al., Revealing and Protecting Labels in Distributed Training, NeurIPS 2021, "
        "Algorithm 1"
    )
    requirements = (
        Requirement("absent", "with full rank every class is separable", most=0.11),
        Requirement("guessable", "a guess names as many labels", most=0.85),
        Requirement("optimizer", "steps of others have no low rank", only=("sgd",)),
        Requirement("zeros", "coordinates that are left out raise the rank", most=0.15),
        Requirement("imbalance", "noise raises the rank", most=0.1),
    )

    accept: Literal["strict", "margin", "authors"] = "strict"
    """Which classes are claimed: "strict": separable; "margin": away from the rest (for
    perturbed updates); "authors": as in their code."""

    solver: Literal["spanning", "lp", "perceptron+lp"] = "spanning"
    """How separability is decided: "spanning": by certificates; "lp": one linear program a
    class, the same answer; "perceptron+lp": the paper's screening first."""

    rank_mode: Rank = "gap"
    """S: "gap": where the singular values fall; "tolerance": how many are above `tolerance`;
    "oracle": given (needs BATCH_SIZE, of sequences LABELS too, to count them)."""

    tolerance: float = Field(default=1e-5, gt=0, lt=1)
    """Of the largest singular value, for rank_mode = "tolerance"."""

    columns: Literal["all", "top_norm"] = "all"
    """What a class must be separable from: "all" others, or the 500 longest columns."""

    def requires(self) -> Knowledge:
        """Also the number of examples if S is given by the threat model."""
        given = self.rank_mode == "oracle"
        return super().requires() | (Knowledge.BATCH_SIZE if given else Knowledge(0))

    def cautions(self, model: VictimModel) -> list[str]:
        """CTC, tied embeddings, and heads too small for the rank to show the number of labels."""
        weight = model.module.get_parameter(f"{model.head}.weight")
        found = [_describe_ties(names)] if (names := tied(model)) else []
        if hasattr(model.module, "blank"):
            found.append(FRAMES)
        if min(weight.shape) <= 2:
            found.append(
                f"the head '{model.head}' is {tuple(weight.shape)}: with two classes both are "
                "always separable, and more than one example does not show"
            )
        return found

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim a label set and S.

        Raises:
            ValueError: The head's gradient is missing or zero, or S is to be given with CTC.
        """
        head = HeadGradient.of(seen)
        label_count = self._label_count(seen)
        weight = head.weight.to(job.device)
        found = leading(
            weight, self.rank_mode, job.rng, label_count=label_count, tolerance=self.tolerance
        )
        notes: dict[str, Any] = {
            "accept": "strict" if self.accept == "margin" and found.clean else self.accept,
            "rank_gap": found.gap,
        }
        if notes["accept"] == "margin":
            plain = weight.double().cpu().numpy()
            # Noise is equal in all dimensions; dropped and rounded entries are not.
            above = found.columns[: found.signal].T / np.sqrt(found.values[: found.signal])
            angles = plain if found.coarse else above
            labels = by_margin(angles, np.linalg.norm(plain, axis=1), found.size)
        elif notes["accept"] == "authors":
            seed = int(torch.randint(2**62, (), generator=job.rng))
            rng = np.random.default_rng(seed)
            labels, notes["voted"] = by_majority(
                found.whitened, rng, speech=seen.spec.labels_are_tokens
            )
        else:
            verdict = self._separable(found)
            labels = verdict.accepted
            notes["margin"] = min(verdict.margins.values(), default=0.0)
            notes["undecided"] = sorted(verdict.undecided)
            notes["failed"] = sorted(verdict.failed)
            notes["lps"] = verdict.lps
        doubts = self._doubts(seen, head, found, labels)
        if failed := notes.get("failed"):
            doubts.append(
                f"the linear program ended in an error on {len(failed)} classes, which are not "
                "claimed and may be labels"
            )
        if doubts:
            notes["note"] = "; ".join(doubts)
        return Reconstruction(label_set=labels, num_labels=found.size, diagnostics=notes)

    def _label_count(self, seen: Observation) -> int | None:
        if self.rank_mode != "oracle":
            return None
        if not seen.spec.labels_are_tokens:
            return int(seen.know(Knowledge.BATCH_SIZE))
        if _has_blank(seen):
            raise ValueError(
                'rank_mode = "oracle" takes the number of labels, and with CTC the rows of '
                'dW are frames: use rank_mode = "gap"'
            )
        # Each label of a sequence is a row; the paper grants their number as S.
        return int((seen.know(Knowledge.LABELS) >= 0).sum())

    def _separable(self, found: Subspace) -> Verdict:
        whitened = found.whitened
        lengths, q = np.linalg.norm(whitened, axis=0), normalised(whitened)
        against = None
        if self.columns == "top_norm":
            against = np.argsort(-lengths, kind="stable")[:SCREEN].tolist()
        if self.solver == "lp":
            return by_lp(q, against=against)
        if self.solver == "perceptron+lp":
            return by_perceptron(q, lengths, against)
        return by_spanning(q, lengths, against)

    def _doubts(
        self, seen: Observation, head: HeadGradient, found: Subspace, labels: frozenset[int]
    ) -> list[str]:
        """Reasons to doubt the claim, each with its possible cause."""
        doubts, bias = [], head.bias
        (n, d), size = head.weight.shape, found.size
        # The columns of a softmax sum to zero: C classes give a rank of C - 1 at most.
        if size >= min(d, n - 1):
            doubts.append(
                f"S = {size} labels with d = {d} features and C = {n} classes: the rank shows S "
                "only below min(d, C), and classes may be separable that are no labels"
            )
        if _has_blank(seen):
            doubts.append(FRAMES)
        weight = head.weight.float()
        total = float(weight.sum(dim=0).norm()) / found.length
        # Rounding of the rows is independent, and adds up to as much.
        if total > max(UNBALANCED, n**0.5 * rounding(head.weight) / found.length):
            doubts.append(
                f"the columns sum to {total:.1e} of their length instead of zero: noise, "
                "compression, or a weight that is not the head's alone (tied embeddings)"
            )
        if found.coarse and self.rank_mode != "oracle":
            doubts.append("dW has few values, or zeros: perturbed, so that S is a guess")
        elif found.full and self.rank_mode != "oracle":
            doubts.append(
                f"dW has full rank at d = {d} features and C = {n} classes: perturbed, or of "
                f"min(d, C - 1) = {min(d, n - 1)} labels or more; S = {size} is a guess"
            )
        if seen.model is not None and (names := tied(seen.model)):
            doubts.append(_describe_ties(names))
        if 0 < len(labels) < n:
            absent = torch.ones(n, dtype=torch.bool)
            absent[sorted(labels)] = False
            compared = bias if bias is not None and bias.shape == (n,) else head.weight
            # The bias gradient of an absent class is p > 0; its weight's is p h, which has a sign
            # only if h >= 0. Those of a present class may have either sign.
            rows = compared.reshape(n, -1)
            if rows.amax(dim=1).cpu()[absent].max() <= 0 > rows.amin(dim=1).cpu()[absent].min():
                doubts.append(
                    "the gradient is negative at every class that is not claimed: a delta was "
                    "taken for a gradient. The label set does not depend on the sign"
                )
        return doubts


def _has_blank(seen: Observation) -> bool:
    """Whether the task is known to train with CTC."""
    if isinstance(seen.spec, SpeechSpec) and seen.spec.has_blank:
        return True
    return seen.model is not None and hasattr(seen.model.module, "blank")


def _describe_ties(names: list[str]) -> str:
    return (
        f"the head's weight is also {', '.join(names)}: dW is the sum of both layers' gradients, "
        "whose rank and columns are not those of the head alone"
    )
