"""The wheel holds all that a run needs: plugins, scenarios, the report's templates."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from support.plugins_fixture import install

import fedsim

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_wheel_runs_the_quickstart_by_name_from_any_folder(tmp_path):
    source = tmp_path / "source"
    for name in ["fedsim", "adversaries", "defenses", "scenarios"]:
        for file in (ROOT / name).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                copied = source / file.relative_to(ROOT)
                copied.parent.mkdir(parents=True, exist_ok=True)
                copied.write_bytes(file.read_bytes())
    for name in ["pyproject.toml", "hatch_build.py", "README.md", "LICENSE"]:
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
    terms = (tmp_path / "site" / "fedsim" / "tasks" / "images" / "digits.txt").read_text()
    assert "10.24432/C50P49" in terms
    assert "Creative Commons Attribution 4.0" in terms


def shown(source: str = "") -> str:
    """The README as a package index shows it."""
    portable = runpy.run_path(str(ROOT / "hatch_build.py"))["portable"]
    return portable((ROOT / "README.md").read_text(), source)


def test_the_readme_of_a_package_index_has_no_link_into_the_source_tree():
    targets = re.findall(r"\]\(([^)]+)\)", shown())
    assert targets
    assert all(target.startswith("https://") for target in targets)
    assert "![" not in shown()
    assert "Your first run, and why" in shown()


def test_with_an_address_of_the_source_links_lead_there():
    text = shown("https://example.org/fedsim/blob/main/")
    assert "[Your first run](https://example.org/fedsim/blob/main/docs/first-run.md)" in text
    assert "[Flower](https://flower.ai)" in text


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["version"] == fedsim.__version__
    assert cited["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


def test_what_is_built_passes_the_check_of_a_package_index(tmp_path):
    pytest.importorskip("build", reason="build is not installed; pip install -e '.[dev]'")
    pytest.importorskip("twine", reason="twine is not installed; pip install -e '.[dev]'")
    built = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(built, check=True, capture_output=True)
    files = sorted(map(str, tmp_path.iterdir()))
    assert [Path(file).suffix for file in files] == [".whl", ".gz"]
    check = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
