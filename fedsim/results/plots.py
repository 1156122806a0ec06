"""The plots of a run, as the report draws them: shown in a notebook, or written to files."""

from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.report import charts
from fedsim.report.folder import RunFolder, open_folder
from fedsim.report.frontier import frontier
from fedsim.runs.tables import writing

FORMATS = ("png", "svg")


class Plots:
    """The plots of a run, made from its folder alone each time that they are called.

    A plot is a `plotly.graph_objects.Figure`, which a notebook shows when it is the last value of a
    cell.

    Args:
        run_dir: The run folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def leakage(self, point: str | None = None) -> Any:
        """Plot leakage and utility against rounds: all points of a sweep over each other, or one.

        Args:
            point: The name of a point without its seed, such as `defenses.0.sigma=0.1`; the plot
                then has a random guess and both kinds of curves on one axis of rounds.

        Returns:
            The figure.

        Raises:
            RunFolderError: The folder cannot be read, has nothing to plot, or no such point.
        """
        return self._shown(_leakage(open_folder(self._run_dir), point))

    def frontier(self) -> Any:
        """Plot utility against leakage, a mark for each point and a chart for each adversary.

        Returns:
            The figure.

        Raises:
            RunFolderError: The folder cannot be read, or has not both utility and leakage.
        """
        return self._shown(_frontier(open_folder(self._run_dir)))

    def save(self, folder: str | Path) -> list[Path]:
        """Write both plots as PNG and SVG: `leakage.png`, `leakage.svg`, `frontier.png` and so on.

        `fedsim report RUN --figures DIR` does the same. Files of the same names are replaced. A run
        without attacks has no frontier, which is then left out.

        Args:
            folder: Where to write; it is made if it is missing.

        Returns:
            The paths of the files.

        Raises:
            RunFolderError: The run folder cannot be read, or a file cannot be written.
        """
        from fedsim.results.drawing import draw

        run, written = open_folder(self._run_dir), list[Path]()
        plots = {"leakage": _leakage(run), "frontier": _frontier(run)}
        for name, plot in plots.items():
            if not plot["data"]:
                continue
            for format, content in draw(plot, FORMATS).items():
                path = Path(folder) / f"{name}.{format}"
                with writing(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                written.append(path)
        return written

    def _shown(self, plot: dict[str, Any]) -> Any:
        from plotly.graph_objects import Figure

        if not plot["data"]:
            raise RunFolderError(
                f"'{self._run_dir}' has nothing to plot here: a frontier needs utility and attacks "
                "that were not denied, and a plot over rounds needs one of them"
            )
        return Figure(plot).update_layout(template="plotly_white")


def _leakage(run: RunFolder, point: str | None = None) -> dict[str, Any]:
    every = run.series()
    if point is not None:
        every = [one for one in every if one.name == point]
        if not every:
            named = ", ".join(repr(name) for name in run.points() if name)
            known = f"there are {named}" if named else "it has no sweep, so leave `point` out"
            raise RunFolderError(f"'{run.path}' has no point '{point}'; {known}")
    if len(every) == 1:
        return charts.figure(every[0], run.main, run.measures)
    return charts.overlay(every, run.main, run.measures)


def _frontier(run: RunFolder) -> dict[str, Any]:
    return frontier(run.series(), run.main, run.measures)
