"""The tool that keeps the rows of committed results."""

import importlib.util
from pathlib import Path

import pytest
from support.tiny import rows
from support.tiny_figures import toml

from adversaries import LLG
from fedsim.engine import simulate as simulation
from fedsim.reproduce.console import reproduce

FILE = Path(__file__).parents[2] / "benchmarks" / "results_rows.py"
RUN = Path("test/tiny/smoke/tiny")


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("results_rows", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_study_goes_on_from_its_rows_alone_on_another_machine(tmp_path, tool, monkeypatch):
    figure, here, there, kept = (tmp_path / name for name in ("figure", "here", "there", "kept"))
    figure.mkdir()
    reproduce(toml(figure), here, overrides=["paper.repetitions=2"], data=str(tmp_path))
    assert str(tmp_path) in (here / RUN / "scenario.toml").read_text()
    [path] = tool.keep([here / "test"], kept)
    assert path == (kept / RUN).with_suffix(".zip")
    before = path.read_bytes()
    assert tool.keep([here], kept) == [path]
    assert path.read_bytes() == before

    assert tool.restore(there, ["other"], kept) == []
    assert tool.restore(there, ["test/tiny"], kept) == [there / RUN]
    assert tool.restore(there, [], kept) == []  # what is there stays
    assert not (there / RUN / "artifacts").exists()
    assert str(tmp_path) not in (there / RUN / "scenario.toml").read_text()

    attacked = []
    plain = LLG.reconstruct
    monkeypatch.setattr(
        LLG, "reconstruct", lambda self, seen, job: attacked.append(1) or plain(self, seen, job)
    )
    markdown, _ = reproduce(toml(figure), there, execute=False)
    assert "seeds 3 to 4" in markdown.read_text()
    monkeypatch.setattr(simulation, "device_name", lambda scenario: "an abacus")
    markdown, _ = reproduce(toml(figure), there)
    assert ", then an abacus; versions" in markdown.read_text()
    assert len(attacked) == 2  # batches of 1 and 4 of the third repetition
    first = [row for row in rows(there / RUN) if not row["point"].startswith("seed=5")]
    assert first == rows(here / RUN)


def test_a_run_without_a_row_is_not_kept(tmp_path, tool):
    run = tmp_path / "out" / RUN
    run.mkdir(parents=True)
    (run / "findings.csv").write_text("scenario,point\n")
    assert tool.keep([tmp_path / "out"], tmp_path / "kept") == []


def test_a_run_of_no_papers_scenario_is_kept_as_a_study(tmp_path, tool):
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "scenario.toml").write_text("seed = 7\n")
    (run / "findings.csv").write_text("scenario,point\nmine,\n")
    assert tool.keep([run], tmp_path / "kept") == [tmp_path / "kept" / "study" / "mine.zip"]
    assert tool.restore(tmp_path / "out", ["study"], tmp_path / "kept")
    assert (tmp_path / "out/study/mine/findings.csv").read_text() == "scenario,point\nmine,\n"


def test_runs_whose_names_differ_behind_a_dot_are_kept_apart(tmp_path, tool):
    names = ["sigma-0.01", "sigma-0.1"]
    for name in names:
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "scenario.toml").write_text("seed = 7\n")
        (run / "findings.csv").write_text(f"scenario,point\n{name},\n")
    kept = tool.keep([tmp_path / "runs"], tmp_path / "kept")
    assert [path.name for path in kept] == [f"{name}.zip" for name in names]
    assert tool.restore(tmp_path / "out", [], tmp_path / "kept")
    for name in names:
        assert name in (tmp_path / "out/study" / name / "findings.csv").read_text()
