"""The classifier of another Flower project, known from its model and one of its inputs."""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.attacking.texts import padding_of, takes_embeddings, text_loss, text_spec
from fedsim.attacking.utterances import speech_spec, utterance_loss, with_blank
from fedsim.errors import DataError, ScenarioError
from fedsim.libraries import brief
from fedsim.runs.truth import TruthFile
from fedsim.seeds import isolated
from fedsim.spec import Column, ImageSpec, Spec, TabularSpec, TextSpec
from fedsim.task import evaluating
from fedsim.tasks.classification import cross_entropy
from fedsim.tasks.models.architecture import head_behind
from fedsim.tasks.text.languages.language import POINTS
from fedsim.victim import Loss


@dataclass(frozen=True, slots=True)
class Classifier:
    """What is known of a project: how its model is made, its loss, its head and its inputs.

    `points` are those at which the loss takes inputs, as in `VictimModel`.
    """

    make: Callable[[], nn.Module]
    loss: Loss
    head: str
    spec: Spec
    points: tuple[str, ...] = POINTS[:1]

    @property
    def words(self) -> str | None:
        """The name of the parameter that holds the word embeddings; None without texts."""
        return self.spec.tokens.embedding if isinstance(self.spec, TextSpec) else None

    @classmethod
    def of(
        cls,
        make: Callable[[], nn.Module],
        example: Tensor,
        *,
        loss: Loss | None = None,
        seed: int = 0,
        input_range: tuple[float, float] | None = None,
    ) -> "Classifier":
        """Find head, classes and modality; the arguments are those of `Revealed.of`.

        Raises:
            ScenarioError: `make` makes no module, or it cannot take the example.
        """
        make, example = _of_logits(make), example.detach().cpu()
        shape, module = tuple(example.shape), None
        try:
            with isolated(seed, "model"):
                module = make()
            with evaluating(module):
                logits = module(example[None])
        except Exception as error:
            raise ScenarioError(
                f"model: it cannot be made, or cannot take the clients' inputs {shape}: "
                f"{brief(error)}. Give the class or function that makes the model which they train"
                f"{_called_alone(module, example)}"
            ) from error
        single = isinstance(logits, Tensor) and tuple(logits.shape) in ((1,), (1, 1))
        spoken = example.is_floating_point() and example.dim() == 2
        dims = (1, 2) if single else (2, 3) if spoken else (2,)
        if not isinstance(logits, Tensor) or logits.dim() not in dims:
            shown = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ScenarioError(
                f"model: it returns {shown} for one input of shape {shape}, expected logits of "
                "shape (1, classes); or (1, T, classes) for frames (T, F), if it trains with CTC"
            )
        classes = 2 if single else int(logits.shape[-1])
        head, spec = _head_of(module, example, tuple(logits.shape)), Spec(classes)
        if logits.dim() > 2:
            spec = speech_spec(shape[1], classes)
            return cls(with_blank(make), loss or utterance_loss, head, spec)
        if single:
            make, loss = (make, _of_second(loss)) if loss else (_of_two(make), None)
        if example.is_floating_point():
            spec = _spec_of(example, classes, input_range)
        elif example.dim() == 1:
            spec = text_spec(module, example, classes) or spec
        takes = inspect.signature(module.forward).parameters
        if loss is None and isinstance(spec, TextSpec) and takes_embeddings(module, takes):
            return cls(make, text_loss, head, spec, POINTS)
        return cls(make, loss or cross_entropy, head, spec)


