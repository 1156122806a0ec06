"""What a run is expected to record is at least what it records."""

import pytest
from support.tiny import scenario

from fedsim.engine.simulate import simulate


@pytest.mark.parametrize(
    ("victims", "most"),
    [(([0], [1]), 2), (([0], [0]), 1), ((2, [0, 1]), 4), ((3, 1), 3), (("all", [0]), 4)],
)
@pytest.mark.usefixtures("unreported")
def test_clients_that_several_adversaries_name_are_added_up(victims, most, tmp_path):
    said = {}
    run = scenario(
        training={"rounds": 1},
        adversaries=[
            {"name": name, "victims": whom}
            for name, whom in zip(("llg", "idlg"), victims, strict=True)
        ],
    )
    simulate(run, tmp_path / "run", observer=lambda event, **fields: said.update({event: fields}))
    expected, updates = said["recording"]["bytes"], said["recorded"]["updates"]
    assert updates <= most
    # Besides the updates, the global model; the headers of files are not expected.
    assert expected // (most + 1) * (most + 1) == expected
    assert said["recorded"]["bytes"] < 1.05 * expected
