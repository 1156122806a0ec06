"""The run folder loses nothing: rows are durable, torn lines are mended, resume repeats little."""

import dataclasses
import errno
import json
import os
import random
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock
from support.findings import RUN, finding
from support.tiny import rows, scenario

from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.runs import provenance
from fedsim.runs.attack_log import Ended
from fedsim.runs.ledger import COLUMNS, Ledger
from fedsim.runs.lock import alone_in

pytestmark = pytest.mark.usefixtures("unreported")

# --- rows -------------------------------------------------------------------------------------


def test_a_row_is_on_disk_when_findings_returns(ledger, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(number))
    ledger.findings([finding(), finding(metric="label_f1")])
    assert len(synced) == 1
    assert [row["metric"] for row in Ledger(ledger.folder).rows()] == ["asr", "label_f1"]


@pytest.mark.parametrize(
    "error", ["plain", "a, b", 'says "no"', "two\nlines", "dos\r\nlines", "é\x00\u2028", "=1+1"]
)
def test_any_error_text_is_one_row_that_reads_back(error, ledger):
    ledger.findings([finding(error=error, status="failed", value=None)])
    ledger.findings([finding()])
    found = ledger.rows()
    assert [row["status"] for row in found] == ["failed", "ok"]
    assert "\n" not in found[0]["error"]
    assert found[0]["error"].split()[:1] == error.split()[:1]
    assert (ledger.folder / "findings.csv").read_bytes().count(b"\n") == 3
    ledger.finish()
    assert len(ledger.rows()) == 2


@pytest.mark.parametrize("torn", ["tiny,,3,1,0,r00", 'tiny,"unclosed', "x" * 5000, "tiny,é"])
def test_a_line_torn_by_a_kill_is_left_out_and_its_attack_run_again(torn, ledger):
    llg = Ended(point="", victim="r0001-c0000", label="llg", plan="")
    ledger.findings([finding(), finding(metric="label_f1")], llg)
    path = ledger.folder / "findings.csv"
    whole = path.read_bytes()
    ledger.findings([finding(label="idlg")])
    path.write_bytes(path.read_bytes() + torn.encode()[:-1])
    assert len(ledger.rows()) == 3
    resumed = Ledger.create(ledger.folder, RUN, resume=True)
    assert len(resumed.rows()) == 3
    resumed.rewind("", 0)
    # Nobody knows how many rows of the last attack are missing, so none of them stays.
    assert path.read_bytes() == whole
    assert resumed.finished("") == {("r0001-c0000", "llg"): llg}
    resumed.findings([finding(round=2)])
    assert [row["round"] for row in resumed.rows()] == ["1", "1", "2"]


def _folder(path):
    path.unlink()
    path.mkdir()


def _garbled(path):
    path.write_bytes(b"\xff\xfe{\n")


def _no_entry(path):
    path.write_text("3\n")


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("findings.csv", _folder),
        ("attacks.jsonl", _garbled),
        ("attacks.jsonl", _no_entry),
    ],
)
def test_a_run_with_a_harmed_file_is_not_resumed_and_says_what_to_do(ledger, name, harm):
    harm(ledger.folder / name)
    with pytest.raises(RunFolderError, match=rf"{name} cannot be read.*\. Put back the file"):
        Ledger.create(ledger.folder, RUN, resume=True).ended()


def test_other_columns_are_refused_and_not_overwritten(ledger):
    path = ledger.folder / "findings.csv"
    path.write_text("round,client\n1,2\n")
    with pytest.raises(RunFolderError, match="other columns"):
        Ledger.create(ledger.folder, RUN, resume=True)
    assert path.read_text() == "round,client\n1,2\n"


