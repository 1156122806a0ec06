"""SPEAR: all inputs of a batch from the gradient of a ReLU layer, for any number of classes."""

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.inputs.self_check import in_float64, mismatch
from adversaries.inputs.spear import directions
from adversaries.inputs.spear.first_layer import decomposed, first_layer
from adversaries.inputs.spear.peeling import Peeling
from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction, Requirement, VictimModel
from fedsim.gradients import claim_labels, head_calls
from fedsim.spec import ImageSpec, TabularSpec

NEAR = 0.3
"""Values, relative to the mean, that reweighted least squares turn into zeros from its start."""

REACH = (1.2, 3.5)
"""How many of the seldom firing units a guided search takes, as a multiple of the examples left."""

REWEIGHTED = 10
"""Searches by reweighted least squares have this much fewer starts, which cost more."""

PART = 0.7
"""Share of the rows that one search of dictionary learning sees."""


class SPEAR(Adversary):
    """All inputs of a batch, to rounding, from the gradient of a first layer with ReLU.

    For the layer Z = W X + b the gradient is dW = dZ X', of rank B. ReLU makes about half of the
    entries of dZ (units, B) zero. With dW = L R, dZ = L Q for one matrix Q, whose columns q are the
    directions with many zeros in L q. All of them and the bias gradient, which has their scales,
    give the inputs. `search` is how they are found:

    - "sampling" (SPEAR): for B - 1 randomly chosen rows of L there is one q at which they vanish.
      If these units are all off for one example, it is that example's. The number of choices
      needed grows exponentially with B.
    - "dictionary" (SPEAR++): from random starts, a subgradient method minimises the sum of |L q|
      on the sphere, and reweighted least squares turn small values into zeros.
    - "peeling" (this project): the weighted mean of the inputs, which the gradient shows, tells
      which units fire for few examples. A unit that fires for a single one shows its input, whose
      outputs say which rows must vanish; the example is certified and taken out of the gradient,
      and further units have one example left. Where none has, sampling and reweighted least
      squares search among the units that seldom fire (`Peeling`).

    A direction counts only if L q has more zeros than it was chosen to have, and if an input in the
    batch's span makes just the other units fire. The batch may have more examples than there are
    classes. Labels follow from the head's gradient, and then the gradient of the whole model is
    recomputed: its largest relative error of a parameter is `mismatch` in `diagnostics`, and above
    `tolerance` nothing is claimed. `agreement` there is the share of units and examples for which
    "Z > 0" and "dZ is not zero" agree, `rank` the number of examples, and `searches` how many were
    made.
    """

    name = "spear"
    keywords = (
        "gradient inversion",
        "analytic",
        "exact recovery",
        "dictionary learning",
        "large batches",
    )
    suits = (ImageSpec, TabularSpec)
    needs = Knowledge.GRADIENT | Knowledge.MODEL
    recovers = frozenset({"inputs", "features", "labels", "label_counts", "label_set"})
    cites = (
        "Dimitrov et al., SPEAR: Exact Gradient Inversion of Batches in Federated Learning, "
        "NeurIPS 2024; Bakarsky et al., SPEAR++: Scaling Gradient Inversion via Sparsely-Used "
        "Dictionary Learning, arXiv 2510.24200"
    )
    requirements: ClassVar[tuple[Requirement, ...]] = (
        Requirement("steps", "the zeros are those of a single step", most=1),
        Requirement("optimizer", "steps of another optimizer have other ratios", only=("sgd",)),
        Requirement("imbalance", "noise hides the zeros", most=1e-3),
        Requirement("batch_norm", "the statistics depend on the input", most=0),
        Requirement("dropout", "the masks are not known", most=0),
    )

    search: Literal["peeling", "dictionary", "sampling"] = "peeling"
    """How directions are found: as in SPEAR ("sampling"), as in SPEAR++ ("dictionary"), or by
    "peeling"."""

    searches: int = Field(default=60, ge=0)
    """The largest number of searches."""

    candidates: int = Field(default=2000, ge=1)
    """Choices of rows that a search samples; dictionary learning has a tenth of so many starts."""

    tolerance: float = Field(default=1e-2, gt=0, lt=1)
    """The largest relative error of a parameter's gradient, recomputed from the claimed batch. It
    is a few 1e-3 if rounding makes a unit fire, or not, where the output is almost zero."""

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of models whose first layer is not fully connected with a bias and ReLU."""
        found = super().cautions(model)
        if model.spec is not None and model.spec.input_shape is not None and not found:
            try:
                first_layer(model, model.spec.input_shape)
            except ValueError as error:
                found.append(str(error))
        return found

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim inputs, labels and features of all examples.

        Raises:
            ValueError: The first layer is not fully connected with a bias and ReLU, its gradient
                was not sent or has another rank than there are examples, a gradient holds NaN or
                Inf, or no batch that explains the gradient was found.
        """
        shape = seen.spec.input_shape
        if shape is None:
            raise ValueError("inputs of different shapes are no inputs of a fully connected layer")
        given = seen.know(Knowledge.MODEL)
        model, chain = in_float64(given).to("cpu"), first_layer(given, shape)
        gradient = {
            name: value.cpu().double() for name, value in seen.know(Knowledge.GRADIENT).items()
        }
        if f"{model.head}.weight" not in gradient:
            raise ValueError(
                f"no gradient of '{model.head}.weight' was sent, by which labels are found"
            )
        layer = decomposed(seen, model, chain, gradient)
        for name, value in gradient.items():
            if not value.isfinite().all():
                raise ValueError(f"the gradient of '{name}' holds NaN or Inf")
        found, best = Peeling(layer), math.inf
        for number, complete in enumerate(self._steps(found, job)):
            job.progress(number, found.missing)
            if not complete:
                continue
            coordinates = found.all_coordinates()
            inputs = ((coordinates @ layer.right - chain.offset) / chain.scale).view(-1, *shape)
            labels, features = _labels(model, inputs, gradient)
            missed = mismatch(model, inputs, labels, gradient)
            if missed < self.tolerance:
                fires = layer.fires(directions.unit(found.directions))
                agree = (layer.outputs(coordinates) > 0) == fires
                return claim_labels(
                    labels,
                    features=features.float(),
                    inputs=list(inputs.float()),
                    diagnostics={
                        "rank": layer.rank,
                        "mismatch": missed,
                        "agreement": float(agree.double().mean()),
                        "searches": job.iterations,
                    },
                )
            best = min(best, missed)
            if not found.doubt():
                break
        if best < math.inf:
            raise ValueError(
                f"no batch fits: the best one misses a layer's gradient by {best:.2g} of it, and "
                f"tolerance = {self.tolerance:g}. The update may have noise or several local "
                "steps. inverting-gradients matches gradients instead"
            )
        raise ValueError(
            f"no batch fits: {layer.rank - found.missing} of {layer.rank} examples were separated "
            f"in {job.iterations} searches, by {len(layer.left)} units, and inputs follow from all "
            "of them alone. Use more `searches`; if the update has noise, several local steps or "
            "few units for so many examples, first-linear claims single inputs"
        )

    def _steps(self, found: Peeling, job: Job) -> Iterator[bool]:
        """Go on until nothing is missing, and yield at each step whether that is so."""
        layer, peeling = found.layer, self.search == "peeling"
        searches = iter(job.steps(self.searches))
        guesses, doubted = peeling, -1
        while True:
            while peeling and ((found.missing and found.singles()) or found.settle()):
                yield False
            if not found.missing:
                yield True
                # With as many left as after the doubt before, guesses would be the same again.
                left = len(found.directions)
                guesses, doubted = peeling and left != doubted, left
                continue
            if (guesses and found.guess()) or (found.missing == 1 and found.last()):
                continue
            number = next(searches, None)
            if number is None:
                return
            guesses, doubted = peeling, -1
            if peeling:
                found.accept(self._guided(found, job, number % 2 == 1))
            else:
                rows = layer.left[found.by_activity(layer.left)]
                search = self._sampled if self.search == "sampling" else self._descended
                found.accept(search(rows, job.rng))
            yield False

    def _sampled(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        """Candidates by B - 1 rows each, chosen at random."""
        return directions.sampled(rows, self.candidates, rng)

    def _descended(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        """Candidates by dictionary learning from a part of the rows, so that searches differ."""
        part = rows[torch.rand(len(rows), generator=rng) < PART]
        white, back = directions.whitened(part)
        shape = max(1, self.candidates // REWEIGHTED), white.shape[1]
        starts = directions.unit(torch.randn(shape, generator=rng, dtype=rows.dtype))
        found = directions.reweighted(white, directions.descended(white, starts), NEAR / 10)
        return directions.unit(found @ back)

    def _guided(self, found: Peeling, job: Job, reweight: bool) -> Tensor:
        """Candidates by the units that seldom fire for the examples left."""
        free, (low, high) = found.free(), REACH
        share = low + (high - low) * float(torch.rand((), generator=job.rng))
        seldom = found.by_activity(found.rest())[: int(share * len(free)) + 3]
        if len(seldom) < len(free):
            return free[:0]
        rows, back = directions.whitened(found.layer.left[seldom] @ free.T)
        if reweight:
            starts = directions.sampled(rows, max(1, self.candidates // REWEIGHTED), job.rng)
            candidates = directions.reweighted(rows, starts, NEAR)
        else:
            candidates = directions.sampled(rows, self.candidates, job.rng)
        return directions.unit(candidates @ back @ free)


def _labels(
    model: VictimModel, inputs: Tensor, gradient: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Labels (B,) and features (B, d) of inputs, by the head's gradient (P - Y)' H / B."""
    with torch.no_grad(), head_calls(model) as calls:
        model.module(inputs)
    features, logits = calls[0]
    sent = gradient[f"{model.head}.weight"].T
    known = features
    if (bias := gradient.get(f"{model.head}.bias")) is not None:
        known = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
        sent = torch.cat([sent, bias[None]])
    errors = torch.linalg.lstsq(known.T, sent, driver="gelsd").solution
    if logits.shape[1] == 1:  # of two classes
        return (logits.sigmoid() - len(inputs) * errors > 0.5).long()[:, 0], features
    return (logits.softmax(dim=1) - len(inputs) * errors).argmax(dim=1), features
