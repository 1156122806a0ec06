"""Metrics of reconstructed table rows, by column.

Claims are matched one-to-one to originals such that the total squared distance of the encoded rows
is smallest (Hungarian algorithm). An original without a claim, or whose claim holds NaN or Inf,
counts as a row of means with no correct category. If there are more claims than originals, only the
first ones count.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedsim.metric import Measure, Metric
from fedsim.metrics.images import match
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import TabularSpec

CLOSE = 0.01
"""Largest error of a number, in standard deviations, in a row that counts as recovered."""


class _OfTables(Metric):
    """Base class of metrics of tables that have columns of some kind."""

    fields = ("inputs",)
    kinds: ClassVar[tuple[bool, ...]] = (False, True)

    def suits(self, spec: Spec) -> bool:
        """Return whether the task is a table with such columns."""
        return isinstance(spec, TabularSpec) and any(
            bool(one.categories) in self.kinds for one in spec.columns
        )


def _compared(claimed: Reconstruction, truth: Truth, spec: Spec) -> tuple[Tensor, Tensor]:
    """Compare every cell with the original.

    Returns:
        Errors of numbers in standard deviations, (N, columns of numbers), and 1 for each correct
        category, otherwise 0, (N, columns of categories); both float64.
    """
    if not truth.inputs:
        raise ValueError("this task's truth has no inputs, so no metric of tables applies")
    originals = torch.stack([row.detach().cpu().double() for row in truth.inputs])
    claims = [row.detach().cpu().double() for row in claimed.inputs or ()]
    found = match(claims, originals)
    nothing = torch.zeros_like(originals[0])
    ours = torch.stack([claims[i] if i >= 0 else nothing for i in found])
    there = torch.tensor([i >= 0 for i in found])
    columns = spec.require(TabularSpec).columns
    widths = [column.width for column in columns]
    parts = torch.split(ours, widths, dim=1), torch.split(originals, widths, dim=1)
    errors, right = [originals.new_zeros(len(found), 0)], [originals.new_zeros(len(found), 0)]
    for column, a, b in zip(columns, *parts, strict=True):
        if column.categories:
            right.append(((a.argmax(dim=1) == b.argmax(dim=1)) & there)[:, None].double())
        else:
            errors.append((a - b).abs())
    return torch.cat(errors, dim=1), torch.cat(right, dim=1)


class RowExact(_OfTables):
    """Share of rows with all categories correct and numbers within 0.01 standard deviations."""

    name = "row_exact"
    keywords = ("tabular data", "record reconstruction", "success rate")
    shown = Measure(
        "Rows recovered",
        phrase="rows of {hits} of {n} updates recovered",
        kind="yes/no",
        partly="{share} of the rows in {n} updates recovered",
        rank=12,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Return the share of the original rows that are recovered."""
        errors, right = _compared(claimed, truth, spec)
        return float(((errors < CLOSE).all(dim=1) & (right == 1).all(dim=1)).double().mean())


class ColumnError(_OfTables):
    """Mean absolute error of numbers in standard deviations; 0 is an exact copy."""

    name = "column_error"
    keywords = ("tabular data", "record reconstruction")
    kinds = (False,)
    shown = Measure(
        "Error of numbers",
        phrase="numbers {value} standard deviations off over {n} updates",
        lower=True,
        rank=152,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Return the mean absolute error over the cells with a number."""
        return float(_compared(claimed, truth, spec)[0].mean())


class ColumnMatch(_OfTables):
    """Share of the cells with a category that are correct."""

    name = "column_match"
    keywords = ("tabular data", "record reconstruction", "attribute inference")
    kinds = (True,)
    shown = Measure(
        "Categories right",
        phrase="{share} of the categories in {n} updates right",
        kind="share",
        rank=154,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Return the share over the cells with a category."""
        return float(_compared(claimed, truth, spec)[1].mean())
