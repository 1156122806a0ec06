"""What `fedsim run` prints where there is no terminal: a log, or a pipe."""

import io
import shlex
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedsim.attacking.progress import AttackProgress, RunningAttacks
from fedsim.cli import app, main
from fedsim.cli.display import Display
from fedsim.errors import RunFolderError

SWEEP = """
seed = 7
[task]
name = "images"
[training]
rounds = 2
clients = 4
batch_size = 2
[[defenses]]
name = "gaussian-noise"
[[adversaries]]
name = "llg"
[[adversaries]]
name = "bias-signs"
[engine]
workers = 1
[sweep]
"defenses.0.sigma" = [0.0, 0.1]
"training.local_steps" = [1, 2]
"""


def test_off_a_terminal_lines_say_what_they_are_and_tables_are_whole(tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    command = ["run", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    rounds = [line for line in done.output.splitlines() if line.startswith("round ")]
    assert len(rounds) == 4 * 2
    assert all("leaked in this round: llg: labels recovered" in line for line in rounds)
    assert "…" not in done.output
    for point in ("0.0", "0.1"):
        for steps in ("1", "2"):
            name = f"defenses.0.sigma={point},training.local_steps={steps}"
            assert any(name in line for line in done.output.splitlines())


def test_paths_are_printed_as_they_are_and_commands_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_in_a_file.py").write_text(
        "from torch import nn\n\n\ndef make(classes, shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    (tmp_path / "own.toml").write_text(
        'seed = 7\n[task]\nname = "images"\nmodel = "mine_in_a_file:make"\n'
        "[training]\nrounds = 1\nclients = 2\nbatch_size = 2\n[engine]\nworkers = 1\n"
    )
    done = CliRunner().invoke(app, ["train", "own.toml", "--out", "my runs [new]"])
    assert done.exit_code == 0, done.output
    report, command = done.output.splitlines()[-2:]
    assert report == "report: my runs [new]/report.html"
    words = shlex.split(command.removeprefix("attack it with: "))
    assert words == ["fedsim", "attack", "my runs [new]", "--trust", "--adversary", "NAME"]
    done = CliRunner().invoke(app, [*words[1:-1], "llg"])
    assert done.exit_code == 0, done.output


def test_off_a_terminal_many_short_rounds_are_about_twenty_lines():
    console = Console(width=80, record=True)
    with Display(console) as display:
        display("point", point="", rounds=200)
        for number in range(201):
            display("round", round=number, of=200, accuracy=number / 200)
    lines = console.export_text().splitlines()
    assert [line.split()[1] for line in lines] == [f"{n}/200" for n in (1, *range(10, 201, 10))]


def test_off_a_terminal_long_rounds_are_a_line_each(monkeypatch):
    monkeypatch.setattr("fedsim.cli.display.PAUSE", 0.0)
    console = Console(width=80, record=True)
    with Display(console) as display:
        for number in range(1, 61):
            display("round", round=number, of=60)
    assert len(console.export_text().splitlines()) == 60


def finding(at, value):
    """The only row of an attack of a round."""
    return SimpleNamespace(
        round=at, label="dlg", metric="mse", value=value, baseline=0.5, status="ok", seconds=1.0
    )


def test_off_a_terminal_a_line_says_what_its_own_round_leaked():
    console = Console(width=200, record=True)
    with Display(console) as display:
        for at, value in ((1, 0.4), (2, 0.2)):
            display("attacks", round=at, queued=1, pending=1)
            display("findings", findings=[finding(at, value)], pending=0)
            display("round", round=at, of=3)
        display("attacks", round=3, queued=2, pending=2)
        display("findings", findings=[finding(3, 0.1)], pending=1)
        display("round", round=3, of=3)
        display("findings", findings=[finding(3, 0.3)], pending=0)
    leaked = "leaked in this round: dlg: mean squared error"
    assert [" ".join(line.split()) for line in console.export_text().splitlines()] == [
        f"round 1/3 {leaked} 0.4 (chance 0.5)",
        f"round 2/3 {leaked} 0.2 (chance 0.5)",
        "round 3/3 1 attack in flight",
        f"round 3/3 {leaked} 0.2 (chance 0.5)",
    ]


def test_off_a_terminal_no_round_leaks_to_attacks_that_failed():
    console = Console(width=200, record=True)
    broken = finding(1, None)
    broken.status, broken.error, broken.victim = "failed", "oh", "r0001-c0000"
    with Display(console) as display:
        display("attacks", round=1, queued=1, pending=1)
        display("findings", findings=[broken], pending=0)
        display("round", round=1, of=1)
    assert "leaked" not in console.export_text()


def test_an_error_as_long_as_a_page_is_cut():
    console = Console(width=9000, record=True)
    broken = finding(1, None)
    broken.status, broken.error, broken.victim = "failed", "o" * 2000, "r0001-c0000"
    with Display(console) as display:
        display("attacks", round=1, queued=1, pending=1)
        display("findings", findings=[broken], pending=0)
    said = next(line for line in console.export_text().splitlines() if "failed" in line).strip()
    assert said == f"r0001-c0000 dlg: failed: {'o' * 500} ... (more in findings.csv)"


def test_off_a_terminal_attacked_rounds_have_lines_of_their_own():
    console = Console(width=200, record=True)
    with Display(console) as display:
        for at in range(1, 201):
            if at in (7, 128):
                display("attacks", round=at, queued=1, pending=1)
                display("findings", findings=[finding(at, 0.1)], pending=0)
            display("round", round=at, of=200)
    lines = console.export_text().splitlines()
    assert [line.split()[1] for line in lines if "leaked" in line] == ["7/200", "128/200"]
    assert len(lines) == 23


def test_off_a_terminal_a_line_says_how_far_long_attacks_are(monkeypatch):
    console = Console(width=200, record=True)
    now = AttackProgress("dlg", 1, 120, 0.5, of=300)
    running = RunningAttacks("dlg", 1, ("client 3",), since=0.0, progress=now)
    with Display(console) as display:
        display("attacks", round=1, queued=2, pending=2)
        display("running", running=(running,), workers=1)
        assert not console.export_text(clear=False)
        monkeypatch.setattr("fedsim.cli.display.SILENCE", 0.0)
        display("running", running=(running,), workers=1)
    said = "0 of 2 attacks; 2 in flight, 1 of them queued; dlg: iteration 120 of 300, at 0.5\n"
    assert console.export_text() == said


def test_sums_of_a_round_are_kept_only_until_its_line_is_printed():
    display = Display(Console(width=200, record=True), quiet=True)
    for at in range(1, 101):
        display("attacks", round=at, queued=2, pending=2)
        display("findings", findings=[finding(at, 0.1)], pending=1)
        display("round", round=at, of=100_000)
    for at in range(1, 101):
        display("findings", findings=[finding(at, 0.1)], pending=0)
    assert len(display._own) <= len(display._late) < 100


def test_characters_that_a_log_cannot_hold_end_no_command(monkeypatch):
    log = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(log, encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["fedsim", "reproduce"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    sys.stdout.flush()
    assert b"published ? 0.03" in log.getvalue()


def test_an_error_of_the_operating_system_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedsim", "report", str(tmp_path / ("long" * 100))])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "File name too long" in said
    monkeypatch.setenv("FEDSIM_DEBUG", "1")
    with pytest.raises(OSError, match="File name too long"):
        main()


def test_a_run_folder_that_cannot_be_made_is_a_mistake_with_a_way_out(tmp_path):
    command = ["run", "quickstart", "--out", str(tmp_path / ("long" * 100))]
    done = CliRunner().invoke(app, command)
    with pytest.raises(RunFolderError, match=r"File name too long\. Choose another --out"):
        raise done.exception
