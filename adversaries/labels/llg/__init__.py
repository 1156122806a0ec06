"""LLG, LLG* and LLG+: the labels of a batch, with multiplicity, from the head's gradient."""

from collections import Counter
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.labels.llg.class_sums import class_sums
from adversaries.labels.llg.probes import by_label, draw, dummies
from fedsim.adversary import Adversary, Job
from fedsim.gradients import head_gradient
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction, Spec

__all__ = ["LLG"]

LARGEST = 128
"""Examples in a probe at most, the paper's largest batch: a probe is a mean, larger only costs."""


class LLG(Adversary):
    """Label counts of a batch from the sums of the last layer's gradient.

    With cross-entropy, dL/dW has a row (p_i - y_i) h' for each class i, averaged over examples.
    Where the activations h before the head are non-negative, the row's sum g_i can only be
    negative if class i occurs; and each occurrence lowers g_i by about the same amount, the
    impact m, from an offset s_i that is the class's own: g_i = lambda_i m + s_i. So: emit every
    class with g_i < 0 once and take m off; take s off; then keep emitting the smallest g_i, taking
    m off each time, until |D| labels are out (Algorithm 1).

    `variant` says what m and s are estimated from:

    - `llg`, the gradient alone: m = (1 + 1/n) / |D| * (sum of the negative g_i), Eq. 18, and
      s = 0. A positive factor on the gradient changes nothing here.

    - `llg*`, also the model: from the gradients of dummy batches that hold one label each,
      m = (1 + 1/n) / (n B) * sum_i (mean of g_i where i is the label), Eq. 19, and s_i the mean of
      g_i where it is not, Eq. 20. B is the size of one local step's batch.

    - `llg+`, also auxiliary data: the same with real images.

    |D| counts all local steps, gamma B. After several, the paper's gradient is their sum; fedsim's,
    their mean, is multiplied by gamma first. `scaling` is about m and s then; with one step its
    choices agree.

    Assumes cross-entropy, a non-negative activation before the head (sigmoid, ReLU), |D| known;
    no bias. `label_scores` are (g_i - s_i) / m. Where more classes are negative than there are
    examples (noise, a wrong |D|), Algorithm 1 would emit them all; here the |D| most negative are,
    with either `fidelity`.
    """

    name: ClassVar[str] = "llg"
    keywords = ("label inference", "label leakage", "label distribution", "label counts")
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT | Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = frozenset(
        {"label_set", "label_counts", "label_scores", "labels"}
    )
    cites: ClassVar[str] = (
        "Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning, "
        "PoPETs 2022, Algorithm 1"
    )

    variant: Literal["llg", "llg*", "llg+"] = "llg"
    """What m and s come from: "llg": the gradient; "llg*": also the model; "llg+": also
    auxiliary data."""

    dummy: Literal["data", "zeros", "ones", "random"] = "data"
    """Inputs of LLG*: lowest ("zeros") or highest ("ones") value, "random" pixels, or "data":
    the paper's choice, as far as the input's shape and classes tell."""

    batches: int = Field(default=10, ge=1, le=1000)
    """Probes for each class and size, of LLG* and LLG+."""

    fidelity: Literal["paper", "authors"] = "paper"
    """Sizes of the probes for s: "paper": powers of two up to B; "authors": B alone."""

    scaling: Literal["paper", "authors", "consistent"] = "paper"
    """For gamma local steps, LLG* and LLG+: "paper": m and s as estimated; "authors": m /
    gamma; "consistent": gamma s."""

    def requires(self) -> Knowledge:
        """Beside `needs`, LLG* asks for the model and LLG+ for auxiliary data as well."""
        more = {"llg": Knowledge(0), "llg*": Knowledge.MODEL}
        return super().requires() | more.get(self.variant, Knowledge.MODEL | Knowledge.AUXILIARY)

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Emit |D| labels; raises `ValueError` where there is nothing to read or to probe with."""
        size, n = int(seen.know(Knowledge.BATCH_SIZE)), seen.spec.classes
        g = head_gradient(seen.know(Knowledge.HEAD_GRADIENT), seen.head, n).class_sums()
        g = g.double().cpu()
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
        emitted = emit(g, m, s, size)
        return Reconstruction(
            label_set=frozenset(emitted),
            label_counts=dict(sorted(emitted.items())),
            labels=torch.tensor(sorted(emitted.elements()), dtype=torch.int64),
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
        """m of Eq. 19 and s (classes,) of Eq. 20, from probes of one label each."""
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
                sizes, batches = sizes[:1], 1  # all others would be the same
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
    """Algorithm 1: `size` labels with their counts, from g and s (classes,) and m."""
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
    """What the paper's authors found to suit such data best, as far as the spec tells.

    Section 6.1: zeros for MNIST and CelebA, random pixels for SVHN, ones for CIFAR-100. So colour
    images of 32 x 32 get ones with a hundred classes and random pixels otherwise (CIFAR-10, which
    the paper leaves out, looks like SVHN), everything else zeros.
    """
    if spec.input_shape != (3, 32, 32):
        return "zeros"
    return "ones" if spec.classes == 100 else "random"
