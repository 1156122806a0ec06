"""Models of the `transformers` library: from the Hub, from a folder, or with random weights."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator
from torch import float32

from fedsim import libraries
from fedsim.described import Described
from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import HUB, brief, quiet

PACKAGE = "package:"
"""Prefix of a folder inside an installed package: "package:NAME/FOLDER"."""


class TransformersModel(Described):
    """A model that `transformers` finds, loads and builds; the fields say which."""

    what: ClassVar[str]
    """The kind of model in error messages, such as "an image model"."""
    examples: ClassVar[tuple[str, ...]]
    """Model types that error messages suggest, the most likely first."""

    name: str = Field(default="transformers", pattern=r"^(transformers|hub:[^/\s]+(/[^/\s]+)?)$")
    """Source of the model: "transformers", or "hub:NAME"."""

    config: str | None = None
    """Model type of transformers, or a folder that holds config.json. A folder of an installed
    package is "package:NAME/FOLDER"."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the model's configuration, by name."""

    pretrained: bool | None = None
    """Whether training starts from stored weights; by default it does if there are any."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.name.startswith(HUB) == (self.config is not None):
            raise ValueError(
                f"{self.what} is either 'hub:NAME', or 'transformers' with a config (a model type "
                f"such as '{self.examples[0]}', or a folder)"
            )
        return self

    @property
    def label(self) -> str:
        """The model's name in error messages."""
        return f"model '{self.name}'" + (f" (config '{self.config}')" if self.config else "")

    @property
    def place(self) -> str:
        """The name on the Hub, the folder, or the model type.

        Raises:
            DataError: The package that holds the folder is not installed.
        """
        return resolve_folder(self.config) if self.config else self.name.removeprefix(HUB)

    @property
    def local(self) -> bool:
        """Whether the model is found without a network."""
        return self.config is not None

    @property
    def stored(self) -> bool:
        """Whether a configuration is stored; False for a model type alone."""
        return not self.local or (Path(self.place) / "config.json").is_file()

    @property
    def loads(self) -> bool:
        """Whether weights are loaded rather than drawn; those of the Hub always are."""
        if self.pretrained is not None or not self.local:
            return self.pretrained is not False
        folder = Path(self.place)
        return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))

    def configuration(self, always: Mapping[str, Any], fitting: Mapping[str, Any]) -> Any:
        """Load or create the configuration and apply the settings.

        Args:
            always: Values that are set in every configuration.
            fitting: Values that a model type without stored configuration gets, if it has such
                settings.

        Raises:
            DataError: The configuration is not found, or a setting is unknown or does not fit.
        """
        from huggingface_hub.errors import StrictDataclassError

        library = libraries.transformers()
        configs, AutoConfig = library.CONFIG_MAPPING, library.AutoConfig
        if not self.stored and self.place not in configs:
            near = did_you_mean(self.place, configs).split(" Known:")[0]
            raise DataError(
                f"{self.label}: no folder with a config.json and no model type of transformers. "
                + (near if near.startswith("Did") else f"Examples: {', '.join(self.examples)}.")
            )
        try:
            if self.stored:
                with quiet():
                    config = AutoConfig.from_pretrained(self.place, local_files_only=self.local)
                fitting = {}
            else:
                config = AutoConfig.for_model(self.place)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.label} could not be fetched: {brief(error)} Without a network, "
                "name a folder that holds its config.json and weights "
                '(model = {name = "transformers", config = "FOLDER"}), or take random weights '
                f'(config = "{self.examples[0]}").'
            ) from error
        known = config.to_dict()
        for key in self.settings:
            if key not in known:
                raise DataError(f"{self.label} has no setting '{key}'. {did_you_mean(key, known)}")
        changes = {k: v for k, v in fitting.items() if k in known} | dict(self.settings)
        try:
            if not self.stored:
                # A new configuration also computes the settings that follow from others.
                return AutoConfig.for_model(self.place, **always, **changes)
            for key, value in {**always, **changes}.items():
                setattr(config, key, value)
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise DataError(f"{self.label} refuses its settings: {brief(error)}") from error
        return config

    def create(self, auto: Any, config: Any) -> Any:
        """Build the model in float32.

        Attention is computed without fused kernels ("eager"), because these cannot be
        differentiated twice.

        Args:
            auto: A class of `transformers` such as AutoModelForMaskedLM.
            config: The configuration.

        Raises:
            DataError: The model cannot be built, or stored weights do not fit it. Only a head and a
                pooler may be initialised anew.
        """
        common = {"dtype": float32, "attn_implementation": "eager"}
        try:
            with quiet():
                if not self.loads:
                    return auto.from_config(config, **common)
                model, loaded = auto.from_pretrained(
                    self.place,
                    config=config,
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    local_files_only=self.local,
                    **common,
                )
        except (OSError, TypeError, ValueError, RuntimeError, ImportError) as error:
            raise DataError(f"{self.label} cannot be built: {brief(error)}") from error
        # Mismatched weights are listed with their shapes in some versions of the library.
        others = [one if isinstance(one, str) else one[0] for one in loaded["mismatched_keys"]]
        body = f"{model.base_model_prefix}."
        drawn = sorted(
            name
            for name in {*loaded["missing_keys"], *others}
            if name.startswith(body) and "pooler" not in name
        )
        if drawn:
            raise DataError(
                f"{self.label}: {len(drawn)} weights of its body would be random, as none are "
                f"stored in their shapes ({', '.join(drawn[:3])}, ...). Leave out settings that "
                "change its shape, or take random weights throughout: pretrained = false"
            )
        return model


def resolve_folder(config: str) -> str:
    """Find the folder that "package:NAME/FOLDER" names, so that scenarios can use packaged models.

    The package is looked up and not imported.

    Args:
        config: The name; anything else than "package:..." is returned unchanged.

    Raises:
        DataError: The package is not installed.
    """
    if not config.startswith(PACKAGE):
        return config
    name, _, folder = config.removeprefix(PACKAGE).partition("/")
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise DataError(
            f"'{config}' names a folder of the Python package '{name}', which is not installed. "
            "Install the package that brings it, or name a folder of your own that holds the "
            "model's config.json and weights"
        )
    return str(Path(found.submodule_search_locations[0]) / folder)
