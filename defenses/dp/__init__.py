"""Differential privacy for a client (`client-dp`), or for each of its examples (`dp-sgd`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from defenses.dp.per_example import by_opacus, by_torch_func, one_by_one, opacus_knows
from fedsim import Batch, ClientState, Defense, Exposure, MeanGradient, Training, Update
from fedsim.errors import ScenarioError
from fedsim.privacy import Accountant, epsilon, weak_delta

TINY = 1e-30
"""Lower bound of norms, which avoids a division by zero."""


class _Private(Defense):
    clip: float = Field(default=1.0, gt=0)
    """Bound C of the L2 norm; inf: no clipping, which allows no noise."""

    noise_multiplier: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Standard deviation of the noise divided by C; 0: no noise and no guarantee."""

    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability delta with which the guarantee of epsilon may fail."""

    accountant: Accountant = "rdp"
    """Opacus accountant that computes epsilon."""

    @model_validator(mode="after")
    def _bounded_where_noisy(self) -> Self:
        if math.isinf(self.clip) and self.noise_multiplier:
            raise ValueError(
                "noise is noise_multiplier x clip, and clip is infinite; give clip a number, or "
                "set noise_multiplier = 0"
            )
        return self

    def _noisy(self, value: Tensor, rng: torch.Generator) -> Tensor:
        """Add N(0, (noise_multiplier C)^2) to every coordinate; no noise if the multiplier is 0."""
        if not self.noise_multiplier:
            return value
        noise = torch.randn(value.shape, generator=rng, dtype=value.dtype)
        return value + self.noise_multiplier * self.clip * noise.to(value.device)

    def _spends(self, rate: float, steps: int, noise_multiplier: float | None = None) -> float:
        multiplier = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        return epsilon(multiplier, rate, steps, self.delta, self.accountant)


class ClientDP(_Private):
    """Clips the whole update to an L2 norm of C and adds N(0, (noise_multiplier C)^2) to it.

    The guarantee is for a client, not for an example (McMahan et al., ICLR 2018; Geyer et al.,
    2017; "differential privacy" in LLG, table 1, with noise_multiplier = sigma / beta). Every
    client adds its own noise, so the server need not be trusted.

    Epsilon holds against the curious server. It sees every update of a client (or, under secure
    aggregation, sums with the noise of all clients) and knows who took part, so sampling does not
    amplify privacy. `epsilon_released` holds against an observer of the global models alone, for
    whom sampling and the noise of all clients count. Noise adds up if all clients run this defense,
    have equal weights, and no later defense changes the update. Neighbouring data sets differ by
    the presence of the client's updates; if another client's updates may replace them, halve the
    noise multiplier. Epsilon is infinite if arrays are sent that the defense does not cover:
    buffers (use a model without BatchNorm), or other layers.
    """

    name = "client-dp"
    keywords = ("differential privacy", "local differential privacy", "clipping", "Gaussian noise")

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Clip the update and add noise; unchanged for clip = inf."""
        if math.isinf(self.clip) or not update.tensors:
            return update
        norm = float(get_total_norm(update.tensors.values()))
        # With NaN there is no norm to clip to, and the rest must not be sent as it is.
        factor = 0.0 if math.isnan(norm) else min(1.0, self.clip / max(norm, TINY))
        private = {
            name: self._noisy(value * factor if factor < 1 else value, rng)
            for name, value in update.tensors.items()
        }
        return update.replace(tensors=private)

    def spent(self, exposure: Exposure) -> Mapping[str, float]:
        """Epsilon and delta against the server, and against observers of the global models."""
        if exposure.buffers or not all(self.covers(name) for name in exposure.trained):
            return {"epsilon": math.inf, "delta": self.delta}
        seen = self.noise_multiplier * math.sqrt(exposure.summed)
        found = {"epsilon": self._spends(1.0, exposure.participations, seen), "delta": self.delta}
        if exposure.released:
            rate = exposure.clients_per_round / exposure.clients
            noise = self.noise_multiplier * math.sqrt(exposure.released)
            found["epsilon_released"] = self._spends(rate, exposure.rounds, noise)
        return found

    def cautions(self, exposure: Exposure) -> Sequence[str]:
        """Warn of a delta that is too large for a meaningful guarantee."""
        return weak_delta(self.name, self.delta, exposure.clients, "clients")


