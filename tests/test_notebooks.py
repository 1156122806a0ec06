"""The notebooks of the documentation run, and find what their texts say."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "docs/notebooks"


def tables(name, folder):
    """The tables that a notebook shows when it is run."""
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(book, timeout=500, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [one for cell in book.cells for one in cell.get("outputs", ())]
    return [one["data"]["text/plain"] for one in outputs if "text/html" in one.get("data", {})]


@pytest.mark.timeout(600)
def test_a_first_study(tmp_path):
    scores, again = tables("first-study", tmp_path)
    rows = [line.split() for line in scores.splitlines()[2:]]  # label, metric, point, value, guess
    (images,) = [at for at, row in enumerate(rows) if "recovered" in row]
    noisy, plain = (tuple(map(float, row[-2:])) for row in rows[images : images + 2])
    assert (noisy, plain) == ((0.0, 0.0), (1.0, 0.0))
    similar, guess = map(float, rows[images + 2][-2:])
    assert similar > 0.5 > 0.1 > guess
    assert again.splitlines()[-1].split() == ["defenses=none", "1.0", "0.1"]


@pytest.mark.timeout(600)
def test_an_audit(tmp_path):
    (scores,) = tables("audit", tmp_path)
    rows = [line.split() for line in scores.splitlines()[1:]]
    assert len(rows) == 2 * 2 * 6
    assert {tuple(row[-2:]) for row in rows} == {("revealed", "fits")}
    found = [(row[3], *map(float, row[5:7])) for row in rows if row[4] == "label_f1"]
    assert all(value > guess for _, value, guess in found)
    assert (tmp_path / "runs/audit/report.html").is_file()
