"""Comparison of original table rows with their reconstructions, as text and as CSV."""

import csv
import io
from collections.abc import Sequence

import torch
from torch import Tensor

from fedsim.metrics import match
from fedsim.spec import TabularSpec

SHOWN = 3
"""Largest number of rows in the text; the CSV has all rows."""


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
        cells.writerows([number, column.name, *pair] for number, pair in enumerate(both))
    return {
        "reconstruction.txt": "\n".join([*lines, ""]).encode(errors="replace"),
        "cells.csv": stream.getvalue().encode(errors="replace"),
    }


def _shown(cell: float | str) -> str:
    return cell if isinstance(cell, str) else f"{cell:.4g}"
