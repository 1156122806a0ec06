"""Any image classifier of `transformers`: from the Hub, from a folder, or with random weights."""

from typing import Any

from pydantic import Field, model_validator
from torch import Tensor, nn

from fedsim import libraries
from fedsim.libraries import HUB
from fedsim.tasks.models.architecture import Architecture
from fedsim.tasks.pretrained import Source

__all__ = ["Transformers"]


class _Logits(nn.Module):
    """A `transformers` classifier that takes pixels and returns logits alone."""

    def __init__(self, model: Any, channels: int) -> None:
        super().__init__()
        self.model = model
        self.channels = channels

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1] == 1 < self.channels:
            inputs = inputs.expand(-1, self.channels, -1, -1)
        logits: Tensor = self.model(pixel_values=inputs).logits
        return logits


class Transformers(Architecture):
    """An image classifier of `transformers`.

    `model = "hub:microsoft/resnet-50"` downloads weights by name; `{name = "transformers",
    config = "resnet", settings = {depths = [1, 1, 1, 1]}}` needs no network. Inputs are fed as
    they are, in [0, 1]; a grey image is repeated where the model wants three channels. The head
    is new wherever its number of classes differs. Attention is computed step by step ("eager"),
    because the fused kernels cannot be differentiated twice.
    """

    name: str = Field(default="transformers", pattern=r"^(transformers|hub:[^/\s]+(/[^/\s]+)?)$")
    config: str | None = Field(
        default=None,
        description="a model type of transformers, or a folder that holds config.json; one of an "
        'installed package is "package:NAME/FOLDER"',
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of the model's configuration, by name"
    )
    pretrained: bool | None = Field(
        default=None,
        description="start from stored weights; by default wherever there are any",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> "Transformers":
        if self.name.startswith(HUB) == (self.config is not None):
            raise ValueError(
                "a transformers model is either 'hub:NAME', or 'transformers' with a config "
                "(a model type such as 'resnet', or a folder)"
            )
        return self

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A new classifier; raises `DataError` for what cannot be found or does not fit."""
        channels, height, width = shape
        side = height if height == width else [height, width]
        source = Source(
            self.name,
            self.config,
            self.settings,
            self.pretrained,
            examples=("resnet", "vit", "efficientnet"),
        )
        config = source.configuration(
            {"num_labels": classes}, {"num_channels": channels, "image_size": side}
        )
        model = source.model(libraries.transformers().AutoModelForImageClassification, config)
        return _Logits(model, getattr(config, "num_channels", channels))
