"""Loading a run folder: its scenario, tables, reconstructions and recorded interceptions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.errors import RunFolderError, did_you_mean
from fedsim.records import Interception, Reconstruction
from fedsim.results.plots import Plots
from fedsim.runs.reading import TENSORS, inside, read_findings, read_utility, refuse_pipes
from fedsim.runs.reconstructions import from_file
from fedsim.runs.recording import Recording
from fedsim.runs.tables import artifacts_place, place
from fedsim.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

ATTACK = ["point", "seed", "round", "client", "victim", "label"]
"""The columns of the findings that identify an attack."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder, read when its parts are used.

    Attributes:
        folder: The folder.
        scenario: What ran.
        trust: Whether code that the folder names is imported.
    """

    folder: Path
    scenario: Scenario
    trust: bool = False

    @property
    def findings(self) -> "pd.DataFrame":
        """One row for each attack and metric, as in findings.csv.

        `seed`, `batch_size` and `local_steps` are Int64, `round`, `value`, `counted`, `baseline`,
        `baseline_prior`, `attempt`, `seconds`, `iterations` and `inclusion` float64; what is empty
        in the file is NA or NaN there. The other columns are text.
        """
        import pandas as pd

        rows = read_findings(self.folder)[0]
        for column in ("seed", "batch_size", "local_steps"):
            rows[column] = pd.array([_whole(text) for text in rows[column]], dtype="Int64")
        rows["inclusion"] = pd.to_numeric(rows["inclusion"], errors="coerce").astype(float)
        return rows

    @property
    def utility(self) -> "pd.DataFrame":
        """One row for each round, metric and point."""
        return read_utility(self.folder)[0]

    @property
    def diagnosis(self) -> "pd.DataFrame":
        """Why attacks leak or not, one row for each recorded update and adversary.

        It is diagnosis.csv, which is written first if it lacks updates (at the end of a large run,
        a part is measured) or the run has changed since.

        Raises:
            RunFolderError: Nothing was recorded or attacked, or the run is of another Flower
                project whose model is not known; `fedsim.diagnose` takes it.
        """
        from fedsim.diagnosis.diagnose import diagnosed, is_current, read_diagnosis

        if is_current(self.folder):
            return read_diagnosis(self.folder)
        return diagnosed(self.folder, self.scenario, trust=self.trust)

    @property
    def artifacts(self) -> "pd.DataFrame":
        """The files of reconstructions, one row for each attack that has any.

        Columns are those that identify an attack (point, seed, round, client, victim, label), then
        `artifact`, what shows the reconstruction, as in findings.csv, and `tensors`, the file with
        all claimed examples, for `reconstruction`. Paths are relative to the folder; a column is
        empty where there is no such file.
        """
        rows = self.findings.drop_duplicates(ATTACK, keep="last")
        shown = [str(one).replace("\\", "/").rstrip("/") for one in rows["artifact"]]
        table = rows[ATTACK].assign(artifact=shown)
        table = table.assign(tensors=[self._tensors(row) for row in table.to_dict("records")])
        used = (table["artifact"] != "") | (table["tensors"] != "")
        return table[used].reset_index(drop=True)

    def _tensors(self, row: dict[Any, Any]) -> str:
        """The path of an attack's tensors, beside its artifact; "" if there are none."""
        folder = str(row["artifact"])
        if not folder:
            folder = f"{artifacts_place(row['point'])}/{row['victim']}/{row['label']}"
        elif not inside(self.folder, folder, folder=True):
            folder = folder.rpartition("/")[0]
        path = f"{folder}/{TENSORS}"
        return path if inside(self.folder, path) else ""

    def reconstruction(self, tensors: str) -> Reconstruction:
        """Read what an attack claimed: all examples, as tensors.

        Args:
            tensors: A path of the column `tensors` of `artifacts`.

        Raises:
            RunFolderError: There is no such file in the run folder, or it cannot be read.
        """
        path = inside(self.folder, tensors)
        if path is None:
            raise RunFolderError(
                f"{self.folder} holds no file '{tensors}'; the column `tensors` of `artifacts` "
                "has the paths of all reconstructions"
            )
        return from_file(path)

    @property
    def interceptions(self) -> list[Interception]:
        """The recorded interceptions of all points, by point, round and client.

        Tensors are read from disk when they are used.
        """
        return [one for point in self.points for one in self.recording(point)]

    @property
    def plot(self) -> Plots:
        """The plots: `plot.leakage()` and `plot.frontier()` for a notebook, `plot.save(folder)`."""
        return Plots(self.folder)

    @property
    def points(self) -> list[str]:
        """The names of the sweep's points; [""] without a sweep."""
        return [*self.scenario.points()]

    def recording(self, point: str = "") -> Recording:
        """The recorded interceptions of a point, an iterable of `Interception`.

        Raises:
            RunFolderError: The run has no such point; of a sweep, each has a name.
        """
        if point not in self.points:
            known = "It has no sweep."
            if self.points != [""]:
                known = did_you_mean(point, self.points)
            raise RunFolderError(f"'{self.folder}' has no point '{point}'. {known}")
        return Recording(self.folder / place("tape", point))


def _whole(text: str) -> int | None:
    """A number from 0 below 2^63; None for any other text."""
    number = int(text) if text.isdecimal() and len(text) < 20 else 2**63
    return number if number < 2**63 else None


def load(run: str | Path, *, data: str | Path | None = None, trust: bool = False) -> Run:
    """Read a run folder.

    Args:
        run: The folder that a run wrote.
        data: Folder of local data sets, the one of the run by default.
        trust: Whether to import code that its scenario names.

    Raises:
        RunFolderError: The folder holds no run, or a pipe.
        ScenarioError: Its scenario cannot be read, or names code and is not trusted.
    """
    path = Path(run) / "scenario.toml"
    if not path.is_file():
        raise RunFolderError(
            f"{run} holds no run: there is no scenario.toml in it. Name the folder that fedsim run "
            "or fedsim train wrote, such as runs/quickstart"
        )
    refuse_pipes(Path(run))
    return Run(Path(run), Scenario.load(path, data=data, trust=trust), trust)
