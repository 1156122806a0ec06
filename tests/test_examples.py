"""The examples of watched Flower projects run, and take few changed lines."""

import importlib.util
import logging
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from support.tiny import rows

from fedsim.engine.inline import InlineGrid
from fedsim.libraries import torchaudio

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
CHANGED = 5
"""The most lines that an audit may add to a project."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_takes_few_lines(path):
    changed = [line for line in path.read_text().splitlines() if line.endswith("# fedsim")]
    assert 0 < len(changed) <= CHANGED
    assert any("watch()" in line for line in changed)
    assert path.name in (path.parent / "README.md").read_text()


@pytest.mark.filterwarnings("ignore")  # Lightning advises to use more workers
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_audited_right(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSIM_TRUTH", str(tmp_path / "truth"))
    torchaudio()  # transformers imports it, and its wheel may not fit
    found = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, path.stem, module)
    found.loader.exec_module(module)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    module.server(InlineGrid(4, module.client), context)
    (folder,) = (tmp_path / "runs").iterdir()
    table = rows(folder)
    assert {row["round"] for row in table} == {"1", "2"}
    assert {(row["status"], row["truth"], row["checked"]) for row in table} == {
        ("ok", "revealed", "fits")
    }
    if path.stem == "flower_lightning":  # one step on four examples: nothing is hidden
        assert {row["value"] for row in table if row["metric"] == "asr"} == {"1.0"}
