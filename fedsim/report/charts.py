"""The plot of a report: utility and leakage against rounds, as a plotly figure in plain JSON.

The page sets the colours of text and grid, according to the reader's light or dark scheme.
"""

import html
import math
from typing import TYPE_CHECKING, Any

from fedsim.runs.reading import Measures, budget

if TYPE_CHECKING:
    import pandas as pd

# Distinct under the common colour vision deficiencies, on white and on near-black.
COLOURS = ("#d9660b", "#2f7ed8", "#1a9a76", "#9a6fd8", "#d6457a", "#9a8a12")
GREY = "#7d8797"
LAYOUT = {
    "margin": {"l": 66, "r": 16, "t": 10, "b": 90},
    "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
}
ROW_PIXELS = 190
TITLES = {"wer": "Word error rate", "mcc": "Matthews correlation"}
"""Titles of utility metrics whose name is an abbreviation."""

WHOSE = {"": "on the test set", "train": "in training", "client": "on clients' own data"}


def figure(
    rows: "pd.DataFrame", utility: "pd.DataFrame", main: dict[str, str], measures: Measures
) -> dict[str, Any]:
    """Plot one sweep point as a plotly figure {"data", "layout"}: charts that share their x axis.

    Args:
        rows: The findings of the point.
        utility: The utility of the point.
        main: The main metric of each adversary, by label.
        measures: How metrics are read.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    by_metric = dict(list(utility.groupby("metric", sort=False)))
    for metric in sorted(by_metric, key=lambda metric: not str(metric).endswith("accuracy")):
        if (spent := budget(str(metric))) is not None:
            if spent.startswith("epsilon"):
                style = {"color": COLOURS[len(panels) % len(COLOURS)], "width": 2.5}
                part = by_metric[metric]
                line = _line(part["round"], part["value"], str(metric), style)
                panels.setdefault("Privacy spent: epsilon", []).append(line)
            continue
        # `loss`, `train_loss` and `client_loss` are one quantity, measured on different examples.
        part, (whose, _, quantity) = by_metric[metric], str(metric).rpartition("_")
        name = f"{quantity}: {WHOSE.get(whose, whose)}"
        style = {"color": GREY, "width": 3 if not whose else 1.5}
        if whose:
            style["dash"] = "dash" if whose == "train" else "longdashdot"
        line = _line(part["round"], part["value"], name, style)
        panels.setdefault(TITLES.get(quantity, quantity.capitalize()), []).append(line)
    for place, (label, metric) in enumerate(main.items()):
        part = rows[(rows["label"] == label) & (rows["metric"] == metric)]
        part = part[part["counted"].notna()]
        if part.empty:
            continue
        how, colour = measures[metric], COLOURS[place % len(COLOURS)]
        panel = "Leakage" if how.kind != "number" else how.title
        by_round = part.groupby("round")
        means, chance = by_round["counted"].mean(), by_round["baseline"].mean()
        name = f"{label}: {how.title.lower() if how.kind != 'number' else how.title}"
        leak = _line(means.index, means, name, {"color": colour, "width": 2.5})
        leak["customdata"] = [int(n) for n in by_round["counted"].count()]
        leak["hovertemplate"] = "%{y:.3~g}, mean of %{customdata} attacks"
        guess = _line(chance.index, chance, f"{label}: chance", {"color": colour, "width": 1.5})
        guess["line"]["dash"], guess["mode"], guess["showlegend"] = "dot", "lines", False
        if len(chance) == 1:
            guess["mode"], guess["marker"]["symbol"] = "markers", "line-ew-open"
        group = {"legendgroup": str(place)}
        panels.setdefault(panel, []).extend([leak | group, guess | group])
    return _stacked(panels)


def _line(x: Any, y: Any, name: str, line: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _plain(name),
        "x": [_number(value) for value in x],
        "y": [_number(value) for value in y],
        "line": line,
        "marker": {"color": line["color"], "size": 8},
        "hovertemplate": "%{y:.3~g}",
    }


def _stacked(panels: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The panels one above the other, with the axis of rounds below the last."""
    count, data = len(panels), []
    layout: dict[str, Any] = {
        "height": ROW_PIXELS * count + 110,
        "hovermode": "x",
        **LAYOUT,
        "xaxis": {
            "title": {"text": "Round"},
            "anchor": f"y{count}" if count > 1 else "y",
            "tickformat": "d",
            "zeroline": False,
        },
    }
    gap = 0.07
    height = (1 - gap * (count - 1)) / count if count else 1
    for place, (title, traces) in enumerate(panels.items()):
        suffix = str(place + 1) if place else ""
        top = 1 - place * (height + gap)
        values = [v for trace in traces for v in trace["y"] if v is not None]
        axis: dict[str, Any] = {
            "title": {"text": _plain(title)},
            "domain": [max(0.0, top - height), top],
            "anchor": "x",
            "zeroline": False,
        }
        if values and min(values) > 0 and max(values) / min(values) > 50:
            axis |= {"type": "log", "exponentformat": "power", "dtick": 1}
        elif values and title in ("Accuracy", "Leakage") and max(values) <= 1:
            axis |= {"range": [-0.03, 1.05], "tickformat": ".0%"}
        elif values:
            axis |= {"rangemode": "tozero"}
        layout[f"yaxis{suffix}"] = axis
        data += [trace | {"xaxis": "x", "yaxis": f"y{suffix}"} for trace in traces]
    rounds = [v for trace in data for v in trace["x"] if v is not None]
    if rounds and max(rounds) - min(rounds) <= 12:
        layout["xaxis"]["dtick"] = 1
    return {"data": data, "layout": layout}


def _number(value: Any) -> float | None:
    """A number for JSON, which has neither NaN nor infinity; None is a gap in the line."""
    number = float(value)
    return number if math.isfinite(number) else None


def _plain(text: str) -> str:
    """Escape text for plotly, which interprets some HTML in names, and shorten it."""
    return html.escape(text if len(text) <= 60 else text[:59] + "…", quote=False)
