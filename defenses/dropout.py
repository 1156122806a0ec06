"""Dropout in local training, with masks that the server does not know."""

import contextlib
from collections.abc import Iterator
from typing import Any

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedsim import Batch, Defense, MeanGradient, Training
from fedsim.errors import ScenarioError, did_you_mean

ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign,
)  # fmt: skip


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation of torch, or one of those that transformers adds."""
    theirs = type(module).__module__ == "transformers.activations"
    return isinstance(module, ACTIVATIONS) or theirs


class Dropout(Defense):
    """Drops hidden units at random in every local step (Srivastava et al., 2014; HFGM, table 3).

    A unit is set to zero with probability `rate`, and the others are scaled by 1 / (1 - rate). The
    client draws a mask for each example, step and round, and does not send it. Units are the
    outputs of the model's activation modules, or the inputs of the modules in `before`. Dropout
    that is part of the model stays. The curious server's copy of the model does not have this
    dropout.
    """

    name = "dropout"
    keywords = ("regularization", "regularisation", "masking")

    rate: float = Field(default=0.1, ge=0, lt=1)
    """Probability that a unit is dropped; 0: no dropout."""

    before: tuple[str, ...] = ()
    """Modules whose inputs are dropped, each one's first; left out: the outputs of every
    activation."""

    def prepare(self, training: Training) -> Training:
        """Add dropout to the training; unchanged for rate 0."""
        if self.rate == 0:
            return training
        modules = dict(training.module.named_modules())
        for name in self.before:
            if name not in modules:
                raise ScenarioError(
                    f"dropout.before: the model has no module '{name}'. "
                    f"{did_you_mean(name, [known for known in modules if known])}"
                )
        places = self.before or tuple(
            name for name, module in modules.items() if is_activation(module)
        )
        if not places:
            raise ScenarioError(
                "dropout: the model has no activation modules to drop units after (it calls "
                "functions instead). Name the modules whose inputs are to be dropped: before = "
                f"{[name for name, module in modules.items() if isinstance(module, nn.Linear)]}"
            )
        plain, loss = training.gradient, training.loss

        def dropped(module: nn.Module, batch: Batch) -> Tensor:
            with _dropping(module, places, self.rate, inputs=bool(self.before)):
                return loss(module, batch)

        if isinstance(plain, MeanGradient):
            return training.replace(loss=dropped, gradient=MeanGradient(dropped, plain.names))

        def gradient(module: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], float]:
            with _dropping(module, places, self.rate, inputs=bool(self.before)):
                return plain(module, batch)

        return training.replace(loss=dropped, gradient=gradient)


@contextlib.contextmanager
def _dropping(
    module: nn.Module, places: tuple[str, ...], rate: float, *, inputs: bool
) -> Iterator[None]:
    """Apply dropout at some modules within a `with` block, since models are shared.

    It is applied to inputs, or to outputs of modules without parameters, so that Opacus' hooks see
    the values that layers saw.
    """

    def before(
        layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        every = dict(enumerate(given)) | named
        for key, value in every.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                every[key] = functional.dropout(value, rate, training=True)
                return tuple(every[at] for at in range(len(given))), {k: every[k] for k in named}
        raise ScenarioError(
            f"dropout.before: a module that it names ({type(layer).__name__}) receives no "
            "floating-point values that could be dropped. Name the module behind it"
        )

    def after(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        return functional.dropout(output, rate, training=True)

    modules = dict(module.named_modules())
    hooks = [
        modules[name].register_forward_pre_hook(before, with_kwargs=True)
        if inputs
        else modules[name].register_forward_hook(after)
        for name in places
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
