"""first-frames: all frames of all utterances in closed form, from the first layer's gradient."""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from adversaries.speech.first_frames.noisy_windows import MOST, refined
from adversaries.speech.first_frames.overlapping import Chain, separated
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
from fedsim.gradients import filled_sides, layer_rows, numerical_rank, rounding

ROUNDING = 1e-10
"""Share of the largest singular value below which values count as zero."""

ROUGH = 1e-3
"""Misfit above which the gradient is noisy, since rounding alone stays below."""

CLOSE, NOTHING = 1.25, 0.9
"""For a single utterance: the factor of the least misfit that the number of frames given by the
rank may have, and the largest misfit it may have at all (frames of zeros have 1)."""


class FirstFrames(Adversary):
    """Recovers utterances from the gradient of a layer whose inputs are windows of frames.

    The layer is z_t = W w_t + b with w_t = (x_{t-c}, ..., x_{t+c}) and zeros beyond both ends. Its
    gradient is [dW | db] = sum_t delta_t (w_t, 1)', so its row space is spanned by the vectors
    (w_t, 1) of all frames of all utterances, as long as the layer has more units than there are
    frames. The rank is the number of frames. An utterance of T frames consists of T overlapping
    windows in that space. This is a linear least-squares problem, because the bias coordinate fixes
    the scale. Its misfit is zero for the true T alone, so every T up to the rank is tried, in one
    pass. The number of frames must be smaller than the size of (w_t, 1) less one frame: for
    DeepSpeech 494 + 1 - 26 = 469.

    Utterances of different lengths are recovered separately. For m utterances of the same length
    the solutions are an affine family of m - 1 dimensions. If the features were normalised to
    variance 1 over each utterance, the m normalised members of the family are the utterances, and
    Gauss-Newton finds them.

    The attack needs no model, labels or lengths. Neither the loss nor the other layers matter, nor
    do dropout and defenses behind the layer. Several local steps and momentum do not change the row
    space; weight decay over several steps and optimizers like Adam do.

    Under noise the row space is that of the leading singular vectors, provided that the singular
    values have a gap; otherwise the attack is refused. The frames are then refined to fit the noisy
    gradient itself (`noisy_windows`), which takes seconds a step and is omitted for more than 320
    frames. If the update is known to hold one utterance (`BATCH_SIZE`), its number of frames is the
    rank, provided that this fits nearly as well as the best number.

    Claims are float32 tensors (T, features), the shortest first. If fewer utterances are found than
    the update has examples (`BATCH_SIZE`) and their frames make up the rank, several local steps
    used some of them more than once. Then all are claimed again, in turn, up to that number.
    """

    name = "first-frames"
    keywords = (
        "gradient inversion",
        "analytic",
        "exact recovery",
        "speech recognition",
        "audio reconstruction",
    )
    suits = (SpeechSpec,)
    needs = Knowledge.GRADIENT
    recovers = frozenset({"inputs"})
    cites = (
        "this project; for one example of fixed size: Phong et al., Privacy-Preserving Deep "
        "Learning via Additively Homomorphic Encryption, IEEE TIFS 2018, Section 3"
    )
    requirements = (
        Requirement("first_fill", "the row space of the first layer must leave room", most=0.95),
        Requirement("optimizer", "other optimizers change the row space", only=("sgd",)),
    )

    layer: str | None = None
    """Name of the layer, such as dense.0; by default the first one whose inputs are an odd number
    of frames, at least 3."""

    gap: float = Field(default=2.0, ge=1)
    """Least factor by which the singular values must fall at the rank."""

    tolerance: float = Field(default=0.1, gt=0, lt=1)
    """Largest relative misfit of an utterance; frames of zeros have 1."""

    normalised: bool = True
    """Whether features have variance 1 over an utterance, which separates equal lengths."""

    steps: int = Field(default=12, ge=0)
    """The largest number of refinement steps under noise; 0: none."""

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn if no layer has the shape of one that reads windows of frames."""
        if model.spec is None:
            return []
        try:
            self._layer(model.parameters(), model.spec.require(SpeechSpec).features)
        except ValueError as error:
            return [str(error)]
        return []

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Recover all utterances.

        Raises:
            ValueError: No layer sees windows of frames, the singular values have no gap, there are
                too many frames, or no number of frames fits.
        """
        name, rows, features = self._rows(seen)
        context = (rows.shape[1] - 1) // features // 2
        away, rank, gap = self._away(name, rows, features)
        chain = Chain(away, features, context, rank + 1)
        diagnostics: dict[str, Any] = {"layer": name, "rank": rank, "gap": gap}
        lengths = self._lengths(chain.misfits, diagnostics, alone=seen.num_examples == 1)
        claims, together = list[Tensor](), 0
        for length in lengths:
            fit = chain.fit(length)
            count = 1 + len(fit.free)
            own = separated(fit, job.rng) if self.normalised and count > 1 else []
            together += count - max(len(own), 1)
            claims += (own + [fit.frames] * count)[:count]
        frames = sum(map(len, claims))
        worst = max(float(chain.misfits[length - 1]) for length in lengths)
        # If an utterance is missing, the refinement would distort the others to explain it too.
        whole = frames == rank and not together
        if self.steps and worst > ROUGH and frames <= MOST and whole:
            claims, diagnostics["noise"] = refined(rows, claims, context, self.steps, job)
        size = max(len(claims), seen.num_examples or 0) if frames == rank else len(claims)
        return Reconstruction(
            inputs=[claims[index % len(claims)].float() for index in range(size)],
            diagnostics={
                **diagnostics,
                "misfits": [float(chain.misfits[length - 1]) for length in lengths],
                "lengths": [len(claim) for claim in claims],
                "not told apart": together,
                "frames left over": rank - frames,
                "claimed again": size - len(claims),
            },
        )

    def _lengths(self, misfits: Tensor, diagnostics: dict[str, Any], *, alone: bool) -> list[int]:
        """The numbers of frames that fit, in ascending order; `alone`: there is one utterance."""
        found: list[int] = (torch.nonzero(misfits <= self.tolerance).flatten() + 1).tolist()
        best, rank = int(misfits.argmin()) + 1, int(diagnostics["rank"])
        # Under noise none fits well, but the true number is the best one and equals the rank.
        nearly = alone and float(misfits[rank - 1]) <= min(NOTHING, CLOSE * float(misfits.min()))
        if not found and (best == rank or nearly):
            return [rank]
        if not found:
            raise ValueError(
                f"layer '{diagnostics['layer']}' has a gradient of rank {rank} (singular values "
                f"fall by {diagnostics['gap']:.3g}), and no number of frames fits: {best} are "
                f"best, with a misfit of {float(misfits.min()):.3g}, expected {self.tolerance} at "
                "most. The update is too noisy or no sum of gradients, holds more frames than the "
                "layer has units or inputs, or the layer does not see frames between their "
                "neighbours"
            )
        # If frames are nearly as many as a window has values, wrong numbers fit almost as well.
        kept = list[int]()
        for length in sorted(found, key=lambda one: float(misfits[one - 1])):
            if sum(kept) + length <= rank:
                kept.append(length)
        return sorted(kept)

    def _away(self, name: str, rows: Tensor, features: int) -> tuple[Tensor, int, float]:
        """The projector on the complement of the row space, the rank, and the ratio at the gap."""
        _, values, right = torch.linalg.svd(rows, full_matrices=False)
        rank = max(1, numerical_rank(values, filled_sides(rows), rounding(rows)))
        least = ROUNDING * float(values[0])
        # A full rank has nothing to fall to.
        following = float(values[rank if rank < len(values) else rank - 1])
        gap = float(values[rank - 1]) / max(following, least)
        if gap < self.gap:
            raise ValueError(
                f"the singular values of layer '{name}' do not fall by a factor of {self.gap} at "
                f"its rank: by {gap:.3g}, after {rank} of {len(values)}. There are as many "
                f"frames as that or more, or the update is too noisy; smaller batches or a wider "
                "layer would show a gap"
            )
        if rank + features >= rows.shape[1]:
            raise ValueError(
                f"the gradient of layer '{name}' has rank {rank} of {rows.shape[1]}: with "
                f"{rows.shape[1] - features} frames of {features} values or more, any frames "
                "fit. The attack needs smaller batches or shorter utterances"
            )
        away = torch.eye(rows.shape[1], dtype=rows.dtype) - right[:rank].T @ right[:rank]
        return away, rank, gap

    def _rows(self, seen: Observation) -> tuple[str, Tensor, int]:
        """The layer's name, its gradient (units, inputs + 1) with the bias last, and F."""
        gradient = seen.know(Knowledge.GRADIENT)
        features = seen.spec.require(SpeechSpec).features
        name = self._layer(gradient, features)
        rows = layer_rows(gradient, name).cpu()
        if not rows.any():
            raise ValueError(f"the gradient of layer '{name}' is zero: a defense removed it")
        return name, rows, features

    def _layer(self, arrays: Mapping[str, Tensor], features: int) -> str:
        """Find the name of the layer whose shape fits windows of frames."""
        matrices = {
            key.removesuffix(".weight"): value
            for key, value in arrays.items()
            if value.ndim == 2 and f"{key.removesuffix('.weight')}.bias" in arrays
        }
        fitting = [
            key
            for key, value in matrices.items()
            if value.shape[1] % features == 0
            and value.shape[1] // features % 2 == 1
            and value.shape[1] > features
            and self.layer in (None, key)
        ]
        if not fitting:
            sizes = (f"{key} ({value.shape[1]} inputs)" for key, value in matrices.items())
            present = ", ".join(sizes)
            wanted = f"'{self.layer}'" if self.layer else "no layer"
            raise ValueError(
                f"{wanted} is a fully connected layer with a bias that sees an odd number of "
                f"frames of {features} values, 3 at least; there are: {present or 'none'}. "
                "Set `layer` to it"
            )
        return fitting[0]
