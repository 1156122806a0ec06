"""Twenty seeded faults: every run that is resumed ends as an undisturbed one."""

import csv
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
