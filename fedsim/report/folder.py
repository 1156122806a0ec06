"""A run folder as a report reads it: tables, scenario, how metrics are read, and notes."""

import json
import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.errors import RunFolderError
from fedsim.inert import shown, visible
from fedsim.report.replication import Series, in_order
from fedsim.runs.reading import (
    Measures,
    inside,
    probe_of,
    read_findings,
    read_measures,
    read_rows,
    read_utility,
    split_point,
    unit_of,
)

if TYPE_CHECKING:
    import pandas as pd

SHOWN = frozenset({"checked", "client", "error", "label", "metric", "point", "scenario", "seed"})
"""Columns with texts of clients and plugins that pages show. Others are keys or paths."""
KNOWN = ("scenario.toml", "findings.csv", "utility.csv", "provenance.json")


@dataclass(frozen=True, slots=True, eq=False)
class RunFolder:
    """What a report uses of a run folder.

    Attributes:
        path: The folder.
        rows: The findings. The column `point` is without the seed, which `seed` holds; `probe` is
            the probe that was attacked, "" for a client's own update; `unit` is the client, the
            sum of clients or the probe; `label` has the batch size in it if an adversary attacked
            probes of several, and `named` never has.
        utility: The utility, with the same columns `point` and `seed`.
        measures: How metrics are read.
        scenario: The tables of scenario.toml; empty if it cannot be read.
        scenario_text: The text of scenario.toml.
        provenance: The content of provenance.json; empty if it cannot be read.
        provenance_text: The text of provenance.json.
        notes: What had to be left out.
    """

    path: Path
    rows: "pd.DataFrame"
    utility: "pd.DataFrame"
    measures: Measures
    scenario: dict[str, Any]
    scenario_text: str
    provenance: dict[str, Any]
    provenance_text: str
    notes: list[str]

    @property
    def name(self) -> str:
        """The name of the scenario, or of the folder."""
        first = next(iter(self.rows["scenario"]), "")
        return shown(str(self.provenance.get("scenario") or first or self.path.resolve().name))

    @property
    def main(self) -> dict[str, str]:
        """The main metric of each adversary, by label."""
        return self.measures.main(zip(self.rows["label"], self.rows["metric"], strict=True))

    def points(self) -> list[str]:
        """The points of the sweep, without seeds: baselines first, then as they were run."""
        return in_order([*self.utility["point"], *self.rows["point"]])

    def series(self) -> list[Series]:
        """The results of each point."""
        return [
            Series(
                point,
                self.rows[self.rows["point"] == point],
                self.utility[self.utility["point"] == point],
            )
            for point in self.points()
        ]


def open_folder(run_dir: Path) -> RunFolder:
    """Read a run folder that has results.

    Raises:
        RunFolderError: It is no run folder, its tables cannot be read, or they are empty.
    """
    folder = read_folder(run_dir)
    if folder.rows.empty and folder.utility.empty:
        raise RunFolderError(
            f"'{run_dir}' holds no findings and no utility: the run ended before its first round. "
            "Finish it with `fedsim run --resume`."
        )
    return folder


def read_folder(run_dir: Path) -> RunFolder:
    """Read a run folder, with or without results.

    Raises:
        RunFolderError: It is no run folder, or its tables cannot be read.
    """
    if not run_dir.is_dir():
        raise RunFolderError(f"there is no run folder '{run_dir}'")
    if not any(inside(run_dir, name) for name in KNOWN):
        raise RunFolderError(
            f"'{run_dir}' is no run folder: none of {', '.join(KNOWN)} is there. "
            "Give the folder that `fedsim run` wrote."
        )
    rows, notes = read_findings(run_dir)
    utility, more = read_utility(run_dir)
    utility = utility[utility["round"].abs() < math.inf].sort_values("round", kind="stable")
    measures, unread = read_measures(run_dir)
    notes += [*more, *unread]
    scenario_text = _text(run_dir, "scenario.toml")
    try:
        scenario = tomllib.loads(scenario_text)
    except tomllib.TOMLDecodeError:
        scenario = {}
        notes.append("scenario.toml cannot be read; it is shown as it is.")
    provenance_text = _text(run_dir, "provenance.json")
    try:
        provenance = json.loads(provenance_text)
    except (ValueError, RecursionError):
        provenance = {}
    provenance = provenance if isinstance(provenance, dict) else {}
    if "unknown" not in provenance:  # that of another Flower project, which fedsim did not train
        notes += _unfinished(run_dir, scenario.get("training"), utility)
    victims = rows["victim"].unique()
    for column, of in (("probe", probe_of), ("unit", unit_of)):
        rows[column] = rows["victim"].map({victim: of(victim) for victim in victims})
    rows = rows.assign(named=rows["label"], label=_labels(rows))
    alone = next(iter(rows["seed"]), str(scenario.get("seed", ""))[:40])
    split = {
        point: split_point(point) for point in {*rows["point"].unique(), *utility["point"].unique()}
    }
    utility = utility.assign(
        seed=[split[point][0] or alone for point in utility["point"]],
        point=[split[point][1] for point in utility["point"]],
    )
    return RunFolder(
        run_dir,
        _shown(rows.assign(point=[split[point][1] for point in rows["point"]])),
        _shown(utility),
        Measures(
            {
                shown(k): replace(v, title=shown(v.title), unit=visible(v.unit))
                for k, v in measures.items()
            }
        ),
        scenario,
        scenario_text,
        provenance,
        provenance_text,
        notes,
    )


def _unfinished(run_dir: Path, training: object, utility: "pd.DataFrame") -> list[str]:
    """A note on the points that a killed or failed run left before their last round."""
    rounds = training.get("rounds") if isinstance(training, dict) else None
    if utility.empty or not isinstance(rounds, int):
        return []
    try:
        ended, _ = read_rows(run_dir, "points.csv", {"point"})
    except RunFolderError:
        return []
    last = utility.groupby("point")["round"].max()
    last = last[~last.index.isin(set(ended["point"]) if len(ended) else set()) & (last < rounds)]
    return [
        f"{f'Point {shown(str(point))}' if point else 'The run'} is unfinished: it ended round "
        f"{reached:.0f} of {rounds}. `fedsim run --resume` continues it, or says why it fails."
        for point, reached in last.items()
    ]


def _labels(rows: "pd.DataFrame") -> "pd.Series":
    """Labels with the batch size, such as `dlg, B = 4`, of probes that have several sizes."""
    probes = rows[rows["probe"] != ""]
    sizes = probes.groupby("label")["batch_size"].nunique()
    apart = probes[probes["label"].isin(sizes[sizes > 1].index)]
    sized = apart["label"] + ", B = " + apart["batch_size"]
    return sized.reindex(rows.index).fillna(rows["label"])


def _shown(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table with the texts of its shown columns as a page may have them; see `shown`."""
    for column in SHOWN.intersection(table):
        texts = {text: shown(text) for text in table[column].unique()}
        table[column] = table[column].map(texts)
    return table


def _text(run_dir: Path, name: str) -> str:
    path = inside(run_dir, name)
    return path.read_bytes()[:200_000].decode("utf-8", errors="replace") if path else ""
