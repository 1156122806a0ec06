"""The index of a recording: what is read of a line that was changed."""

import pytest

from fedsim.errors import RunFolderError
from fedsim.runs.index import Index


def test_an_update_of_no_client_is_refused_with_its_line(tmp_path):
    path = tmp_path / "index.jsonl"
    path.write_text('{"round":1}\n{"round":2,"updates":[{"clients":[]}]}\n')
    with pytest.raises(RunFolderError, match=r"index\.jsonl cannot be read: line 2"):
        Index(path)
