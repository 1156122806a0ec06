"""The tool that compares a page of results with the same figures under other seeds."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SECTION = """## p/fig1 (paper scale): A title

run: data x; seeds 7 to 9; device y.

Labels recovered: Attack success rate.

| batch size | llg\\* | random | by chance | n |
| --- | --- | --- | --- | --- |
| 1 | {one} | 7 % | 10 % \\[9, 11\\] | 100 |
| 2 | 1e-06 \\[-1, 2.5e-06\\] over victims of one network | – | 10 % | 100 |

| measure | series | ours | n | published | verdict |
| --- | --- | --- | --- | --- | --- |
| Error | llg\\* | 0.5 s \\[0.25, 0.75\\] | 3 | ≤ 1 | agrees |
| Steps | llg\\* | 1,173 \\[990, 12,345\\] | 3 | 270 | differs |
"""


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("results_page", "results_index"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("other_seeds", BENCHMARKS / "other_seeds.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_means_with_an_interval_are_found_in_both_kinds_of_tables(tool):
    text = SECTION.format(one="93 % \\[89.5, 96\\]")
    found = tool.means(tool.Section("p/fig1", text))
    assert found == {
        ("Labels recovered", "1", "llg*"): tool.Mean(93, 89.5, 96, "%"),
        ("Labels recovered", "2", "llg*"): tool.Mean(1e-06, -1, 2.5e-06),
        ("", "Error llg*", "ours"): tool.Mean(0.5, 0.25, 0.75, "s"),
        ("", "Steps llg*", "ours"): tool.Mean(1173, 990, 12345),
    }


@pytest.mark.parametrize(
    ("now", "touching"), [("80 % \\[70, 89.5\\]", 4), ("80 % \\[70, 89\\]", 3)]
)
def test_intervals_that_do_not_touch_are_named(tool, tmp_path, monkeypatch, now, touching):
    monkeypatch.setattr(tool, "RESULTS", tmp_path)
    (tmp_path / "p.md").write_text("# P\n\n" + SECTION.format(one="93 % \\[89.5, 96\\]"))
    (tmp_path / "out" / "p").mkdir(parents=True)
    (tmp_path / "out" / "p" / "smoke.md").write_text("# P\n\n" + SECTION.format(one=now))
    [row] = tool.compared(tmp_path / "out")
    assert str(row).startswith(f"| p/fig1 | paper | 7 to 9 | 4 | {touching} | 0 |")
    assert ("Labels recovered 1, llg*: 93" in row.apart) == (touching == 3)
