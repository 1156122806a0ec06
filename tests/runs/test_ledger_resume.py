"""A run that was interrupted goes on with its folder and ends with the same table."""

import resource
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from support.findings import RUN, finding
from support.tiny import faulty, rows, scenario, timeless

from adversaries import LLG
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.runs.attack_log import Ended
from fedsim.runs.ledger import Ledger

pytestmark = pytest.mark.usefixtures("unreported")

# --- resume -----------------------------------------------------------------------------------


def test_a_run_from_before_a_key_was_invented_is_resumed(ledger):
    path = ledger.folder / "scenario.toml"
    text = path.read_text()
    assert "secure_aggregation = false\n" in text
    path.write_text(text.replace("secure_aggregation = false\n", ""))
    Ledger.create(ledger.folder, scenario(), resume=True)
    other = scenario(training={"secure_aggregation": "masked-sum"})
    with pytest.raises(RunFolderError, match="differs in training"):
        Ledger.create(ledger.folder, other, resume=True)


def test_keys_that_are_set_aside_may_be_of_another_release(ledger):
    path = ledger.folder / "scenario.toml"
    text = path.read_text().replace("secure_aggregation = false\n", "")
    path.write_text(text + '[paper]\nid = "test/tiny"\nno_longer_a_key = 1\n')
    Ledger.create(ledger.folder, scenario(), resume=True)


def _little_room():
    """Files of 40 kB at most, for a process that is about to start."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


def test_a_full_disk_costs_no_row_and_room_gives_the_same_table(tmp_path):
    run = scenario(training={"rounds": 8, "clients_per_round": 6}, record={"keep": "nothing"})
    simulate(run, tmp_path / "whole")
    (tmp_path / "run.toml").write_text(run.to_toml(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "fedsim.cli", "run", "run.toml", "--out", "full"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_little_room,
    )
    assert done.returncode == 1, done.stderr
    assert "findings.csv cannot be written: File too large" in done.stderr
    assert "continue with: fedsim run full --resume" in done.stderr
    assert "Traceback" not in done.stderr
    before = rows(tmp_path / "full")
    simulate(run, tmp_path / "full", resume=True)
    assert timeless(tmp_path / "full") == timeless(tmp_path / "whole")
    assert 0 < len(before) < len(timeless(tmp_path / "whole"))


@pytest.mark.parametrize("made", [(), ("findings.csv",), ("findings.csv", "utility.csv")])
def test_a_folder_that_a_kill_left_half_made_is_resumed_as_if_it_were_new(made, tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    simulate(scenario(), whole)
    Ledger.create(half, scenario())
    for path in half.iterdir():
        if path.name not in ("scenario.toml", *made):
            path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(RunFolderError, match=r"holds a run already.*--resume"):
        simulate(scenario(), half)
    simulate(scenario(), half, resume=True)
    assert timeless(half) == timeless(whole)


@pytest.mark.parametrize("content", [b"seed = \n", b"name = '\xff'\n", None])
def test_a_recorded_scenario_that_cannot_be_read_is_one_clear_error(content, ledger):
    path = ledger.folder / "scenario.toml"
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"scenario\.toml cannot be read: .*another --out"):
        Ledger.create(ledger.folder, RUN, resume=True)


def test_attacks_are_known_by_point_victim_and_label_however_they_ended(ledger):
    for row in (
        finding(),
        finding(label="dlg", status="denied"),
        finding(label="bad", status="failed"),
        finding(label="slow", status="timeout"),
        finding(point="training.lr=0.1", victim="other"),
    ):
        named = {key: getattr(row, key) for key in ("point", "victim", "label", "status")}
        ledger.findings([row], Ended(plan="", **named))
    again = Ledger(ledger.folder)
    assert {*again.finished("")} == {("r0001-c0000", n) for n in ("llg", "dlg", "bad", "slow")}
    assert {*again.finished("training.lr=0.1")} == {("other", "llg")}


def test_an_attack_that_did_not_fit_on_the_disk_costs_no_later_one(ledger):
    rows = [finding(), finding(label="dlg")]
    for row in rows:
        named = {key: getattr(row, key) for key in ("point", "victim", "label", "status")}
        ledger.findings([row], Ended(plan="", **named))
        with (ledger.folder / "attacks.jsonl").open("a") as file:
            file.write('{"point": "", "vic')
    assert {*Ledger(ledger.folder).finished("")} == {(row.victim, row.label) for row in rows}


class Interrupt:
    """Presses Ctrl-C at an event of a round."""

    def __init__(self, event: str, times: int) -> None:
        self.event, self.times = event, times

    def __call__(self, event, **fields):
        if event == self.event:
            self.times -= 1
            if not self.times:
                raise KeyboardInterrupt


@pytest.mark.parametrize("event", ["round", "findings", "attacks"])
@pytest.mark.parametrize("times", [2, 3])
def test_an_interrupted_run_ends_with_the_table_of_an_uninterrupted_one(event, times, tmp_path):
    run = scenario(training={"rounds": 4}, adversaries=[{"name": "llg"}, {"name": "idlg"}])
    simulate(run, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(run, tmp_path / "cut", observer=Interrupt(event, times))
    kept = timeless(tmp_path / "cut")
    assert len(kept) < len(timeless(tmp_path / "whole"))
    attacked = Counter()
    plain = LLG.reconstruct
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            LLG, "reconstruct", lambda *given: (attacked.update(["llg"]), plain(*given))[1]
        )
        simulate(run, tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert rows(tmp_path / "cut", "utility.csv") == rows(tmp_path / "whole", "utility.csv")
    done = {row["victim"] for row in kept if row["label"] == "llg"}
    # What is written down is not repeated, but for the last: a kill may have cut it short.
    assert attacked["llg"] - (4 * 4 - len(done)) in (0, 1)


def test_a_run_killed_outright_resumes_to_the_same_table(tmp_path, rogues):
    run = faulty("slow", training={"rounds": 3})
    (tmp_path / "run.toml").write_text(run.to_toml(), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsim.cli", "run", "run.toml", "--out", "cut", "--quiet"],
        cwd=tmp_path,
    )
    try:
        table, deadline = tmp_path / "cut" / "findings.csv", time.monotonic() + 100
        while not (table.exists() and table.read_bytes().count(b"\n") > 3 * 8):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    kept = timeless(tmp_path / "cut")
    simulate(run, tmp_path / "whole")
    assert 0 < len(kept) < len(timeless(tmp_path / "whole"))
    simulate(run, tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    assert rows(tmp_path / "cut", "utility.csv") == rows(tmp_path / "whole", "utility.csv")


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    run = scenario()
    simulate(run, tmp_path)
    before = (tmp_path / "findings.csv").read_bytes()
    simulate(run, tmp_path, resume=True)
    assert (tmp_path / "findings.csv").read_bytes() == before


def test_points_of_a_sweep_keep_their_rows_apart_over_a_resume(tmp_path):
    run = scenario(sweep={"training.lr": [0.1, 0.2]}, training={"rounds": 1})
    simulate(run, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(run, tmp_path / "cut", observer=Interrupt("findings", 6))
    simulate(run, tmp_path / "cut", resume=True)
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    points = Counter(row["point"] for row in timeless(tmp_path / "cut"))
    assert points == {"training.lr=0.1": 32, "training.lr=0.2": 32}
