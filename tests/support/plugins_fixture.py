"""The third-party package of `tests/thirdparty`, installed where only a test that asks sees it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "thirdparty"


def install(package: Path, target: Path, *more: Path) -> None:
    """Build and install packages into a folder, with neither network nor virtual environment."""
    sources = []
    for one in (package, *more):
        source = target.with_name(f"{target.name}-source") / one.name
        copied = {
            file.relative_to(one): file.read_bytes()
            for file in one.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        for (
            relative,
            content,
        ) in copied.items():  # a copy, so that no build output lands in the tree
            place = source / relative
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        sources.append(str(source))
    command = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install"]
    command += ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    done = subprocess.run(
        [*command, "--target", str(target), *sources], capture_output=True, text=True
    )
    assert done.returncode == 0, f"pip could not install {sources}:\n{done.stderr}"


def with_plugins(target: Path, **more: str) -> dict[str, str]:
    """An environment for a subprocess that sees the plugins installed in `target`."""
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **more}


@pytest.fixture(scope="session")
def thirdparty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `fedsim-example` is installed: put it on PYTHONPATH to have its plugins."""
    target = tmp_path_factory.mktemp("plugins") / "site"
    install(PACKAGE, target)
    return target