def test_the_finished_table_does_not_depend_on_who_ended_first(tmp_path):
    found = [
        finding(round=r, client=c, victim=f"r{r}-c{c}", metric=m, label=label)
        for r in (1, 2, 10)
        for c in ("2", "10", "1+3")
        for m in ("asr", "label_f1")
        for label in ("a", "b")
    ]
    tables = []
    for seed in range(3):
        ledger = Ledger.create(tmp_path / str(seed), RUN)
        random.Random(seed).shuffle(found)
        for one in found:
            ledger.findings([one])
        ledger.finish()
        tables.append((ledger.folder / "findings.csv").read_bytes())
    assert tables[0] == tables[1] == tables[2]
    assert [row["round"] for row in ledger.rows()][::12] == ["1", "2", "10"]
    assert [row["client"] for row in ledger.rows()][:12:4] == ["1+3", "2", "10"]


def test_parquet_has_the_same_rows_with_types(ledger):
    ledger.findings(
        [
            finding(client="007", error="NA", value=0.0),
            finding(round=2, value=None, baseline=None, status="denied", error="nan"),
        ]
    )
    ledger.finish()
    frame = pd.read_parquet(ledger.folder / "findings.parquet")
    assert list(frame.columns) == COLUMNS
    types = frame.dtypes.astype(str)
    integers = ["seed", "round", "attempt", "iterations", "batch_size", "local_steps"]
    floats = ["value", "baseline", "baseline_prior", "seconds", "inclusion"]
    assert set(types[integers]) == {"Int64"}
    assert set(types[floats]) == {"Float64"}
    assert all(types[c].startswith("str") for c in COLUMNS if c not in integers + floats)
    assert frame["client"][0] == "007"
    assert list(frame["error"]) == ["NA", "nan"]
    assert frame["value"].isna().tolist() == [False, True]


def test_an_empty_run_finishes(ledger):
    ledger.finish()
    assert ledger.rows() == []
    assert len(pd.read_parquet(ledger.folder / "findings.parquet")) == 0


def test_huge_and_infinite_values_survive(ledger):
    ledger.findings([finding(value=1e300), finding(value=float("inf"), round=2)])
    ledger.finish()
    frame = pd.read_parquet(ledger.folder / "findings.parquet")
    assert frame["value"].tolist() == [1e300, float("inf")]


# --- folders ----------------------------------------------------------------------------------


def test_a_run_is_never_overwritten(ledger):
    with pytest.raises(RunFolderError, match=r"holds a run already.*--resume"):
        Ledger.create(ledger.folder, RUN)


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="is not empty and holds no run"):
        Ledger.create(tmp_path, RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("left", [(), (".lock", ".lock.json"), ("scenario.toml.part",)])
def test_an_empty_folder_may_be_used_and_one_of_a_run_that_was_killed_at_once(left, tmp_path):
    for name in left:
        (tmp_path / name).touch()
    Ledger.create(tmp_path, RUN)
    assert (tmp_path / "scenario.toml").exists()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match=r"run is a file; choose another --out"):
        Ledger.create(tmp_path / "run", RUN)


@pytest.mark.parametrize("out", ["file/run", "/proc/fedsim-run", "x" * 300, "nul\0byte"])
def test_an_output_that_cannot_be_written_is_one_clear_error(out, tmp_path):
    if out.startswith("/proc") and not Path("/proc").is_dir():
        pytest.skip("there is no /proc here")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"[cC]hoose another --out"):
        Ledger.create(tmp_path / out, RUN)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full plays the full disk")
def test_a_disk_that_fills_up_is_one_clear_error(ledger):
    path = ledger.folder / "findings.csv"
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match=r"findings\.csv cannot be written"):
        ledger.findings([finding()])


