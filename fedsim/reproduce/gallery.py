"""Examples of recovered images: the median attack of each series and place.

The median is shown because the best attack would overstate, and the worst understate, the leakage.
"""

from dataclasses import dataclass
from pathlib import Path

from fedsim.report.exhibits import Exhibits, scores
from fedsim.reproduce.cells import Rows, series
from fedsim.scenario import Scenario

OF_IMAGES = ("mse", "recovered")
"""Measures of images; figures with one of them have examples."""


@dataclass(frozen=True, slots=True)
class Example:
    """The picture of one attack, originals above and reconstructions below.

    Attributes:
        words: Its series, place and scores.
        uri: The picture as a data URI.
    """

    words: str
    uri: str


def gallery(folder: Path, scenario: Scenario) -> list[Example]:
    """The examples in a run folder that holds PNG files; none for figures not about images."""
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
