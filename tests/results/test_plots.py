"""Plots in a notebook and as files are those of the report, of the same numbers."""

import io
import re

import pytest
from PIL import Image
from support.repeated import LEAKED, repeated
from support.run_folders import HOSTILE, row, written
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.errors import RunFolderError
from fedsim.report import charts, summary
from fedsim.report.content import content
from fedsim.report.folder import open_folder
from fedsim.results.plots import Plots


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return repeated(tmp_path_factory.mktemp("plots") / "run")


def test_leakage_is_the_plot_of_the_page(folder):
    page = content(open_folder(folder))["figures"]
    plots = Plots(folder)
    for found, theirs in (
        (plots.leakage(), page[3]),
        (plots.leakage("defenses.0.sigma=0.1"), page[2]),
    ):
        assert [one.name for one in found.data] == [one["name"] for one in theirs["data"]]
        assert [list(one.y) for one in found.data] == [one["y"] for one in theirs["data"]]
        assert "plotly" in found.to_html(include_plotlyjs=False), "what a notebook shows"


def test_the_frontier_has_each_points_utility_against_its_leakage(folder):
    found = Plots(folder).frontier()
    marks = {
        (one.xaxis, one.name): (one.x[0], one.y[0], one.error_x.array)
        for one in found.data
        if one.mode == "markers"
    }
    assert len(marks) == 6
    for sigma, leaked in LEAKED.items():
        x, y, bar = marks["x", f"defenses.0.sigma={sigma}"]
        assert x == pytest.approx(leaked)
        assert y == pytest.approx(0.6 + 0.08)
        assert len(bar) == 1
    means = {(one["point"], one["label"]): one["mean"] for one in summary(folder)}
    for (axis, point), (x, *_) in marks.items():
        assert x == means[point, "llg" if axis == "x" else "dlg"]
    shown = [one.name for one in found.data if one.showlegend is not False]
    assert len(shown) == len(set(shown)) == 4
    assert [found.layout.xaxis.title.text[:4], found.layout.xaxis2.title.text[:4]] == [
        "llg:",
        "dlg:",
    ]


def test_what_cannot_be_plotted_is_said(tmp_path, folder):
    with pytest.raises(RunFolderError, match=r"no point 'nowhere'; there are 'defenses\.0\.sigma="):
        Plots(folder).leakage("nowhere")
    trained = written(tmp_path)
    assert Plots(trained).leakage().data
    with pytest.raises(RunFolderError, match="nothing to plot"):
        Plots(trained).frontier()
    assert [path.name for path in Plots(trained).save(tmp_path)] == ["leakage.png", "leakage.svg"]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of pandas
def test_guesses_that_cannot_be_added_have_no_line(tmp_path):
    """Errors of random guesses of a model that diverged."""

    def lines(*guesses):
        rows = [row(n, metric="mse", value=0.5, baseline=one) for n, one in enumerate(guesses, 1)]
        return [
            one for one in Plots(written(tmp_path, *rows)).frontier().data if one.mode == "lines"
        ]

    assert [*lines(0.25, 0.75)[0].x] == [0.5, 0.5]
    assert lines(1e308, 1e308) == []


def test_the_command_writes_png_and_svg(folder, tmp_path):
    asked = ["report", str(folder), "--figures", str(tmp_path / "new" / "figures")]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    names = ["leakage.png", "leakage.svg", "frontier.png", "frontier.svg"]
    assert done.output.split() == [
        str(folder / "report.html"),
        *(f"{tmp_path}/new/figures/{n}" for n in names),
    ]
    for name in names[::2]:
        with Image.open(tmp_path / "new" / "figures" / name) as picture:
            assert picture.width == 1800
            assert len(picture.convert("RGB").getcolors(2**24) or ()) > 100
    for name in names[1::2]:
        text = (tmp_path / "new" / "figures" / name).read_text()
        assert "defenses.0.sigma=0.01" in text
        assert "random guess" in text
    again = {path.name: path.read_bytes() for path in (tmp_path / "new" / "figures").iterdir()}
    Plots(folder).save(tmp_path / "new" / "figures")
    assert again == {p.name: p.read_bytes() for p in (tmp_path / "new" / "figures").iterdir()}


def test_figures_of_several_runs_are_refused(folder, tmp_path):
    asked = ["report", str(folder), str(folder), "--figures", str(tmp_path / "figures")]
    refused = CliRunner().invoke(app, asked)
    assert isinstance(refused.exception, RunFolderError)
    assert "give one run folder" in str(refused.exception)
    assert not (tmp_path / "figures").exists()


def test_figures_in_place_of_a_file_are_refused_before_the_page_is_written(folder, tmp_path):
    (tmp_path / "figures").write_text("")
    (folder / "report.html").unlink(missing_ok=True)
    refused = CliRunner().invoke(
        app, ["report", str(folder), "--figures", str(tmp_path / "figures")]
    )
    assert refused.exit_code == 2
    assert "is a file" in " ".join(refused.output.replace("│", "").split())
    assert not (folder / "report.html").exists()


def test_names_of_a_run_are_no_markup_and_no_formula(tmp_path):
    names = (HOSTILE, r"$\frac{", "<b>bold</b>")
    rows = [
        row(at, 1, "dlg", "mse", 10.0 ** (-3 * at), 0.1, point=name)
        for name in names
        for at in (1, 2, 3)
    ]
    folder = written(tmp_path, *rows, points=names)
    plots = Plots(folder)
    for path in plots.save(tmp_path / "figures"):
        assert path.stat().st_size > 5000
    text = (tmp_path / "figures" / "frontier.svg").read_text()
    assert "<script>" not in text
    assert re.search(r"&lt;b&gt;bold&lt;/b&gt;", text)
    assert r"$\frac{" in text


def test_every_kind_of_curve_of_the_page_can_be_drawn(folder):
    from fedsim.results.drawing import DASHES, SYMBOLS, draw

    assert set(SYMBOLS) >= set(charts.SYMBOLS)
    assert charts.WORST in DASHES
    for figure in content(open_folder(folder))["figures"]:
        found = draw(figure, ["png"])
        with Image.open(io.BytesIO(found["png"])) as picture:
            assert picture.height > 500
