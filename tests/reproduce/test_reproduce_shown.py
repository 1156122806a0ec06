"""What `fedsim reproduce` shows: pictures, pages, tables."""

import base64
import io
import tomllib
from pathlib import Path

from rich.console import Console
from support.tiny import rows
from support.tiny_figures import table, toml
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.reproduce import choose, outcome
from fedsim.reproduce.console import reproduce
from fedsim.reproduce.picture import picture

# --- what is shown of it ---------------------------------------------------------------------


def test_a_picture_has_our_curves_chance_and_the_published_marks(tmp_path):
    source, out = toml(tmp_path), tmp_path / "out"
    reproduce(source, out)
    (figure,) = choose(source)
    drawn = picture(outcome(figure, out, "smoke"), "asr")
    names = [trace.get("name", "band") for trace in drawn["data"]]
    assert {"llg", "idlg", "random guess", "llg: published ≥ 90 %"} <= {*names}
    assert tomllib.loads(Path(source).read_text())["paper"]["x"] == "training.batch_size"


def test_a_figure_about_images_shows_the_attack_in_the_middle(tmp_path):
    changes = {"measure": '["mse", "recovered"]', "published": "", "paper": 'kind = "table"'}
    source, out = toml(tmp_path, **changes), tmp_path / "out"
    pixels = ['adversaries=[{name="dlg",iterations=1,restarts=0}]',
              "threat.grants=white-box", "task.model=lenet-sigmoid"]  # fmt: skip
    _, page = reproduce(source, out, overrides=pixels)
    run = out / "test/tiny/smoke/tiny"
    found = [row for row in rows(run) if row["metric"] == "mse" and row["point"].endswith("=4")]
    middle = sorted(found, key=lambda row: float(row["value"]))[1]
    uri = base64.b64encode((run / middle["artifact"]).read_bytes()).decode()
    html = page.read_text()
    assert html.count('<img src="data:image/png') == 2
    assert f"base64,{uri}" in html
    assert "<span>dlg, 4: Mean squared error " in html


def test_the_command_line_prints_ours_and_where_the_pages_are(tmp_path):
    arguments = ["reproduce", toml(tmp_path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--set", "paper.repetitions=1"])
    assert done.exit_code == 0, done.output
    assert "Labels recovered" in done.output
    assert "smoke.html" in done.output
    again = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*arguments, "--show"])
    assert "too few repetitions" in " ".join(again.output.split())


def test_off_a_terminal_lines_say_how_far_it_is(tmp_path, monkeypatch):
    source, out = toml(tmp_path, rounds=2), tmp_path / "out"
    lines = {}
    for pause in (3600.0, 0.0):
        monkeypatch.setattr("fedsim.reproduce.console.PAUSE", pause)
        shown = Console(width=200, record=True, file=io.StringIO())
        reproduce(source, out / f"{pause}", overrides=["paper.repetitions=1"], console=shown)
        said = shown.export_text().splitlines()
        lines[pause] = [line for line in said if line.startswith("tiny: ")]
    (last,) = lines[3600.0]
    done, _, of = last.removeprefix("tiny: ").removesuffix(" points").partition(" of ")
    assert done == of
    assert lines[0.0][-1] == last
    assert any("; round 1 of 2; " in line and " attacks" in line for line in lines[0.0])


def test_only_rounds_that_are_attacked_are_places(tmp_path):
    published = '[[paper.published]]\nseries="llg, 4"\nat_least=0.0\n'
    changes = {"x": "round", "rounds": 4, "measure": '["asr", "accuracy"]', "published": published}
    source, out = toml(tmp_path, **changes), tmp_path / "out"
    overrides = ["paper.repetitions=1", "threat.rounds=[1, 4]"]
    text = reproduce(source, out, overrides=overrides)[0].read_text()
    assert "not measured" not in table(text, "measure")[0][-1]
    (figure,) = choose(source)
    found = outcome(figure, out, "smoke", overrides=overrides)
    assert {(c.measure, c.place.where) for c in found.shares[0].cells} == {
        (measure, at) for measure in ("asr", "accuracy") for at in ("1", "4")
    }
