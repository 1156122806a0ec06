"""What was recovered, to look at: of each place and series the attack in the middle.

Neither the best nor the worst: what half of the victims fare better than, and half worse.
"""

from dataclasses import dataclass
from pathlib import Path

from fedsim.report.exhibits import Exhibits, scores
from fedsim.reproduce.cells import Rows, series
from fedsim.scenario import Scenario

__all__ = ["Example", "gallery"]

OF_IMAGES = ("mse", "recovered")
"""Measures of images, in figures of which pictures say something."""


@dataclass(frozen=True, slots=True)
class Example:
    """One attack's sheet, originals above and what was recovered below. uri: a data URI.

    words: its series, place and scores.
    """

    words: str
    uri: str


def gallery(folder: Path, scenario: Scenario) -> list[Example]:
    """The examples of a run folder, as far as it holds PNGs of them; none of other figures."""
    paper = scenario.paper
    if paper is None or not {*OF_IMAGES} & {*paper.measure}:
        return []
    if not (folder / "findings.csv").is_file():
        return []
    rows = Rows(folder, scenario)
    exhibits, found = Exhibits(folder, rows.measures), []
    images = rows.findings[rows.findings["artifact"].str.endswith(".png")]
    errors = images[images["metric"] == "mse"].sort_values("counted", kind="stable")
    for (extra, label), called in series(scenario, "mse").items():
        own = errors[(errors["extra"] == extra) & (errors["label"] == label)]
        for key, place in rows.places.items():
            here = own[own["place"] == key]
            if here.empty:
                continue
            middle = here.iloc[len(here) // 2]
            sheet = exhibits.embed(str(middle["artifact"]))
            if sheet and sheet["kind"] == "image":
                attack = images[images["artifact"] == middle["artifact"]]
                shown = attack[attack["metric"].isin([*OF_IMAGES])]
                words = scores(shown, rows.measures, details=False)
                where = f"{called}, {place.where}" if place.where else called
                found.append(Example(f"{where}: {words}", sheet["uri"]))
    return found
