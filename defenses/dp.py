"""Differential privacy of a whole client (`client-dp`), or of each of its examples (`dp-sgd`)."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from fedsim.defense import ClientState, Defense, Exposure, MeanGradient, Training
from fedsim.errors import ScenarioError
from fedsim.privacy import Accountant, epsilon, weak_delta
from fedsim.records import Batch, Update

__all__ = ["DPSGD", "ClientDP"]

TINY = 1e-30
"""Stands in for a norm of zero."""


class _Private(Defense):
    clip: float = Field(default=1.0, gt=0)
    """Bound C of the L2 norm; inf: none (and then no noise)."""

    noise_multiplier: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Standard deviation of the noise / C; 0: no noise, and no guarantee."""

    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability with which epsilon may not hold."""

    accountant: Accountant = "rdp"
    """Opacus accountant that epsilon comes from."""

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

    What protects a client, not an example (McMahan et al., ICLR 2018; Geyer et al., 2017; LLG's
    "differential privacy", table 1, with noise_multiplier = sigma / beta). Every client adds its
    own noise, so nobody has to trust the server.

    Epsilon is what the curious server learns: it sees every update of a client (or, with secure
    aggregation, sums in which the noise of all adds up) and knows who took part, so sampling hides
    nothing. `epsilon_released` is what somebody learns who sees the global models only, where
    sampling and everybody's noise count. Noise adds up where all clients run this defense, weigh
    the same, and nothing later changes the update. Neighbours: the client's updates are there or
    not; where another client's may stand in their place, halve the noise multiplier. Infinite
    where arrays are sent that it does not cover: buffers (use a model without BatchNorm), or other
    layers.
    """

    name: ClassVar[str] = "client-dp"
    keywords = ("differential privacy", "local differential privacy", "clipping", "Gaussian noise")

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update, clipped and noisy; the very same with clip = inf and no noise."""
        if math.isinf(self.clip) or not update.tensors:
            return update
        norm = float(get_total_norm(update.tensors.values()))
        factor = min(1.0, self.clip / max(norm, TINY))
        private = {
            name: self._noisy(value * factor if factor < 1 else value, rng)
            for name, value in update.tensors.items()
        }
        return update.replace(tensors=private)

    def spent(self, exposure: Exposure) -> Mapping[str, float]:
        """Epsilon and delta against the server, and against readers of the global models."""
        if exposure.buffers or not all(self.covers(name) for name in exposure.trained):
            return {"epsilon": math.inf, "delta": self.delta}
        seen = self.noise_multiplier * math.sqrt(exposure.summed)
        found = {
            "epsilon": self._spends(1.0, exposure.participations, seen),
            "delta": self.delta,
        }
        if exposure.released:
            rate = exposure.clients_per_round / exposure.clients
            noise = self.noise_multiplier * math.sqrt(exposure.released)
            found["epsilon_released"] = self._spends(rate, exposure.rounds, noise)
        return found

    def cautions(self, exposure: Exposure) -> Sequence[str]:
        """A delta that promises nothing."""
        return weak_delta(self.name, self.delta, exposure.clients, "clients")


class DPSGD(_Private):
    """Clips every example's gradient to an L2 norm of C, adds noise to their sum (DP-SGD).

    Abadi et al., CCS 2016, algorithm 1, in every local step: g = (sum_i g_i min(1, C / ||g_i||) +
    N(0, (noise_multiplier C)^2)) / B. Per-example gradients come from Opacus' hooks where it knows
    all the layers, from `torch.func` (vmap of grad) elsewhere, and from one example after the other
    where a layer is recurrent or the model one of `transformers` for text. Of sequences each has
    the gradient of its own mean over labels.
    Batch normalisation mixes examples, so that none has a gradient of its own, and is refused.

    Epsilon counts every local step of every round that a client took part in, with batches as
    samples of rate B / n of its n examples: the bound for the client with the fewest examples and
    the most rounds. It holds against the curious server, which sees all updates, and is infinite
    where batches are composed by label. Neighbours: one example is there or not. Batches have a
    fixed size where the accountant assumes Poisson samples: the usual approximation.
    """

    name: ClassVar[str] = "dp-sgd"
    keywords = ("differential privacy", "DP-SGD", "example-level privacy", "clipping", "Opacus")

    per_example: Literal["auto", "opacus", "torch.func", "loop"] = "auto"
    """Where per-example gradients come from."""

    def prepare(self, training: Training) -> Training:
        """Training by DP-SGD; the very same training with clip = inf and no noise."""
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
        hooks = self.per_example in ("auto", "opacus") and _opacus_knows(training.module)
        recurrent = (nn.RNNBase, nn.RNNCellBase)
        loop = self.per_example == "loop" or (
            self.per_example == "auto"
            and (
                any(isinstance(part, recurrent) for part in training.module.modules())
                # Attention masks are looked at, and positions shared by a batch: neither hooks nor
                # vmap take that.
                or type(training.module).__module__.startswith("transformers.")
            )
        )
        hooks = hooks and not loop
        if self.per_example == "opacus" and not hooks:
            raise ScenarioError(
                "dp-sgd: Opacus has no per-example gradients for some layer of this model. Set "
                'per_example = "torch.func", or leave it "auto"'
            )

        def gradient(module: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], float]:
            # A mean over all labels of a batch weighs an example by the lengths of the others.
            alike = batch.labels.ndim == 1
            if self.per_example == "opacus" and not alike:
                raise ScenarioError(
                    "dp-sgd: Opacus splits a mean over examples, and the loss of sequences is a "
                    'mean over labels. Leave per_example "auto"'
                )
            found = _by_opacus(loss, module, names, batch) if hooks and alike else None
            if found is None and self.per_example == "opacus":
                raise ScenarioError(
                    "dp-sgd: Opacus has seen no gradient of each example for some parameter, which "
                    "the model uses outside its layer, for all at once or not at all. Leave "
                    'per_example "auto"'
                )
            alone = _one_by_one if loop else _by_torch_func
            gradients, value = found or alone(loss, module, names, batch)
            return self.privatized(gradients, training.rng), value

        return training.replace(gradient=gradient)

    def privatized(
        self, gradients: Mapping[str, Tensor], rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The noisy mean (by name) of per-example gradients (B, ...), each clipped to C."""
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
        """A delta that promises nothing."""
        found = weak_delta(self.name, self.delta, exposure.examples, "examples on one client")
        if not exposure.uniform:
            found.append(
                "dp-sgd: batches are composed by label, so that no accountant's sampling fits "
                'and epsilon is infinite. Set task.composition = "natural"'
            )
        return found


