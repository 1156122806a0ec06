"""Models made by a user's own function: `task.model = "module:function"`."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict
from torch import nn
from torch.nn.parameter import UninitializedParameter

from fedsim.described import Described
from fedsim.errors import DataError
from fedsim.libraries import brief
from fedsim.references import resolve
from fedsim.tasks.models.architecture import Architecture, head_behind

FACTORY = "module:function"
"""Name of such models in lists of models."""


class Factory(Described):
    """Settings of a model that a user's own function makes.

    All settings but `name` and `head` are passed to the function as keyword arguments, along with
    the sizes that the task's data require.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    """Reference to the function, "module:function"."""

    head: str | None = None
    """Name of the final linear layer, which is found automatically unless there are several."""

    def make(self, **sizes: Any) -> nn.Module:
        """Call the function, its weights drawn from torch's global generator.

        Args:
            sizes: Sizes that the task's data require, such as `classes=10`.

        Raises:
            PluginError: There is no such function.
            DataError: It raises an error, does not return a module, or returns lazy layers.
        """
        given = {**sizes, **(self.model_extra or {})}
        call = f"{self.name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
        function: Callable[..., Any] = resolve(self.name)
        if not callable(function):
            raise DataError(f"model '{self.name}' is {function!r:.80}; expected a function")
        try:
            module = function(**given)
        except Exception as error:
            raise DataError(f"task.model: {call} raised {brief(error)}") from error
        if not isinstance(module, nn.Module):
            raise DataError(
                f"task.model: {call} returned {type(module).__name__}, expected a torch.nn.Module"
            )
        lazy = [k for k, p in module.named_parameters() if isinstance(p, UninitializedParameter)]
        if lazy:
            raise DataError(
                f"task.model: {call} returned a model whose '{lazy[0]}' has no shape before its "
                "first input. Use a layer with its sizes given in place of a lazy one"
            )
        return module

    def head_behind(
        self, module: nn.Module, logits: Callable[[], Any], shape: tuple[int, ...], takes: str
    ) -> str:
        """Find the model's head, which must have a weight of its own.

        Args:
            module: The model.
            logits: Computes the logits of one example.
            shape: Expected shape of the logits, classes last.
            takes: Description of the example, for error messages.

        Raises:
            DataError: As for `architecture.head_behind`; also if the head's weight is not trained,
                or is shared with another layer.
        """
        label = f"model '{self.name}'"
        head = head_behind(module, logits, shape, label=label, takes=takes, named=self.head)
        layer = module.get_submodule(head)
        if not getattr(layer.weight, "requires_grad", False):
            raise DataError(
                f"{label}: the weight of its head '{head}' is not trained, and clients would send "
                "no gradient of it. Set requires_grad, and use no weight normalisation there"
            )
        others = (
            f"{name}.{key}"
            for name, part in module.named_modules()
            for key, parameter in part.named_parameters(recurse=False)
            if parameter is layer.weight and part is not layer
        )
        if other := next(others, None):
            raise DataError(
                f"{label}: the head '{head}' shares its weight with '{other}', and adversaries "
                "read the gradient of the head alone. Give it a weight of its own"
            )
        return head


class Classifier(Factory, Architecture):
    """A classifier that your own function makes, as `make(classes=10, shape=(1, 32, 32))`.

    It takes inputs (B, *shape), images float32 in [0, 1], and returns logits (B, classes).
    """

    images_only: ClassVar[bool] = False
    model_config = Factory.model_config

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Call the function with the number of classes and the shape of an input."""
        return self.make(classes=classes, shape=shape)

    def find_head(self, module: nn.Module, shape: tuple[int, ...], classes: int) -> str:
        """Find the name of the head, which must have a weight of its own."""
        example = torch.zeros(1, *shape)
        return self.head_behind(
            module, lambda: module(example), (1, classes), f"inputs of shape {(1, *shape)}"
        )