def _of_two(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Make a model of one logit z, (B,) or (B, 1), return the two logits 0 and z, (B, 2).

    Their cross-entropy is the binary one of z.
    """

    def two(module: nn.Module, args: Any, logit: Tensor) -> Tensor:
        z = logit.reshape(-1, 1)
        return torch.cat([torch.zeros_like(z), z], dim=1)

    def made() -> nn.Module:
        module = make()
        module.register_forward_hook(two)
        return module

    return made


def _of_second(loss: Loss) -> Loss:
    """Make a loss of one logit take targets of two classes: of soft ones, those of the second."""

    def second(module: nn.Module, inputs: Tensor, target: Tensor, **more: Any) -> Tensor:
        return loss(module, inputs, target[:, 1] if target.dim() > 1 else target, **more)

    return second


def _called_alone(module: nn.Module | None, example: Tensor) -> str:
    """Advice if a part of the model takes an input that the model does not take; else ""."""
    for name, part in module.named_children() if module is not None else ():
        if any(True for _ in part.parameters()):
            with contextlib.suppress(Exception), evaluating(part):
                part(example[None])
                return (
                    f". Its part '{name}' takes these inputs: if the clients call it alone, behind "
                    "layers under no_grad(), freeze those with requires_grad_(False), and call the "
                    "whole model"
                )
    return ""


def _spec_of(example: Tensor, classes: int, input_range: tuple[float, float] | None) -> Spec:
    """The modality of a floating-point input: images (C, H, W), rows (F,), or anything else."""
    shape = tuple(example.shape)
    if len(shape) == 3:
        return ImageSpec(classes, shape, input_range)
    if len(shape) == 1:
        return TabularSpec(classes, columns=tuple(Column(f"x{i}") for i in range(shape[0])))
    return Spec(classes)


def _of_logits(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Make a model that returns logits, also if it is one of Hugging Face's.

    These return a record with a field `logits`. Models whose `forward` takes an `attention_mask`
    get one that leaves out padding.
    """

    def masked(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        padding = padding_of(module)
        if padding is not None and len(args) == 1 and args[0].dtype == torch.int64:
            kwargs = {"attention_mask": (args[0] != padding).long(), **kwargs}
        return args, kwargs

    def made() -> nn.Module:
        module = make()
        if _takes_mask(module):
            module.register_forward_pre_hook(masked, with_kwargs=True)
        module.register_forward_hook(lambda _, args, found: getattr(found, "logits", found))
        return module

    return made


def _takes_mask(module: nn.Module) -> bool:
    """Whether `forward` takes an attention mask, by name or among any named arguments."""
    takes = inspect.signature(module.forward).parameters
    anything = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    return "attention_mask" in takes or (anything and hasattr(module, "config"))


def firsts(files: Iterable[TruthFile]) -> Iterator[Tensor]:
    """The first batch of inputs of each client that revealed one, loaded one at a time."""
    return (batch for file in files if (batch := file.first) is not None)


def seen_range(example: Tensor, others: Iterable[Tensor]) -> tuple[float, float] | None:
    """The range of pixels: 0 to 1 if all inputs are within, else None, for unbounded."""
    every = itertools.chain([example], others)
    inside = all(bool((one >= 0).all() and (one <= 1).all()) for one in every)
    return (0.0, 1.0) if inside else None


def check_arrays(module: nn.Module, sent: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model that has other arrays than the clients are sent.

    Args:
        module: The model.
        sent: The shape of each array, by name.

    Raises:
        ScenarioError: It names the first array that differs.
    """
    own = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    fix = "Give the class or function that makes the model which clients train"
    if differing := sorted(sent.keys() ^ own.keys()):
        has, lacks = ("server", "model") if differing[0] in sent else ("model", "server")
        raise ScenarioError(
            f"model: the {has} has an array '{differing[0]}', and the {lacks} has none of "
            f"that name. {fix}"
        )
    for name, shape in own.items():
        if sent[name] != shape:
            raise ScenarioError(
                f"model: its array '{name}' has shape {shape}, and the clients are sent one of "
                f"shape {sent[name]}. {fix}"
            )


def _head_of(module: nn.Module, example: Tensor, logits: tuple[int, ...]) -> str:
    """The layer whose output is the logits, or else the last linear layer of as many outputs.

    Raises:
        ScenarioError: There is none.
    """
    with contextlib.suppress(DataError):
        return head_behind(
            module,
            lambda: module(example[None]),
            logits,
            label="model",
            takes=f"inputs of shape {tuple(example.shape)}",
            named=None,
        )
    layers = [(name, one) for name, one in module.named_modules() if isinstance(one, nn.Linear)]
    likely: list[str] = [name for name, layer in layers if layer.out_features == logits[-1]]
    if not likely:
        raise ScenarioError(
            f"model: none of its linear layers has {logits[-1]} outputs, as the logits have, so "
            "that its head cannot be found. Adversaries need one"
        )
    return likely[-1]