class DPSGD(_Private):
    """Clips every example's gradient to an L2 norm of C, adds noise to their sum (DP-SGD).

    Abadi et al., CCS 2016, algorithm 1, in every local step: g = (sum_i g_i min(1, C / ||g_i||) +
    N(0, (noise_multiplier C)^2)) / B. Per-example gradients come from Opacus' hooks if it supports
    all layers, if in each step they add up to the batch's gradient, and if in the first step that
    of the first example is the one it has on its own; otherwise from `torch.func` (vmap of grad),
    and from one backward pass per example for recurrent layers and for text models of
    `transformers`. The gradient of a sequence is that of its own mean loss over labels. Batch
    normalisation mixes examples, so that none has a gradient of its own, and is refused.

    Epsilon counts every local step of every round that a client took part in, with batches as
    samples of rate B / n of its n examples. It is the bound for the client with the fewest examples
    and the most rounds, against the curious server, which sees all updates. It is infinite if
    batches are composed by label or follow epochs. Neighbouring data sets differ by the presence of
    one example. Batches have a fixed size, although the accountant assumes Poisson sampling, which
    is the usual approximation.
    """

    name = "dp-sgd"
    keywords = ("differential privacy", "DP-SGD", "example-level privacy", "clipping", "Opacus")

    per_example: Literal["auto", "opacus", "torch.func", "loop"] = "auto"
    """Method for per-example gradients: Opacus' hooks, torch.func, or one backward pass for
    each."""

    def prepare(self, training: Training) -> Training:
        """Train with DP-SGD; unchanged for clip = inf."""
        if math.isinf(self.clip):
            return training
        if not isinstance(training.gradient, MeanGradient):
            raise ScenarioError(
                "dp-sgd computes the gradient of each example itself, and what a defense listed "
                "before it does to the gradient would be lost. List dp-sgd before that one"
            )
        norms = [
            name
            for name, module in training.module.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
        ]
        if norms:
            raise ScenarioError(
                f"dp-sgd: the model has batch normalisation ({norms[0]}"
                f"{f' and {len(norms) - 1} more' if norms[1:] else ''}), which computes each "
                "example's output from the whole batch. So no example has a gradient of its own to "
                "clip, and nothing bounds what one gives away. Use a model without it (cnn, "
                "lenet, lenet-sigmoid) or with GroupNorm in its place, or protect the whole client "
                "with client-dp"
            )
        names, loss = training.gradient.names, training.loss
        hooks = self.per_example in ("auto", "opacus") and opacus_knows(training.module)
        cells = (nn.RNNBase, nn.RNNCellBase)
        # Neither hooks nor vmap support recurrent layers, nor models that branch on attention masks
        # and share positions within a batch.
        unsupported = any(isinstance(part, cells) for part in training.module.modules())
        unsupported |= type(training.module).__module__.startswith("transformers.")
        loop = self.per_example == "loop" or (self.per_example == "auto" and unsupported)
        hooks = hooks and not loop
        if self.per_example == "opacus" and not hooks:
            raise ScenarioError(
                "dp-sgd: Opacus has no per-example gradients for some layer of this model. Set "
                'per_example = "torch.func", or leave it "auto"'
            )

        begun = False

        def gradient(module: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], float]:
            nonlocal begun, hooks
            # In a mean over all labels of a batch, the weight of an example depends on the others.
            alike = batch.labels.ndim == 1
            if self.per_example == "opacus" and not alike:
                raise ScenarioError(
                    "dp-sgd: Opacus splits a mean over examples, and the loss of sequences is a "
                    'mean over labels. Leave per_example "auto"'
                )
            found = None
            if hooks and alike:
                found = by_opacus(loss, module, names, batch, alone=not begun)
                # What the hooks do not see once, they may not see later.
                begun, hooks = True, found is not None
            if found is None and self.per_example == "opacus":
                raise ScenarioError(
                    "dp-sgd: Opacus has seen no gradient of each example for some parameter, which "
                    "the model uses outside its layer, for all at once or not at all; or the "
                    'model or its loss mixes examples. Leave per_example "auto"'
                )
            alone = one_by_one if loop else by_torch_func
            gradients, value = found or alone(loss, module, names, batch)
            return self.privatized(gradients, training.rng), value

        return training.replace(gradient=gradient)

    def privatized(
        self, gradients: Mapping[str, Tensor], rng: torch.Generator
    ) -> dict[str, Tensor]:
        """Clip per-example gradients, and take their noisy mean.

        Args:
            gradients: Per-example gradients (B, ...) by parameter name.
            rng: Draws the noise.

        Returns:
            The mean gradient by parameter name.
        """
        per_tensor = [g.reshape(len(g), -1).norm(dim=1) for g in gradients.values()]
        norms = torch.stack(per_tensor).norm(dim=0)
        factors = (self.clip / norms.clamp(min=TINY)).clamp(max=1.0)
        return {
            name: self._noisy(torch.einsum("b,b...->...", factors, value), rng) / len(norms)
            for name, value in gradients.items()
        }

    def spent(self, exposure: Exposure) -> Mapping[str, float]:
        """Epsilon and delta of one example of the most exposed client, against the server."""
        if exposure.buffers or not exposure.uniform:
            return {"epsilon": math.inf, "delta": self.delta}
        rate = min(1.0, exposure.batch_size / exposure.examples)
        steps = exposure.participations * exposure.local_steps
        return {"epsilon": self._spends(rate, steps), "delta": self.delta}

    def cautions(self, exposure: Exposure) -> Sequence[str]:
        """Warn of a delta that is too large for a meaningful guarantee."""
        found = weak_delta(self.name, self.delta, exposure.examples, "examples on one client")
        if not exposure.uniform:
            found.append(
                "dp-sgd: batches are composed by label or follow epochs, so that no accountant's "
                'sampling fits and epsilon is infinite. Set task.composition = "natural" and '
                'training.batching = "draw"'
            )
        return found
