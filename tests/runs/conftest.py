"""A run folder that has just begun."""

import pytest
from support.findings import RUN

from fedsim.runs.ledger import Ledger


@pytest.fixture
def ledger(tmp_path):
    return Ledger.create(tmp_path / "run", RUN)
