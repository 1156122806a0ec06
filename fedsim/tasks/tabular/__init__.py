"""Classification of the rows of a table."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny
from torch import Tensor

from fedsim.records import Reconstruction, Truth
from fedsim.spec import TabularSpec
from fedsim.tasks.classification import Classification
from fedsim.tasks.local_data import names_in
from fedsim.tasks.models import FACTORY, Architecture, as_architecture
from fedsim.tasks.models.factory import Classifier
from fedsim.tasks.models.mlp import MLP
from fedsim.tasks.tabular.data import ENDINGS, Table, load
from fedsim.tasks.tabular.rendering import side_by_side

__all__ = ["Tabular"]


class Tabular(Classification):
    """Classification of the rows of a table, with columns of numbers and of categories.

    Inputs are (B, F) float32: of each column the number, standardised by the training split, or a
    one-hot vector of its categories. Means, standard deviations and categories are public: every
    adversary has them (`TabularSpec`). Labels are (B,) int64.
    """

    name = "tabular"
    keywords = ("tabular data", "table", "CSV", "Parquet", "records")
    spec_type = TabularSpec
    models: ClassVar[Mapping[str, type[BaseModel]]] = {"mlp": MLP, FACTORY: Classifier}
    sources: ClassVar[Mapping[str, str]] = {
        "breast-cancer": "569 tumours, 30 measurements each, from scikit-learn; built in",
        "wine": "178 wines of three growers, 13 measurements each, from scikit-learn; built in",
        "NAME": "NAME.csv or NAME.parquet under --data: a column of labels, and others",
        "module:function": "A function of your own that returns a table",
    }

    data: str = Field(default="breast-cancer", min_length=1)
    """ "breast-cancer", "wine", the stem of a CSV or Parquet file under --data or its path, or
    "module:function"."""

    test_data: str | None = Field(default=None, min_length=1)
    """Another table, whose rows are the test split."""

    label: str | None = Field(default=None, min_length=1)
    """The column with the label; left out: the one called "label", else the last one."""

    categorical: tuple[str, ...] = ()
    """Columns of numbers that are categories; columns of other values always are."""

    model: Annotated[SerializeAsAny[Architecture], BeforeValidator(as_architecture)] = MLP(
        hidden=(64,)
    )
    """ "mlp", a function of your own ("module:make"), or a table with either and settings."""

    @classmethod
    def local_data(cls, folder: Path) -> list[str]:
        """The tables in a folder."""
        return names_in(folder, inside="tables", endings=ENDINGS)

    @functools.cached_property
    def examples(self) -> Table:
        """The table; loaded when first used."""
        return load(
            self.data,
            self.folder,
            test=self.test_data,
            label=self.label,
            categorical=self.categorical,
            test_fraction=self.test_fraction,
            seed=self.seed,
        )

    @property
    def spec(self) -> TabularSpec:
        """Classes and columns."""
        return TabularSpec(self.outputs, columns=self.examples.columns)

    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Rows (count, F) of normal values, as standardised numbers have them."""
        return torch.randn(count, *self.examples.shape, generator=rng)

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """A text, original rows beside what was matched to them, and a CSV of every cell."""
        if not claimed.inputs or not truth.inputs:
            return {}
        return side_by_side(claimed.inputs, truth.inputs, self.spec)
