"""What tests of reproductions share."""

from collections import Counter

import pytest

from adversaries import LLG


@pytest.fixture
def attacked(monkeypatch):
    """How often LLG really ran, by size of the batch."""
    count: Counter[int] = Counter()
    plain = LLG.reconstruct

    def counted(self, seen, job):
        count[seen.num_examples] += 1
        return plain(self, seen, job)

    monkeypatch.setattr(LLG, "reconstruct", counted)
    return count
