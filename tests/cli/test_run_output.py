"""What `fedsim run` prints where there is no terminal: a log, or a pipe."""

from typer.testing import CliRunner

from fedsim.cli import app

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
    assert all("leaked so far: llg: labels recovered" in line for line in rounds)
    assert "…" not in done.output
    for point in ("0.0", "0.1"):
        for steps in ("1", "2"):
            name = f"defenses.0.sigma={point},training.local_steps={steps}"
            assert any(name in line for line in done.output.splitlines())
