"""The wheel holds all that a run needs: plugins, scenarios, the report's templates."""

import os
import subprocess
import sys
from pathlib import Path

from support.plugins_fixture import install

ROOT = Path(__file__).parent.parent


def test_the_wheel_runs_the_quickstart_by_name_from_any_folder(tmp_path):
    source = tmp_path / "source"
    for name in ["fedsim", "adversaries", "defenses", "scenarios"]:
        for file in (ROOT / name).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                copied = source / file.relative_to(ROOT)
                copied.parent.mkdir(parents=True, exist_ok=True)
                copied.write_bytes(file.read_bytes())
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        (source / name).write_bytes((ROOT / name).read_bytes())
    install(source, tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings = ["training.rounds=1", "adversaries.1.iterations=2", "adversaries.1.restarts=0"]
    options = [word for setting in settings for word in ("--set", setting)]
    code = "import fedsim.cli, sys; print(fedsim.__file__); sys.exit(fedsim.cli.main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "quickstart", *options],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert (elsewhere / "runs" / "quickstart" / "report.html").is_file()
