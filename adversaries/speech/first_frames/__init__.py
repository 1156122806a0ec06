"""first-frames: every frame of every utterance in closed form, from the first layer's gradient."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversaries.speech.first_frames.equal_lengths import told_apart
from adversaries.speech.first_frames.noisy_windows import MOST, refined
from adversaries.speech.first_frames.overlapping import Chain
from fedsim.adversary import Adversary, Job
from fedsim.gradients import gap_ratios
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.spec import SpeechSpec
from fedsim.victim import VictimModel

__all__ = ["FirstFrames"]

ROUNDING = 1e-10
"""Share of the largest singular value that counts as zero, whatever was sent."""

ROUGH = 1e-3
"""Misfit that rounding does not reach, and noise does."""

CLOSE, NOTHING = 1.25, 0.9
"""How many times the least misfit the number of frames may have that the rank says, and the misfit
beyond which it says no more than silence."""

CLEAR = 100.0
"""Fall of singular values that noise does not leave: below it one among the first is a coincidence,
for an utterance has more frames than half a window."""


class FirstFrames(Adversary):
    """Utterances read off the gradient of a layer that sees every frame between its neighbours.

    Such a layer z_t = W w_t + b, w_t = (x_{t-c}, ..., x_{t+c}) with zeros beyond the ends, has
    [dW | db] = sum_t delta_t (w_t, 1)': its rows span exactly the vectors (w_t, 1) of all frames of
    all utterances, as long as these are fewer than units. Their number is the matrix's rank. An
    utterance of T frames is T windows that overlap and lie in that space, which is a linear
    least-squares problem, for the bias coordinate fixes the scale. Its misfit is zero for the true
    T alone, so every T up to the rank is tried, in one pass. There must be fewer frames than a
    window has values, less those of a frame: of DeepSpeech's 494 + 1 - 26 = 469.

    Utterances of different lengths come back each by itself. Of m with the same length the problem
    gives an affine family of m - 1 dimensions; its members that are normalised, each value to
    variance 1 over the utterance, are the m utterances, found by Gauss-Newton.

    Needs no model, no labels, no lengths, and neither loss nor the rest of the network matters:
    dropout or defenses behind the layer do nothing. Several local steps and momentum leave the
    space as it is; weight decay over several steps and optimizers like Adam do not.

    Under noise the space is that of the leading singular vectors, as long as singular values fall
    off somewhere; where they do not, it refuses. What is read off it then is the start of a search
    for the frames that explain the noisy gradient itself best (`noisy_windows`), which takes
    seconds a step and is left out with more than 320 frames. Where it is known that there is one
    utterance (`BATCH_SIZE`), its frames are as many as the rank, if that fits nearly as well as the
    best.

    Claims float32 tensors (T, features), the shortest first. Where fewer were found than examples
    are behind the update (`BATCH_SIZE`) and no frame is left over, some were used more than once,
    by several local steps: all found are claimed again, in turns, up to that number.
    """

    name: ClassVar[str] = "first-frames"
    keywords = (
        "gradient inversion",
        "analytic",
        "exact recovery",
        "speech recognition",
        "audio reconstruction",
    )
    suits = (SpeechSpec,)
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"inputs"})
    cites: ClassVar[str] = (
        "this project; for one example of fixed size: Phong et al., Privacy-Preserving Deep "
        "Learning via Additively Homomorphic Encryption, IEEE TIFS 2018, Section 3"
    )

    layer: str | None = None
    """Name of the first layer, such as dense.0; left out: the first whose inputs are an odd
    number of frames, 3 at least."""

    gap: float = Field(default=2.0, ge=1)
    """Factor by which singular values must fall at the number of frames."""

    tolerance: float = Field(default=0.1, gt=0, lt=1)
    """Misfit up to which a number of frames is an utterance; silence has 1."""

    normalised: bool = True
    """Values have variance 1 over an utterance: tells equal lengths apart."""

    steps: int = Field(default=12, ge=0)
    """Steps of the search under noise, at most; 0: none."""

    def cautions(self, model: VictimModel) -> list[str]:
        """A model without such a layer, as far as shapes tell."""
        if model.spec is None:
            return []
        try:
            self._layer(model.parameters(), model.spec.require(SpeechSpec).features)
        except ValueError as error:
            return [str(error)]
        return []

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """All utterances; raises `ValueError` where no layer, or no gap, gives them."""
        name, rows, features = self._rows(seen)
        context = (rows.shape[1] - 1) // features // 2
        away, rank, gap = self._away(name, rows, features, context)
        chain = Chain(away, features, context, rank + 1)
        diagnostics: dict[str, Any] = {"layer": name, "rank": rank, "gap": gap}
        lengths = self._lengths(chain.misfits, diagnostics, alone=seen.num_examples == 1)
        claims, together = list[Tensor](), 0
        for length in lengths:
            fit = chain.fit(length)
            count = 1 + len(fit.free)
            own = told_apart(fit, job.rng) if self.normalised and count > 1 else []
            together += count - max(len(own), 1)
            claims += (own + [fit.frames] * count)[:count]
        frames = sum(map(len, claims))
        worst = max(float(chain.misfits[length - 1]) for length in lengths)
        # Of a batch of which some is missing, the search would bend the others to explain it too.
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

    def _lengths(self, misfits: Tensor, told: dict[str, Any], *, alone: bool) -> list[int]:
        """The numbers of frames that fit, the smallest first; alone: of one utterance."""
        found: list[int] = (torch.nonzero(misfits <= self.tolerance).flatten() + 1).tolist()
        best, rank = int(misfits.argmin()) + 1, int(told["rank"])
        # Under noise none fits well; that the best is the rank is a coincidence otherwise.
        nearly = alone and float(misfits[rank - 1]) <= min(NOTHING, CLOSE * float(misfits.min()))
        if not found and (best == rank or nearly):
            return [rank]
        if not found:
            raise ValueError(
                f"layer '{told['layer']}' has a gradient of rank {told['rank']} (singular values "
                f"fall by {told['gap']:.3g}), and no number of frames fits: {best} are best, with "
                f"a misfit of {float(misfits.min()):.3g}, expected {self.tolerance} at most. The "
                "update is too noisy or no sum of gradients, holds more frames than the layer has "
                "units or inputs, or the layer does not see frames between their neighbours"
            )
        # Close to as many frames as a window has values, others fit almost as well as the true.
        kept = list[int]()
        for length in sorted(found, key=lambda one: float(misfits[one - 1])):
            if sum(kept) + length <= rank:
                kept.append(length)
        return sorted(kept)

    def _away(
        self, name: str, rows: Tensor, features: int, context: int
    ) -> tuple[Tensor, int, float]:
        """The projector on what no window has a share in, the rank, and the gap behind it."""
        _, values, right = torch.linalg.svd(rows, full_matrices=False)
        fall = gap_ratios(values, ROUNDING * float(values[0]))[:-1]
        if len(fall) > context and fall.max() < CLEAR:
            fall[:context] = 1
        rank, gap = int(fall.argmax()) + 1, float(fall.max())
        if gap < self.gap:
            raise ValueError(
                f"the singular values of layer '{name}' nowhere fall by a factor of {self.gap}: "
                f"the largest gap is {gap:.3g}, after {rank} of {len(values)}. There are as many "
                f"frames as that or more, or the update is too noisy; smaller batches or a wider "
                "layer would show a gap"
            )
        if rank + features >= rows.shape[1]:
            raise ValueError(
                f"the gradient of layer '{name}' has rank {rank} of {rows.shape[1]}: with "
                f"{rows.shape[1] - features} frames of {features} values or more, any fit. Smaller "
                "batches or shorter utterances would tell them"
            )
        away = torch.eye(rows.shape[1], dtype=rows.dtype) - right[:rank].T @ right[:rank]
        return away, rank, gap

    def _rows(self, seen: Observation) -> tuple[str, Tensor, int]:
        """The layer's name, its gradient (units, inputs + 1) with the bias behind, and F."""
        gradient = seen.know(Knowledge.GRADIENT)
        name, features = self._layer(gradient, seen.spec.require(SpeechSpec).features)
        weight, bias = gradient[f"{name}.weight"], gradient[f"{name}.bias"]
        rows = torch.cat([weight, bias[:, None]], dim=1).double().cpu()
        if not torch.isfinite(rows).all():
            raise ValueError(f"the gradient of layer '{name}' holds NaN or Inf")
        if not rows.any():
            raise ValueError(f"the gradient of layer '{name}' is zero: a defense removed it")
        return name, rows, features

    def _layer(self, arrays: Mapping[str, Tensor], features: int) -> tuple[str, int]:
        """Name of the layer that sees windows of frames, by its shape, and F."""
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
            told = ", ".join(f"{key} ({value.shape[1]} inputs)" for key, value in matrices.items())
            wanted = f"'{self.layer}'" if self.layer else "no layer"
            raise ValueError(
                f"{wanted} is a fully connected layer with a bias that sees an odd number of "
                f"frames of {features} values, 3 at least; there are: {told or 'none'}. "
                "Set `layer` to it"
            )
        return fitting[0], features
