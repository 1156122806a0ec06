"""What several tests share: misbehaving plugins by name, data, a browser, a quiet log."""

import inspect
import logging
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import commands

if TYPE_CHECKING:
    from fedsim.tasks.images import Images

HERE = Path(__file__).parent

ENDINGS = (
    "engine.process.write_report",
    "engine.simulate.diagnose_end",
    "engine.attack.diagnose_end",
    "engine.app.diagnose_end",
    "attacking.campaign.write_report",
    "federation.server.diagnose_end",
)
"""Where a run ends with its diagnosis and its report."""

# Flower's simulation joins whatever Ray cluster it finds on this machine, unless it is told not to.
os.environ["RAY_ADDRESS"] = "local"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - else tests beside it starve its workers
# Ray starts workers when there is something to do, and not as many as there are CPUs before.
os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112 - Ray spells it so


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    """Flower logs every round and warns of a missing evaluation; no test reads that."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


@pytest.fixture(autouse=True, scope="session")
def _float32() -> None:
    """On a GPU, adversaries that a test calls by itself compute as in a run; see `isolated`."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """What a test draws does not depend on the tests before it in its process."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def unreported(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end without diagnosis and report, which are three quarters of a tiny run's time.

    In a module that uses it, tests marked as `reported` are left out.
    """
    if request.node.get_closest_marker("reported"):
        return
    for ending in ENDINGS:
        monkeypatch.setattr(f"fedsim.{ending}", lambda folder, *_, **__: folder / "report.html")


@pytest.fixture(autouse=True, scope="session")
def _commands() -> Iterator[None]:
    """The process of `support/commands.py` ends with the session."""
    yield
    commands.end()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of FEDSIM_DATA, with the npz files that the README names."""
    folder = os.environ.get("FEDSIM_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs local data sets: set FEDSIM_DATA to their folder")
    return Path(folder)


@pytest.fixture(scope="session")
def rogue_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that makes `tests/support/rogues.py` look installed: metadata with entry points."""
    from support import rogues

    from fedsim.adversary import Adversary
    from fedsim.defense import Defense

    lines = []
    for group, base in (("adversaries", Adversary), ("defenses", Defense)):
        lines.append(f"[fedsim.{group}]")
        for name, cls in inspect.getmembers(rogues, inspect.isclass):
            if issubclass(cls, base) and cls.__module__ == rogues.__name__:
                lines.append(f"{cls.name} = {rogues.__name__}:{name}")
    folder = tmp_path_factory.mktemp("site")
    info = folder / "rogues-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rogues\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def _inherit(patch: pytest.MonkeyPatch, rogue_package: Path) -> None:
    """Let processes started from now on find the plugins of `support/rogues.py`."""
    before = os.environ.get("PYTHONPATH")
    path = [str(rogue_package), str(HERE), *([before] if before else [])]
    patch.setenv("PYTHONPATH", os.pathsep.join(path))
    patch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def ray_session(rogue_package: Path) -> Iterator[None]:
    """One Ray session for all tests with at most two client and two attack workers.

    Engines keep the session that they find. Its workers find the plugins of `support/rogues.py`.
    """
    import ray

    from fedsim.engine.ray.session import start_session
    from fedsim.scenario.settings import Engine

    with pytest.MonkeyPatch.context() as patch:
        _inherit(patch, rogue_package)
        start_session(Engine(), clients=2, attackers=2)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def rogues_everywhere(rogue_package: Path) -> Iterator[None]:
    """Plugins of `support/rogues.py`, by name, here and in every process started from here."""
    from fedsim import plugin

    with pytest.MonkeyPatch.context() as patch:
        for folder in (str(rogue_package), str(HERE)):
            patch.syspath_prepend(folder)
        _inherit(patch, rogue_package)
        plugin._entry_points.cache_clear()
        yield
    sys.path_importer_cache.clear()
    plugin._entry_points.cache_clear()


@pytest.fixture
def rogues(rogues_everywhere: None) -> None:
    """The same, for one test."""


@pytest.fixture(scope="module")
def digits() -> "Images":
    """The task of the embedded digits, cut for twenty clients."""
    from fedsim.tasks.images import Images

    return Images(seed=7, clients=20)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Chromium without a window, driven by Selenium; skips where it is not installed."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000",
                 "--disable-dev-shm-usage", profile):  # fmt: skip
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=driver)
    opened = webdriver.Chrome(options=options, service=service)
    yield opened
    opened.quit()
