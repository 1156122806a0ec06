"""A recorded run whose scenario.toml was changed: its true examples would be others."""

import pytest
from support.tiny import rows, scenario

from adversaries import IDLG
from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError

pytestmark = pytest.mark.usefixtures("unreported")

RUN = scenario(training={"rounds": 1}, adversaries=[])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    simulate(RUN, folder)
    return folder


@pytest.mark.parametrize(
    ("before", "now"),
    [("seed = 3\n", "seed = 4\n"), ("batch_size = 4\n", "batch_size = 2\n"), ("", "")],
    ids=["seed", "batch_size", "emptied"],
)
def test_attacks_are_not_scored_against_the_examples_of_another_training(recorded, before, now):
    path = recorded / "scenario.toml"
    written = path.read_text(encoding="utf-8")
    changed = written.replace(before, now, 1) if before else ""
    assert changed != written
    try:
        path.write_text(changed, encoding="utf-8")
        with pytest.raises(RunFolderError, match="was changed since this run trained by it"):
            attack(recorded, [IDLG()])
        with pytest.raises(RunFolderError, match="was changed since this run trained by it"):
            simulate(RUN, recorded, resume=True)
    finally:
        path.write_text(written, encoding="utf-8")
    assert rows(recorded, empty=True) == []


def test_what_is_attacked_and_how_may_be_changed_in_it(recorded):
    path = recorded / "scenario.toml"
    written = path.read_text(encoding="utf-8")
    try:
        path.write_text(written.replace("victims = ", "victims = 1 #", 1), encoding="utf-8")
        assert path.read_text(encoding="utf-8") != written
        attack(recorded, [IDLG()])
    finally:
        path.write_text(written, encoding="utf-8")
    assert len({row["victim"] for row in rows(recorded)}) == 1
