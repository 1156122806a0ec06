"""A run folder in Python: its scenario, tables and recorded interceptions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.errors import RunFolderError
from fedsim.runs.reading import read_findings, read_utility
from fedsim.runs.recording import Recording
from fedsim.runs.tables import place
from fedsim.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder, read when its parts are used.

    Attributes:
        folder: The folder.
        scenario: What ran.
    """

    folder: Path
    scenario: Scenario

    @property
    def findings(self) -> "pd.DataFrame":
        """One row for each attack and metric, as in findings.csv."""
        return read_findings(self.folder)[0]

    @property
    def utility(self) -> "pd.DataFrame":
        """One row for each round, metric and point."""
        return read_utility(self.folder)[0]

    @property
    def points(self) -> list[str]:
        """The names of the sweep's points; [""] without a sweep."""
        return [*self.scenario.points()]

    def recording(self, point: str = "") -> Recording:
        """The recorded interceptions of a point, an iterable of `Interception`."""
        return Recording(self.folder / place("tape", point))


def load(run: str | Path, *, data: str | Path | None = None, trust: bool = False) -> Run:
    """Read a run folder.

    Args:
        run: The folder that a run wrote.
        data: Folder of local data sets, the one of the run by default.
        trust: Whether to import code that its scenario names.

    Raises:
        RunFolderError: The folder holds no run.
        ScenarioError: Its scenario cannot be read, or names code and is not trusted.
    """
    path = Path(run) / "scenario.toml"
    if not path.is_file():
        raise RunFolderError(
            f"{run} holds no run: there is no scenario.toml in it. Name the folder that fedsim run "
            "or fedsim train wrote, such as runs/quickstart"
        )
    return Run(Path(run), Scenario.load(path, data=data, trust=trust))
