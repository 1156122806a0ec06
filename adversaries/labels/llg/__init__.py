"""LLG, LLG* and LLG+: infer the labels of a batch, with multiplicity, from the head's gradient."""

from collections import Counter
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.labels.llg.probes import by_label, class_sums, draw, dummies
from fedsim import Adversary, Job, Knowledge, Requirement, SpeechSpec, TextSpec
from fedsim.gradients import HeadGradient, claim_labels
from fedsim.records import Observation, Reconstruction, Spec

LARGEST = 128
"""Largest number of examples in a probe, the paper's largest batch.

A probe is a mean over examples, so larger ones cost more and change little.
"""


class LLG(Adversary):
    """Label counts of a batch from the row sums of the last layer's gradient.

    With cross-entropy, dL/dW has a row (p_i - y_i) h' for each of the n classes, averaged over
    examples. If the activations h before the head are non-negative, the row's sum g_i can be
    negative only if class i occurs. Each occurrence lowers g_i by about the same amount, the impact
    m, from an offset s_i of the class: g_i = lambda_i m + s_i.

    Algorithm 1 emits every class with g_i < 0 once and subtracts m from these g_i, then subtracts s
    from g. It then emits the class of the smallest g_i, subtracting m from it each time, until |D|
    labels are emitted. The variants (`variant`) estimate m and s differently:

    - `llg` uses the gradient alone: m = (1 + 1/n) / |D| * (sum of the negative g_i), Eq. 18, and
      s = 0. A positive factor on the gradient does not change the result.

    - `llg*` also uses the model. From the gradients of dummy batches with one label each it
      estimates m = (1 + 1/n) / (n B) * sum_i (mean of g_i if i is the label), Eq. 19, and s_i as
      the mean of g_i if i is not the label, Eq. 20. B is the batch size of one local step.

    - `llg+` also uses auxiliary data: it does the same with real images.

    |D| counts the examples of all local steps, gamma B. For several steps, the paper's gradient is
    their sum; fedsim's is their mean, which is therefore multiplied by gamma. `scaling` chooses how
    m and s are scaled then; with one step its choices agree.

    The attack assumes cross-entropy, a non-negative activation before the head (sigmoid, ReLU) and
    a known |D|; the head needs no bias. `label_scores` are (g_i - s_i) / m. If more than |D|
    classes are negative (noise, or a wrong |D|), Algorithm 1 would emit them all; this
    implementation emits the |D| most negative ones, with either `fidelity`.
    """

    name = "llg"
    keywords = ("label inference", "label leakage", "label distribution", "label counts")
    needs = Knowledge.HEAD_GRADIENT | Knowledge.BATCH_SIZE
    recovers = frozenset({"label_set", "label_counts", "label_scores", "labels"})
    cites = (
        "Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning, "
        "PoPETs 2022, Algorithm 1"
    )

    requirements = (
        Requirement(
            "opposite_signs",
            "the sign of a row sum is that of p - y only if features have a positive sum",
            most=0.1,
        ),
        Requirement(
            "label_share",
            "with as many labels as classes every class is negative or none stands out",
            most=0.75,
        ),
        Requirement("guessable", "a guess names as many labels", most=0.8),
        Requirement("row_noise", "noise turns the signs of row sums", most=0.5),
    )

    variant: Literal["llg", "llg*", "llg+"] = "llg"
    """Source of the estimates m and s: "llg": the gradient; "llg*": also the model; "llg+": also
    auxiliary data."""

    dummy: Literal["data", "zeros", "ones", "random"] = "data"
    """Dummy inputs of LLG*: "zeros" (the lowest value), "ones" (the highest value), "random"
    pixels, or "data": what the paper chooses for inputs of this shape and number of classes."""

    batches: int = Field(default=10, ge=1, le=1000)
    """Number of probes for each class and size, in LLG* and LLG+."""

    fidelity: Literal["paper", "authors"] = "paper"
    """Sizes of the probes for s: "paper": powers of two up to B; "authors": B alone."""

    scaling: Literal["paper", "authors", "consistent"] = "paper"
    """Scaling of m and s after gamma local steps, in LLG* and LLG+: "paper": none; "authors": m is
    divided by gamma; "consistent": s is multiplied by gamma."""

    def requires(self) -> Knowledge:
        """Return `needs`, with the model for LLG*, and with model and auxiliary data for LLG+."""
        more = {"llg": Knowledge(0), "llg*": Knowledge.MODEL}
        return super().requires() | more.get(self.variant, Knowledge.MODEL | Knowledge.AUXILIARY)

    def unsuited(self, kind: type[Spec], task: str) -> list[str]:
        """Say why it cannot attack a task: LLG* makes up inputs, and texts and sounds vary."""
        found = super().unsuited(kind, task)
        if self.variant == "llg*" and issubclass(kind, TextSpec | SpeechSpec):
            found.append(
                f"LLG* makes up inputs of a fixed shape, and task '{task}' has {kind.modality}; "
                'use variant = "llg" or "llg+"'
            )
        return found

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Infer |D| labels.

        Raises:
            ValueError: The gradient of the head is missing or unusable, or no probe can be made.
        """
        size, n = int(seen.know(Knowledge.BATCH_SIZE)), seen.spec.classes
        g = HeadGradient.of(seen).class_sums().double().cpu()
        negative = int((g < 0).sum())
        notes: dict[str, Any] = {"negative_classes": negative}
        if negative > size:
            notes["note"] = (
                f"{negative} classes have a negative gradient, and of {size} examples each can "
                "make one negative: noise, or a wrong number of examples"
            )
        if self.variant == "llg":
            m = float(g[g < 0].sum()) / size * (1 + 1 / n)
            s = torch.zeros(n, dtype=torch.float64)
        else:
            gamma = self._local_steps(seen, notes)
            g = gamma * g
            m, s = self._estimate(seen, job, max(1, round(size / gamma)), notes)
            m = m / gamma if self.scaling == "authors" else m
            s = s * gamma if self.scaling == "consistent" else s
        emitted = sorted(emit(g, m, s, size).elements())
        return claim_labels(
            torch.tensor(emitted, dtype=torch.int64),
            label_scores=(g - s) / m if m else torch.zeros_like(g),
            diagnostics={"impact": m, **notes},
        )

    def _local_steps(self, seen: Observation, notes: dict[str, Any]) -> int:
        if not seen.exact:
            # Unlike Eq. 18, Eq. 19 is in the gradient's units, which need the learning rate.
            seen.know(Knowledge.LEARNING_RATE)
            if seen.steps is None:
                notes["steps"] = "not known; all examples are taken for one local step's"
        return seen.steps or 1

    def _estimate(
        self, seen: Observation, job: Job, size: int, notes: dict[str, Any]
    ) -> tuple[float, Tensor]:
        """Estimate m (Eq. 19) and s (classes,) (Eq. 20) from probes of one label each."""
        n, largest = seen.spec.classes, min(size, LARGEST)
        model = seen.know(Knowledge.MODEL).to(job.device)
        sizes, batches = [largest], self.batches
        if self.fidelity == "paper":
            sizes += [2**k for k in range(1, largest.bit_length()) if 2**k < largest]
        if self.variant == "llg+":
            auxiliary = seen.know(Knowledge.AUXILIARY)
            images, held = auxiliary.inputs, by_label(auxiliary.labels, n)
            if len(held) < n:
                notes["auxiliary_lacks"] = sorted(set(range(n)) - held.keys())
        else:
            kind = suited(seen.spec) if self.dummy == "data" else self.dummy
            if kind != "random":
                sizes, batches = sizes[:1], 1  # constant inputs give the same probe each time
            images = dummies(kind, batches * largest, seen.spec, job.rng)
            held = dict.fromkeys(range(n), torch.arange(batches * largest) % len(images))
        probes = [draw(held, each, batches, job.rng) for each in sizes]
        seed = int(torch.randint(2**62, (), generator=job.rng))
        found, notes["probes"] = class_sums(model, n, images.to(job.device), probes, seed=seed)

        labels, sums = torch.cat([each.labels for each in probes]), torch.cat(found)
        own = sums[torch.arange(len(sums)), labels]
        m = float(own[: len(found[0])].mean()) / size * (1 + 1 / n)
        if not m < 0:
            raise ValueError(
                f"one more example of a label moves its gradient by {m:g}, expected less than 0: "
                "LLG needs a non-negative activation before the head, such as sigmoid or ReLU, "
                "and not zero throughout. For LLG* where batches are normalised, set dummy = "
                '"random"'
            )
        others = len(labels) - torch.bincount(labels, minlength=n)
        s = sums.sum(dim=0).index_add(0, labels, -own) / others.clamp(min=1)
        return m, s


def emit(g: Tensor, m: float, s: Tensor, size: int) -> Counter[int]:
    """Run Algorithm 1.

    Args:
        g: Row sums of the head's gradient, (classes,).
        m: Impact of one example, below 0.
        s: Offsets, (classes,).
        size: Number of labels to emit, |D|.

    Returns:
        Number of occurrences of each emitted label.
    """
    negative = torch.nonzero(g < 0).flatten()
    present = negative[g[negative].argsort()][:size]
    emitted = Counter(present.tolist())
    rest = g.clone()
    rest[present] -= m
    rest -= s
    for _ in range(size - len(present)):
        label = int(rest.argmin())
        emitted[label] += 1
        rest[label] -= m
    return emitted


def suited(spec: Spec) -> Literal["zeros", "ones", "random"]:
    """Choose the dummy inputs that suit data of this shape best, by the paper's section 6.1.

    The paper uses zeros for MNIST and CelebA, random pixels for SVHN and ones for CIFAR-100.
    Colour images of 32 x 32 therefore get ones if there are a hundred classes and random pixels
    otherwise (CIFAR-10, which the paper leaves out, resembles SVHN); all others get zeros.
    """
    if spec.input_shape != (3, 32, 32):
        return "zeros"
    return "ones" if spec.classes == 100 else "random"
