"""Every table one after another: times are read from words, and a second call goes on."""

import importlib
import os
import sys
import types
from pathlib import Path

import pytest

from fedsim.reproduce.tables import tables

real = pytest.mark.skipif(
    not os.environ.get("FEDSIM_DATA"), reason="FEDSIM_DATA names no folder of real data sets"
)


@pytest.fixture
def every_table(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("every_table")


@pytest.mark.parametrize(
    ("words", "minutes"),
    [
        ("half a minute; paper scale 5 minutes (one core)", 0.5),
        ("half an hour (one core)", 30),
        ("45 minutes; paper scale hours", 45),
        ("an hour and a half (one core)", 90),
        ("an hour and a quarter a data set", 75),
        ("two and a half hours (one core)", 150),
        ("a day a data set", 1440),
        ("", 1e9),
    ],
)
def test_times_are_read_from_what_scenarios_say(every_table, words, minutes):
    assert every_table.expected(words) == minutes


def test_all_tables_are_made_and_those_that_take_least_first(every_table):
    ids = every_table.chosen([])
    assert {*ids} == {id for row in tables() for id in row.ids}
    assert every_table.chosen(["lamp"])[-1] == "lamp/table1-large"


@real
def test_a_second_call_leaves_out_what_is_whole(every_table, tmp_path, monkeypatch, capsys):
    command = ["every_table", "--out", str(tmp_path), "--only", "llg/fig3b"]
    for said in ("llg/fig3b: whole, 80 attacks", "1 whole"):
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            every_table.main()
        assert not ended.value.code
        assert said in capsys.readouterr().out
    (line,) = every_table.read(tmp_path / "summary.csv").values()
    assert (line.state, line.status, line.attacks) == ("whole", 0, 80)


@pytest.mark.parametrize(
    ("status", "interrupted", "crashed", "ended", "state"),
    [
        (1, False, False, 40, "in part"),
        (1, False, False, 0, "not measured"),
        (1, True, False, 40, "stopped"),
        (-9, False, False, 40, "failed"),
        (1, False, True, 40, "failed"),
    ],
)
def test_a_figure_that_is_not_whole_says_why(
    every_table, tmp_path, monkeypatch, status, interrupted, crashed, ended, state
):
    said = "llg/fig3b: needs MNIST"
    call = every_table.Ended(status, interrupted, said, crashed)
    monkeypatch.setattr(every_table, "reproduce", lambda *_: call)
    monkeypatch.setattr(every_table, "attacks", lambda _: ended)
    command = ["every_table", "--out", str(tmp_path), "--only", "llg/fig3b"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as left:
        every_table.main()
    assert left.value.code == (state == "failed")
    (line,) = every_table.read(tmp_path / "summary.csv").values()
    assert (line.state, line.attacks) == (state, ended)
    assert line.said == ("" if state == "stopped" else said)


def test_a_summary_that_is_kept_is_gone_on_with(every_table, tmp_path, monkeypatch):
    made = []

    def reproduce(id, *_):
        made.append(id)
        return every_table.Ended(0, False, "")

    monkeypatch.setattr(every_table, "reproduce", reproduce)
    monkeypatch.setattr(every_table, "unfinished", lambda *_: 0)
    kept = tmp_path / "kept.csv"
    for at, only in enumerate((["llg/fig3b"], ["llg/fig3b", "llg/fig3c"])):
        command = ["every_table", "--out", str(tmp_path / str(at)), "--summary", str(kept)]
        monkeypatch.setattr(sys, "argv", [*command, "--only", *only])
        with pytest.raises(SystemExit):
            every_table.main()
    assert made == ["llg/fig3b", "llg/fig3c"]
    assert {*every_table.read(kept)} == {*made}


def test_what_is_said_does_not_tell_where_the_data_are(every_table, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path / "sets"))
    (tmp_path / "logs").mkdir()
    ended = every_table.reproduce("llg/fig4b", tmp_path, 0)
    assert ended.said.startswith("llg-fig4b: needs SVHN, as svhn.npz under --data")
    assert "'svhn' is looked up in --data" in ended.said
    assert str(tmp_path) not in ended.said


def test_what_an_earlier_call_said_is_not_the_reason_of_a_later_one(
    every_table, tmp_path, monkeypatch
):
    monkeypatch.setattr(every_table, "sys", types.SimpleNamespace(executable="/bin/false"))
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "llg-fig3b.log"
    log.write_text("Traceback (most recent call last)\nllg/fig3b: needs MNIST\n", "utf-8")
    assert every_table.reproduce("llg/fig3b", tmp_path, 0) == (1, False, "", False)
