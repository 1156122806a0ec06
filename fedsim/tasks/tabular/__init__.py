"""Classification of the rows of a table."""

import csv
import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny
from torch import Tensor

from fedsim.inert import inert
from fedsim.metrics import match
from fedsim.records import Reconstruction, Truth
from fedsim.spec import TabularSpec
from fedsim.tasks.classification import Classification
from fedsim.tasks.local_data import names_in
from fedsim.tasks.models import FACTORY, Architecture, as_architecture
from fedsim.tasks.models.factory import Classifier
from fedsim.tasks.models.mlp import MLP
from fedsim.tasks.tabular.data import ENDINGS, Table, load

SHOWN = 3
"""Largest number of rows in the text that compares rows; the CSV has all of them."""


class Tabular(Classification):
    """Classification of table rows, with columns of numbers and of categories.

    Inputs are (B, F) float32. A number is standardised by mean and standard deviation of the
    training split, a category is a one-hot vector. Means, standard deviations and categories are
    public: every adversary knows them (`TabularSpec`). Labels are (B,) int64.
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
    """Table: "breast-cancer", "wine", a CSV or Parquet file (its stem under --data, or its path),
    or "module:function"."""

    test_data: str | None = Field(default=None, min_length=1)
    """Another table, whose rows are the test split."""

    label: str | None = Field(default=None, min_length=1)
    """Column with the label; if left out, the one called "label", or the last one without it."""

    categorical: tuple[str, ...] = ()
    """Columns of numbers that are treated as categories; columns of other values always are."""

    model: Annotated[SerializeAsAny[Architecture], BeforeValidator(as_architecture)] = MLP(
        hidden=(64,)
    )
    """Model: "mlp", a function of your own ("module:make"), or a table with either and its
    settings."""

    @classmethod
    def local_data(cls, folder: Path) -> list[str]:
        """Return the names of the tables in a folder."""
        return names_in(folder, inside="tables", endings=ENDINGS)

    @functools.cached_property
    def examples(self) -> Table:
        """The table, which is loaded when first used."""
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
        """Number of classes, and the columns."""
        return TabularSpec(self.outputs, columns=self.examples.columns)

    def cautions(self) -> list[str]:
        """Those of every task, and columns that may be read otherwise than they are meant."""
        return [*super().cautions(), *self.examples.cautions]

    @functools.cached_property
    def public(self) -> tuple[Tensor, Tensor]:
        """Label frequencies (classes,), and medians of numbers and shares of categories (F,).

        The median of a column has a smaller absolute error than its mean.
        """
        frequencies, typical = super().public
        rows = self.examples.inputs(self.held_out[0])
        numbers = torch.cat([torch.full((c.width,), not c.categories) for c in self.spec.columns])
        return frequencies, torch.where(numbers, rows.median(dim=0).values, typical)

    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw rows (count, F) of standard normal values, like standardised numbers."""
        return torch.randn(count, *self.examples.shape, generator=rng)

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """Write original rows and their reconstructions as text and as CSV.

        Args:
            claimed: The adversary's claim.
            truth: The original rows.

        Returns:
            File contents by name; empty without inputs.
        """
        if not claimed.inputs or not truth.inputs:
            return {}
        return side_by_side(claimed.inputs, truth.inputs, self.spec)


def side_by_side(
    claims: Sequence[Tensor], originals: Sequence[Tensor], spec: TabularSpec
) -> dict[str, bytes]:
    """Write original rows and the reconstruction matched to each, column by column.

    Args:
        claims: Reconstructed rows, encoded, of shape (F,).
        originals: Original rows, encoded, of shape (F,).
        spec: The task's spec with its columns.

    Returns:
        `reconstruction.txt`, a line for each column with up to three rows side by side, and
        `cells.csv`, a line for each cell of all rows.
    """
    truth = torch.stack([row.detach().cpu().float() for row in originals])
    found = [row.detach().cpu().float() for row in claims]
    true = [spec.cells(row) for row in truth]
    nothing = ["?"] * len(spec.columns)
    ours = [spec.cells(found[i]) if i >= 0 else nothing for i in match(found, truth)]
    lines = ["Column: original → reconstruction"]
    stream = io.StringIO()
    cells = csv.writer(stream)
    cells.writerow(["row", "column", "original", "reconstruction"])
    for at, column in enumerate(spec.columns):
        both = [(row[at], claim[at]) for row, claim in zip(true, ours, strict=True)]
        shown = [f"{_shown(a)} → {_shown(b)}" for a, b in both[:SHOWN]]
        lines.append(f"{column.name}: {' | '.join(shown)}")
        named = inert(column.name)
        cells.writerows([number, named, *map(_harmless, pair)] for number, pair in enumerate(both))
    return {
        "reconstruction.txt": "\n".join([*lines, ""]).encode(errors="replace"),
        "cells.csv": stream.getvalue().encode(errors="replace"),
    }


def _harmless(cell: float | str) -> float | str:
    return inert(cell) if isinstance(cell, str) else cell


def _shown(cell: float | str) -> str:
    return cell if isinstance(cell, str) else f"{cell:.4g}"