def test_a_folder_of_another_user_s_is_one_clear_error_with_the_user(tmp_path, monkeypatch):
    def mkdir(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    expected = rf"locked cannot be written: Permission denied.*user {os.getuid()} may write to$"
    with pytest.raises(RunFolderError, match=expected):
        Ledger.create(tmp_path / "locked", RUN)


def test_a_run_that_cannot_be_written_to_is_to_be_copied(ledger, monkeypatch):
    def acquire(lock):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with (
        pytest.raises(RunFolderError, match=r"written: Read-only file system\. Copy the run to a"),
        alone_in(ledger.folder),
    ):
        pass


def test_a_file_in_the_place_of_an_artifacts_folder_is_one_clear_error(ledger):
    (ledger.folder / "artifacts" / "r0001").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        ledger.artifact("artifacts/r0001/llg/picture.png", b"")


def test_of_two_runs_that_start_in_a_new_folder_one_writes(tmp_path):
    with (
        alone_in(tmp_path / "run"),
        pytest.raises(RunFolderError, match=r"is being written by process [0-9]+ on"),
    ):
        simulate(scenario(), tmp_path / "run")
    assert [*(tmp_path / "run").iterdir()] == [tmp_path / "run" / ".lock"]
    simulate(scenario(), tmp_path / "run")


def test_nothing_to_resume_is_said(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run to resume"):
        Ledger.create(tmp_path / "none", RUN, resume=True)


def test_another_scenario_is_not_resumed(ledger):
    before = (ledger.folder / "scenario.toml").read_bytes()
    with pytest.raises(RunFolderError, match="another scenario"):
        Ledger.create(ledger.folder, scenario(seed=4), resume=True)
    assert (ledger.folder / "scenario.toml").read_bytes() == before


def test_a_table_of_an_earlier_version_gets_its_new_columns(tmp_path):
    simulate(scenario(), tmp_path / "run")
    path = tmp_path / "run/findings.csv"
    before = rows(tmp_path / "run")
    lines = path.read_text().splitlines()
    path.write_text("".join(line.rpartition(",")[0].rpartition(",")[0] + "\n" for line in lines))
    assert list(rows(tmp_path / "run")[0]) == COLUMNS[:-2]
    Ledger(tmp_path / "run")
    assert rows(tmp_path / "run") == [{**row, "truth": "", "checked": ""} for row in before]


@pytest.mark.parametrize(
    ("cell", "changed"),
    [
        (",0.25,", ",0.2;5,"),
        (",1,0,", ",1x,0,"),
        *((",77,", f",{odd},") for odd in ("7.5", "inf")),
    ],
)
def test_a_cell_that_is_no_number_any_more_is_one_clear_error(tmp_path, cell, changed):
    ledger = Ledger.create(tmp_path / "run", scenario())
    ledger.findings([finding(value=0.25, iterations=77)])
    path = tmp_path / "run" / "findings.csv"
    text = path.read_text()
    assert cell in text
    path.write_text(text.replace(cell, changed))
    with pytest.raises(RunFolderError, match=r"findings\.csv was changed and cannot be read"):
        ledger.finish()


def test_a_round_of_the_utility_that_is_no_number_any_more_is_one_clear_error(tmp_path):
    ledger = Ledger.create(tmp_path / "run", scenario())
    ledger.utility(1, {"accuracy": 0.5}, "")
    path = tmp_path / "run" / "utility.csv"
    path.write_text(path.read_text().replace("\n1,", "\n,"))
    with pytest.raises(RunFolderError, match=r"utility\.csv was changed .* '' is no round"):
        ledger.last_round("")


def test_a_sum_of_many_clients_can_be_read_again(ledger):
    many = "+".join(map(str, range(30_000)))
    ledger.findings([dataclasses.replace(finding(), client=many)])
    ledger.finish()
    assert [row["client"] for row in rows(ledger.folder)] == [many]


@pytest.mark.parametrize("odd", [5, None, "text", [1]])
def test_entries_of_provenance_that_are_no_tables_are_left_out(tmp_path, odd):
    known = {"seed": 7, "versions": odd, "hashes": odd, "isolation": odd, "unknown": {"a": odd}}
    (tmp_path / provenance.FILE).write_text(json.dumps(known), encoding="utf-8")
    assert provenance.read(tmp_path) == {"seed": 7}
    assert provenance.changed_since(tmp_path) == []
    provenance.add_isolation(tmp_path, {"llg": "a process of its own"})
    assert provenance.read(tmp_path)["isolation"] == {"llg": "a process of its own"}
