"""Twenty seeded faults: every run that is resumed ends as an undisturbed one."""

import csv
import importlib.util
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "benchmarks" / "chaos.py"
KINDS = [
    "driver killed", "driver killed twice", "driver terminated", "disk full", "torn file",
    "second process", "client raises once",
]  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.timeout(900)
def test_twenty_faults_at_random_moments_change_nothing(tmp_path):
    asked = ["--only", "inline", "--count", "20", "--scenario", "adam", "--kinds", *KINDS]
    done = subprocess.run(
        [sys.executable, TOOL, *asked, "--rows", tmp_path / "rows.csv"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row for row in rows if row["equal"] != "True"] == []
    assert len(rows) == 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_shared_memory_that_nobody_uses_any_more_is_left_behind(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("chaos_left", TOOL.with_name("chaos_left.py"))
    left = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(left)
    monkeypatch.setattr(left, "SHARED", tmp_path)
    monkeypatch.setattr(left, "SECONDS", 0.3)
    monkeypatch.setattr(left, "marked", lambda mark: [])
    for name in ("before", "gone", "open", "mapped"):
        (tmp_path / name).write_bytes(b"0" * 9)
    (tmp_path / "folder").mkdir()
    with (tmp_path / "open").open("rb"), (tmp_path / "mapped").open("rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            file.close()
            said = left.left_behind(tmp_path / "folder", "mark", {"before", "folder"})
        assert said == "shared memory left behind: gone"
    (tmp_path / "gone").unlink()
    assert left.left_in_memory({"before", "folder", "open", "mapped"}) == []
