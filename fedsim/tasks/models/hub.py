"""Any image classifier of `transformers`: from the Hub, from a folder, or with random weights."""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from torch import Tensor, float32, nn

from fedsim import libraries
from fedsim.errors import DataError, did_you_mean
from fedsim.tasks.hub import HUB
from fedsim.tasks.models.architecture import Architecture

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
        description="a model type of transformers, or a folder that holds config.json",
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
        from huggingface_hub.utils import logging

        # Without a network it would tell of every retry; the error below says it once.
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        classifiers: Any = libraries.transformers().AutoModelForImageClassification
        config = self._configuration(shape, classes)
        folder = Path(self.config) if self.config is not None else None
        stored = folder is None or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
        common = {"dtype": float32, "attn_implementation": "eager"}
        try:
            if self.pretrained is False or not (stored or self.pretrained):
                model = classifiers.from_config(config, **common)
            else:
                model = classifiers.from_pretrained(
                    self.config or self.name.removeprefix(HUB),
                    config=config,
                    ignore_mismatched_sizes=True,
                    local_files_only=folder is not None,
                    **common,
                )
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise DataError(f"{self._label} cannot be built: {_brief(error)}") from error
        return _Logits(model, getattr(config, "num_channels", shape[0]))

    @property
    def _label(self) -> str:
        return f"model '{self.name}'" + (f" (config '{self.config}')" if self.config else "")

    def _configuration(self, shape: tuple[int, int, int], classes: int) -> Any:
        from huggingface_hub.errors import StrictDataclassError

        library = libraries.transformers()
        configs, AutoConfig = library.CONFIG_MAPPING, library.AutoConfig
        channels, height, width = shape
        fitting: dict[str, Any] = {}
        stored = self.config is None or (Path(self.config) / "config.json").is_file()
        source = self.config or self.name.removeprefix(HUB)
        if not stored and source not in configs:
            near = did_you_mean(source, configs).split(" Known:")[0]
            raise DataError(
                f"{self._label}: no folder with a config.json and no model type of transformers. "
                + (near if near.startswith("Did") else "Examples: resnet, vit, efficientnet.")
            )
        try:
            if stored:
                config = AutoConfig.from_pretrained(
                    source, local_files_only=self.config is not None
                )
            else:
                config = AutoConfig.for_model(source)
                side = height if height == width else [height, width]
                fitting = {"num_channels": channels, "image_size": side}
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self._label} could not be fetched: {_brief(error)} Without a network, "
                "name a folder that holds its config.json and weights "
                '(model = {name = "transformers", config = "FOLDER"}), or take random weights '
                '(config = "resnet").'
            ) from error
        known = config.to_dict()
        for key in self.settings:
            if key not in known:
                raise DataError(f"{self._label} has no setting '{key}'. {did_you_mean(key, known)}")
        changes = {k: v for k, v in fitting.items() if k in known} | self.settings
        try:
            if not stored:
                # Built anew, because settings that follow from others are worked out on the way.
                return AutoConfig.for_model(source, num_labels=classes, **changes)
            for key, value in {"num_labels": classes, **changes}.items():
                setattr(config, key, value)
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise DataError(f"{self._label} refuses its settings: {_brief(error)}") from error
        return config


def _brief(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
