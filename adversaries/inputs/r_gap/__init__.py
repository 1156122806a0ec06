"""R-GAP: the input of a convolutional network from the gradient of one example, layer by layer."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from adversaries.inputs.layer_chain import LayerChain, chain_cautions
from adversaries.inputs.r_gap.head_example import HeadExample, head_example
from adversaries.inputs.r_gap.layer_equations import Count, LayerEquations
from adversaries.inputs.self_check import in_float64, mismatch
from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction, Requirement, VictimModel
from fedsim.gradients import claim_labels, in_groups
from fedsim.spec import ImageSpec, TabularSpec

PROBED = 1e-6
"""Accuracy with which the probe of the first layer's equations is solved."""


class RGAP(Adversary):
    """One input, layer by layer from the head down, by linear equations.

    The head's gradient of one example has rank one: dW = e h', and e is the gradient of the bias
    (without one, e and h follow from cross-entropy as in `feature-separation`). The features h are
    the outputs of the layer below, and W' e is the gradient of the loss by them. From there it goes
    down. A layer's outputs a and the gradient of the loss by them are known; inverting the
    activation gives Z, its slope at Z gives dZ, and the layer's inputs solve two sets of linear
    equations (`LayerEquations`): those that give the outputs Z, and those that give the gradient of
    the weight dW. ReLU and leaky ReLU work as well as sigmoid, tanh and ELU: the sign of a decides
    the slope. A ReLU that does not fire gives no equation.

    The model must be a chain of convolutions and fully connected layers. Strides are allowed.
    Pooling, batch normalisation and shortcuts are not. Each layer must have as many equations as
    inputs (the paper's rank analysis), which is checked before anything is solved. The paper solves
    each layer by dense matrices; here conjugate gradients solve all victims of a round at once.

    `diagnostics` holds the largest relative error of a layer's gradient at the claimed input
    (`mismatch`), and `expected_error`: the relative error with which a random image comes back
    from the first layer's equations, with errors as large as those that the equations were missed
    by. Nothing is claimed above `tolerance` and `most_expected_error`.
    """

    name = "r-gap"
    keywords = ("gradient inversion", "analytic", "closed form", "exact recovery", "rank analysis")
    suits = (ImageSpec, TabularSpec)
    needs = Knowledge.GRADIENT | Knowledge.MODEL
    recovers = frozenset({"inputs", "features", "labels", "label_counts", "label_set"})
    group = 10
    cites = "Zhu and Blaschko, R-GAP: Recursive Gradient Attack on Privacy, ICLR 2021, Algorithm 1"
    requirements: ClassVar[tuple[Requirement, ...]] = (
        Requirement("examples", "the equations are those of one example", most=1),
        Requirement("steps", "the equations are those of a single step", most=1),
        Requirement("optimizer", "steps of another optimizer have other ratios", only=("sgd",)),
        Requirement("imbalance", "noise grows from layer to layer", most=1e-3),
        Requirement("max_pooling", "most inputs of a window leave no trace", most=0),
        Requirement("batch_norm", "the statistics depend on the input", most=0),
        Requirement("dropout", "the masks are not known", most=0),
    )

    tolerance: float = Field(default=5e-3, gt=0, lt=1)
    """The largest relative error of a layer's gradient at a claimed input."""

    most_expected_error: float = Field(default=0.05, gt=0)
    """The largest relative error with which a random image may come back from the first layer."""

    accuracy: float = Field(default=1e-8, gt=0, lt=1)
    """Ends a layer's conjugate gradients: the gradient of the squares that is left, relative to
    that at the start."""

    iterations: int = Field(default=5000, ge=1)
    """The largest number of conjugate gradient steps for a layer."""

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of models that are no chain of layers, or have layers with too few equations."""
        return super().cautions(model) or chain_cautions(model, _shortages)

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim the input, its label and its features.

        Raises:
            ValueError: There are several examples, the model is no chain of layers, a layer has too
                few equations, or no input fits.
        """
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Solve the equations of all victims with the same model at once."""
        models = [one.know(Knowledge.MODEL) for one in seen]

        def attack(some: list[int]) -> list[Reconstruction]:
            return self._attack([seen[i] for i in some], [jobs[i] for i in some])

        return in_groups(models, [one.spec.input_shape for one in seen], attack)

    def _attack(self, seen: Sequence[Observation], jobs: Sequence[Job]) -> list[Reconstruction]:
        """Attack victims that share a model."""
        given, shape, device = (
            seen[0].know(Knowledge.MODEL),
            seen[0].spec.input_shape,
            jobs[0].device,
        )
        if given.drops:
            raise ValueError("the model drops units at random, and which ones is not known")
        if shape is None:
            raise ValueError("inputs of different shapes are no inputs of a chain of layers")
        model = in_float64(given).to(device)
        chain = LayerChain.of(model, shape, (nn.Linear, nn.Conv2d))
        for one in counts(chain):
            if one.short:
                raise ValueError(f"{one}. dlg and inverting-gradients search for inputs instead")
        gradients = [_gradient(one, chain, device) for one in seen]
        heads = [
            head_example(one, gradient, model)
            for one, gradient in zip(seen, gradients, strict=True)
        ]
        outputs = torch.stack([one.features for one in heads])
        upstream = torch.stack([one.errors for one in heads]) @ chain.head.weight.detach()
        for number, link in enumerate(reversed(chain.links), 1):
            layer = LayerEquations(link)
            weight = torch.stack([one[f"{link.name}.weight"] for one in gradients])
            found = layer.solve(outputs, upstream, weight, self.accuracy, self.iterations)
            outputs, upstream = found.inputs, layer.backward(found.errors)
            for job, missed in zip(jobs, found.missed.norm(dim=1).tolist(), strict=True):
                job.progress(number, missed)
        expected = [0.0] * len(seen)
        if chain.links:
            rngs = [one.rng for one in jobs]
            expected = layer.expected_error(found, rngs, PROBED, self.iterations)
        images = ((outputs - chain.offset) / chain.scale).view(-1, *shape)
        return [
            self._claim(model, image, head, gradient, error)
            for image, head, gradient, error in zip(images, heads, gradients, expected, strict=True)
        ]

    def _claim(
        self,
        model: VictimModel,
        image: Tensor,
        head: HeadExample,
        gradient: Mapping[str, Tensor],
        expected: float,
    ) -> Reconstruction:
        """The claim of one victim, if it explains the gradient and nothing else would."""
        label = torch.tensor([head.label])
        missed = mismatch(model, image[None], label.to(image.device), gradient)
        if not missed < self.tolerance:
            raise ValueError(
                f"no input fits: the one found misses a layer's gradient by {missed:.2g} of it, "
                f"and tolerance = {self.tolerance:g}. The update may have noise, several local "
                "steps, or a layer with hardly enough equations. dlg matches gradients instead"
            )
        if not expected < self.most_expected_error:
            raise ValueError(
                "the input that fits is not the only one: from the equations of the first layer a "
                f"random image comes back with an error of {expected:.2g}, and "
                f"most_expected_error = {self.most_expected_error:g}. inverting-gradients guesses "
                "the rest"
            )
        return claim_labels(
            label,
            features=head.features[None].float().cpu(),
            inputs=[image.float().cpu()],
            diagnostics={"mismatch": missed, "expected_error": expected},
        )


def counts(chain: LayerChain, examples: int = 1) -> list[Count]:
    """Unknowns and equations of each layer but the head, the last one first: the rank analysis."""
    return [LayerEquations(link).count(examples) for link in reversed(chain.links)]


def _shortages(model: VictimModel, shape: tuple[int, ...]) -> list[str]:
    """The layers with too few equations.

    Raises:
        ValueError: The model is no chain of layers.
    """
    chain = LayerChain.of(model, shape, (nn.Linear, nn.Conv2d))
    return [str(one) for one in counts(chain) if one.short]


def _gradient(
    seen: Observation, chain: LayerChain, device: torch.device | str
) -> dict[str, Tensor]:
    """The gradient by name in float64.

    Raises:
        ValueError: That of a layer's weight was not sent, or holds NaN or Inf.
    """
    found = {
        name: value.to(device).double() for name, value in seen.know(Knowledge.GRADIENT).items()
    }
    for name in [*(link.name for link in chain.links), seen.head]:
        if f"{name}.weight" not in found:
            raise ValueError(
                f"no gradient of '{name}.weight' was sent, by which the inputs of that layer are "
                "found. feature-separation needs the head's alone"
            )
    for name, value in found.items():
        if not value.isfinite().all():
            raise ValueError(f"the gradient of '{name}' holds NaN or Inf")
    return found
