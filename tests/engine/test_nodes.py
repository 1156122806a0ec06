"""Packages with plugins are compared on all nodes, as fedsim itself is."""

import sys

import pytest

from fedsim.engine.ray import check_nodes
from fedsim.errors import EngineError

pytestmark = [
    # Its workers have `rogues` 1.0.
    pytest.mark.usefixtures("ray_session", "rogues"),
    pytest.mark.skipif(sys.platform == "win32", reason="Ray's workers are tested on POSIX"),
]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes a package with a plugin look installed here, and on no node."""

    def install(name: str, version: str, group: str = "fedsim.adversaries") -> None:
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\nother = other:Other\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_nodes_with_the_same_plugins_are_accepted(install):
    install("another", "1.0", group="pytest11")
    check_nodes()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rogues", r"has rogues 1\.0, and this process has 2\.0\. Start every node"),
        ("extras", r"has no extras, and this process has 2\.0\. Start every node"),
    ],
)
def test_a_node_with_other_plugins_is_refused(name, said, install):
    install(name, "2.0")
    with pytest.raises(EngineError, match=rf"the Ray node 127\.0\.0\.1 {said}"):
        check_nodes()
