"""What all tests of federations need."""

import pytest


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    """A truth store of the test's own, for clients that reveal their examples."""
    monkeypatch.setenv("FEDSIM_TRUTH", str(tmp_path / "truth"))