def _opacus_knows(module: nn.Module) -> bool:
    """Whether Opacus has a rule for every layer; what a model does beside them shows later."""
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    return not ModuleValidator.validate(module, strict=False) and not GradSampleModule.validate(
        module, strict=False
    )


def _by_opacus(
    loss: Any, module: nn.Module, names: frozenset[str], batch: Batch
) -> tuple[dict[str, Tensor], float] | None:
    """Per-example gradients (B, ...) by name and the mean loss, by Opacus' hooks.

    None where they have not seen all parameters at work for each example.
    """
    from opacus import GradSampleModule

    # Models are shared by a worker's clients: the hooks must not outlive the step.
    hooked = GradSampleModule(module, loss_reduction="mean")
    try:
        value = loss(module, batch)
        with warnings.catch_warnings():
            # Inputs need no gradient here, which Opacus' hooks can live with.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            value.backward()
        found = {
            name: cast(Any, parameter).grad_sample
            for name, parameter in module.named_parameters()
            if name in names
        }
    finally:
        hooked.zero_grad(set_to_none=True)
        hooked.to_standard_module()
    if any(sample is None or len(sample) != len(batch) for sample in found.values()):
        return None
    return {name: sample.detach() for name, sample in found.items()}, float(value.detach())


def _by_torch_func(
    loss: Any, module: nn.Module, names: frozenset[str], batch: Batch
) -> tuple[dict[str, Tensor], float]:
    """The same by vmap of grad: one call of the model with a batch of one, vectorised."""
    chosen = {k: p.detach() for k, p in module.named_parameters() if k in names}

    def single(parameters: dict[str, Tensor], *example: Tensor) -> Tensor:
        inputs, labels, *lengths = (part.unsqueeze(0) for part in example)
        alone = Batch(inputs, labels, lengths[0] if lengths else None)
        call = {f"module.{name}": value for name, value in parameters.items()}
        value: Tensor = torch.func.functional_call(_Loss(loss, module), call, (alone,))
        return value

    parts = [batch.inputs, batch.labels]
    if batch.lengths is not None:
        parts.append(batch.lengths)
    each = torch.func.vmap(
        torch.func.grad_and_value(single),
        in_dims=(None, *(0 for _ in parts)),
        randomness="different",
    )
    gradients, values = each(chosen, *parts)
    return dict(gradients), float(values.mean())


def _one_by_one(
    loss: Any, module: nn.Module, names: frozenset[str], batch: Batch
) -> tuple[dict[str, Tensor], float]:
    """The same by as many backward passes as there are examples."""
    parameters = {name: p for name, p in module.named_parameters() if name in names}
    rows, total = [], 0.0
    for index in range(len(batch)):
        own = slice(index, index + 1)
        lengths = None if batch.lengths is None else batch.lengths[own]
        value = loss(module, Batch(batch.inputs[own], batch.labels[own], lengths))
        rows.append(torch.autograd.grad(value, list(parameters.values()), materialize_grads=True))
        total += float(value.detach())
    stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
    return dict(zip(parameters, stacked, strict=True)), total / len(batch)


class _Loss(nn.Module):
    """A loss as a module's output, so that its parameters can be swapped for one call."""

    def __init__(self, loss: Any, module: nn.Module) -> None:
        super().__init__()
        self.loss, self.module = loss, module

    def forward(self, batch: Batch) -> Tensor:
        value: Tensor = self.loss(self.module, batch)
        return value
