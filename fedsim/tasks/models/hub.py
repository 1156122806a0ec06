"""Image classifiers of `transformers`: from the Hub, from a folder, or with random weights."""

from typing import Any, cast

from torch import Tensor, nn

from fedsim import libraries
from fedsim.tasks.models.architecture import Architecture
from fedsim.tasks.pretrained import TransformersModel


class _Logits(nn.Module):
    """A `transformers` classifier that takes pixels and returns logits alone."""

    def __init__(self, model: Any, channels: int) -> None:
        super().__init__()
        self.model = model
        self.channels = channels

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[1] == 1 < self.channels:
            inputs = inputs.expand(-1, self.channels, -1, -1)
        return cast(Tensor, self.model(pixel_values=inputs).logits)


class Transformers(TransformersModel, Architecture):
    """An image classifier of `transformers`.

    `model = "hub:microsoft/resnet-50"` downloads weights by name. `{name = "transformers", config =
    "resnet", settings = {depths = [1, 1, 1, 1]}}` needs no network. The model receives inputs in
    [0, 1]; a grey image is repeated if the model expects three channels. The head is initialised
    anew if its number of classes differs. Attention is computed without fused kernels ("eager"),
    because these cannot be differentiated twice.
    """

    what = "a transformers model"
    examples = ("resnet", "vit", "efficientnet")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the classifier.

        Raises:
            DataError: The model is not found, or does not fit the task.
        """
        channels, height, width = shape
        side = height if height == width else [height, width]
        config = self.configuration(
            {"num_labels": classes}, {"num_channels": channels, "image_size": side}
        )
        model = self.create(libraries.transformers().AutoModelForImageClassification, config)
        return _Logits(model, getattr(config, "num_channels", channels))
