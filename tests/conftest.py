"""What several tests share: misbehaving plugins by name, real data, a quiet log."""

import inspect
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    """Flower logs every round and warns of a missing evaluation; no test reads that."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of FEDSIM_DATA, with the npz files that the README names."""
    folder = os.environ.get("FEDSIM_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs local data sets: set FEDSIM_DATA to their folder")
    return Path(folder)


@pytest.fixture(scope="session")
def rogue_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that makes `tests/rogues.py` look installed: metadata with entry points."""
    import rogues

    from fedsim.adversary import Adversary
    from fedsim.defense import Defense

    lines = []
    for group, base in (("adversaries", Adversary), ("defenses", Defense)):
        lines.append(f"[fedsim.{group}]")
        for name, cls in inspect.getmembers(rogues, inspect.isclass):
            if issubclass(cls, base) and cls.__module__ == "rogues":
                lines.append(f"{cls.name} = rogues:{name}")
    folder = tmp_path_factory.mktemp("site")
    info = folder / "rogues-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rogues\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def rogues_everywhere(rogue_package: Path) -> Iterator[None]:
    """Plugins of `tests/rogues.py`, by name, here and in every process started from here."""
    from fedsim import plugin

    with pytest.MonkeyPatch.context() as patch:
        path = [str(rogue_package), str(HERE)]
        for folder in path:
            patch.syspath_prepend(folder)
        inherited = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join([*path, *([inherited] if inherited else [])]))
        patch.setenv("OMP_NUM_THREADS", "1")
        plugin._entry_points.cache_clear()
        yield
    sys.path_importer_cache.clear()
    plugin._entry_points.cache_clear()


@pytest.fixture
def rogues(rogues_everywhere: None) -> None:
    """The same, for one test."""
