"""Text of clients and plugins is a formula nowhere, and is read back as it was."""

import csv
import html
import io
import re
import unicodedata

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.findings import finding
from support.run_folders import page_of, row, written
from support.tiny import rows, scenario

from fedsim.inert import inert, restored, shown, visible
from fedsim.report import write_report
from fedsim.results.loading import Run
from fedsim.runs.ledger import Ledger
from fedsim.runs.tables import cells, lines, parsed

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
ATTACKS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "'", "''", " ", "\t", "\r\n", *FORMULAS]),
        st.sampled_from([*FORMULAS, "", "1"]),
        st.text(max_size=8) | st.sampled_from(["cmd|' /C calc'!A0", "1+1", "\x1b[2J", "\u202e"]),
    ),
)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_formula(cell: str) -> bool:
    """Whether a spreadsheet computes a cell, also after removing the space around it."""
    return cell.startswith(FORMULAS) or cell.strip().startswith(FORMULAS)


@settings(max_examples=300, deadline=None)
@given(st.lists(ATTACKS, min_size=1, max_size=5))
def test_no_cell_of_a_table_is_a_formula_and_each_is_read_back(texts):
    row = cells(texts)
    text = lines([row])
    assert parsed(text) == [row]
    (seen,) = csv.reader(io.StringIO(text))
    assert [cell for cell in seen if is_formula(cell) and not is_number(cell)] == []


@given(ATTACKS)
def test_what_is_made_inert_can_be_restored(text):
    assert restored(inert(text)) == text
    assert not is_formula(shown(text)) or is_number(text)


@given(st.floats(allow_nan=False))
def test_numbers_stay_numbers(value):
    assert inert(str(value)) == str(value)


@given(st.text(st.characters(exclude_categories=())))
def test_control_characters_are_escaped(text):
    found = visible(text).encode().decode()
    left = {one for one in found if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")}
    assert left <= {"\n", "\t"}
    assert visible("\x1b[31m\u202e\r") == r"\x1b[31m\u202e\r"
    assert visible("naïve 漢字 🎉") == "naïve 漢字 🎉"


def test_a_run_folder_keeps_the_text_and_hides_the_formula(tmp_path):
    said = "=HYPERLINK(1)"
    ledger = Ledger.create(tmp_path / "run", scenario())
    ledger.findings([finding(error=said, label="-label", value=-0.5, status="failed")])
    ledger.utility(1, {"@metric\x1b": -1.0}, "")
    ledger.finish()
    (cell,) = rows(tmp_path / "run")
    assert (cell["error"], cell["label"], cell["value"]) == (f"'{said}", "'-label", "-0.5")
    (cell,) = rows(tmp_path / "run", "utility.csv")
    assert (cell["metric"], cell["value"]) == (r"'@metric\x1b", "-1.0")
    (one,) = ledger.rows()
    assert (one["error"], one["label"]) == (said, "-label")
    frame = pd.read_parquet(tmp_path / "run" / "findings.parquet")
    assert frame[["error", "label", "value"]].values.tolist() == [[said, "-label", -0.5]]
    loaded = Run(tmp_path / "run", scenario())
    assert loaded.findings[["error", "label"]].values.tolist() == [[said, "-label"]]
    assert list(loaded.utility["metric"]) == [r"@metric\x1b"]
    ledger.rewind("", 0)  # written again, it is escaped once
    ledger.finish()


@pytest.mark.parametrize("format", ["html", "markdown"])
def test_no_cell_of_a_report_is_a_formula(tmp_path, format):
    evil = "=cmd|' /C calc'!A0"
    hostile = {"client": "@SUM(1)", "error": "\t=1+1", "scenario": "+1+cmd"}
    folder = written(
        tmp_path,
        row(label=evil, metric="-x+y"),
        row(label=evil, status="failed", **hostile),
        row(round=2, value=-0.5, metric="+m"),
        points=("=p",),
        name="=name",
    )
    text = page_of(folder) if format == "html" else write_report(folder, format).read_text()
    found = _cells_of(text, format)
    assert len(found) > 20
    assert any("cmd" in cell for cell in found)
    assert [cell for cell in found if is_formula(cell) and not cell.startswith("-0.5")] == []


def _cells_of(text: str, format: str) -> list[str]:
    """The texts of the cells of all tables, as a person would copy them."""
    if format == "html":
        cells = re.findall(r"<t[dh]\b[^>]*>(.*?)</t[dh]>", text, flags=re.DOTALL)
        return [html.unescape(re.sub(r"<[^>]*>", "", cell)).strip(" \n") for cell in cells]
    table = [line for line in text.splitlines() if line.startswith("|") and {*line} - {*"|- "}]
    return [
        cell.strip().replace("\\", "") for line in table for cell in line.strip("|").split(" | ")
    ]
