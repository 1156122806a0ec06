"""Nothing in a run folder can make its report misbehave."""

import functools
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.run_folders import HOSTILE, SCENARIO, Page, page_of, picture, row, written

from fedsim.cli.summary import print_summary
from fedsim.report import write_report
from fedsim.runs.reading import inside


@pytest.fixture
def run(tmp_path):
    """Writes a run folder of the given findings."""
    return functools.partial(written, tmp_path)


def test_hostile_text_stays_text(run):
    long = "x" * 300_000
    folder = run(
        row(label=HOSTILE, scenario=HOSTILE, point=HOSTILE, client=HOSTILE, metric=HOSTILE),
        row(label="=cmd()|' /C calc'!A0", status="failed", error=HOSTILE + long),
        row(label="<a href='javascript:window.hacked=1'>x</a>", metric=HOSTILE, client="\0\n|"),
        scenario=f"# {HOSTILE}\n{SCENARIO}",
        name=HOSTILE,
    )
    page = page_of(folder)
    elements = Page(page).elements
    assert [tag for tag, _ in elements].count("script") == 4  # two of them hold data
    assert not [attrs for _, attrs in elements if any(name.startswith("on") for name in attrs)]
    assert not [attrs for _, attrs in elements if attrs.get("href", "data:").startswith("java")]
    assert "window.hacked=1</script>" not in page.replace("&lt;", "<").split("<body>")[0]
    assert long not in page
    (message,) = {attrs["title"] for _, attrs in elements if "title" in attrs}
    assert 240 < len(message) <= 2000
    markdown = write_report(folder, "markdown").read_text(encoding="utf-8")
    outside_code = re.sub(r"(?s)```.*?```", "", markdown)
    assert "<" not in outside_code
    assert len(markdown) < 50_000


def test_units_of_metrics_reach_no_terminal_as_control_codes(run):
    folder = run(*(row(round=n, metric="psnr", value=3.0) for n in range(1, 6)))
    unit = " dB\x1b[2J\x1b]0;hacked\x07"
    (folder / "metrics.json").write_text(json.dumps({"psnr": {"title": "PSNR", "unit": unit}}))
    out = io.StringIO()
    print_summary(Console(file=out, width=200, force_terminal=True), folder)
    shown = re.sub(r"\x1b\[\d*m", "", out.getvalue())  # what the console itself writes
    assert " dB" in shown
    assert shown.replace("\n", "").isprintable()


def test_markdown_code_blocks_cannot_be_closed_from_inside(run):
    folder = run(row(), scenario="# ````\n# <b>\n" + SCENARIO)
    assert "\n`````\n# ````" in write_report(folder, "markdown").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "artifacts/../../secret.png", "{outside}/secret.png", "link.png",
     "linked/secret.png", "C:\\secret.png", "..\\secret.png", "page.html", "image.svg", "huge.png",
     "gone.png", "a\0b.png", "file:///etc/passwd", "x" * 5000 + ".png", "."],
)  # fmt: skip
def test_artifacts_outside_the_run_folder_are_not_embedded(run, tmp_path, path):
    folder = run()
    picture(tmp_path, "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "linked").symlink_to(tmp_path)
    for name in ("page.html", "image.svg"):
        (folder / name).write_text("<script>window.hacked=1</script>")
    (folder / "huge.png").write_bytes(b"\x89PNG" + bytes(2_000_001))
    run(row(artifact=path.format(outside=tmp_path)))
    page = page_of(folder)
    assert "data:image" not in page.split("<body>")[1].split('id="figures"')[0]
    assert "window.hacked" not in page


def test_the_files_of_a_run_are_not_followed_out_of_it(run, tmp_path):
    folder = run(row())
    (tmp_path / "secret").write_text("hush = 1")
    (folder / "scenario.toml").unlink()
    (folder / "scenario.toml").symlink_to(tmp_path / "secret")
    assert inside(folder, "scenario.toml") is None
    assert "hush" not in page_of(folder)
    target = tmp_path / "precious"
    target.write_text("precious")
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(target)
    write_report(folder)
    assert target.read_text() == "precious"


def test_scripts_of_others_do_not_run_even_unescaped(run, browser):
    from selenium.webdriver.support.wait import WebDriverWait

    path = write_report(run(row()))
    page = path.read_text(encoding="utf-8").replace("<footer>", HOSTILE + "<footer>")
    path.write_text(page, encoding="utf-8")
    browser.get(Path(path).as_uri())
    WebDriverWait(browser, 30).until(
        lambda page: page.execute_script("return typeof Plotly") == "object"
    )
    assert browser.execute_script("return typeof window.hacked") == "undefined"
