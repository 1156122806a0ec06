"""Plots of utility and leakage against rounds, as plotly figures in plain JSON.

The page sets the colours of text and grid, according to the reader's light or dark scheme.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedsim.report.intervals import Estimate
from fedsim.report.replication import (
    Series,
    attacks_of,
    over_rounds,
    utility_measure,
    worst_probe,
)
from fedsim.report.traces import (
    COLOURS,
    GREY,
    GUESS,
    LAYOUT,
    NAME,
    SHARE,
    SYMBOLS,
    Trace,
    curve,
    guesses,
    plain,
)
from fedsim.runs.reading import Measures, budget

if TYPE_CHECKING:
    import pandas as pd

ROW_PIXELS, HEADING_PIXELS, LEGEND_PIXELS = 190, 44, 22
TITLES = {"wer": "Word error rate", "mcc": "Matthews correlation"}
"""Titles of utility metrics whose name is an abbreviation."""

WHOSE = {"": "on the test set", "train": "in training", "client": "on clients' own data"}
OVERLAID = 4 * len(COLOURS)
"""The largest number of series in one chart."""

WORST = "dashdot"
"""The dash of the curve of the probe that leaked most."""


@dataclass(slots=True)
class Panel:
    """One of the charts that stand above each other.

    Attributes:
        share: Whether its values go from 0 to 1.
        traces: What is drawn in it.
    """

    share: bool = False
    traces: list[Trace] = field(default_factory=list)


def figure(series: Series, main: Mapping[str, str], measures: Measures) -> dict[str, Any]:
    """Plot one series as a plotly figure {"data", "layout"}: charts that share their x axis.

    Args:
        series: The results of one setting.
        main: The main metric of each adversary, by label.
        measures: How metrics are read.
    """
    panels: dict[str, Panel] = {}
    utility = series.utility
    for metric in sorted(utility["metric"].unique(), key=lambda one: not one.endswith("accuracy")):
        title, name, whose = quantity(metric)
        if not title:
            continue
        spent = whose == "budget"
        panel = panels.setdefault(title, Panel(title == "Accuracy"))
        style = {"color": GREY, "width": 1.5 if whose else 3}
        if spent:
            style = {"color": COLOURS[(len(panels) - 1) % len(COLOURS)], "width": 2.5}
        elif whose:
            style["dash"] = "dash" if whose == "train" else "longdashdot"
        panel.traces += curve(_utility(utility, metric), name, style, f"{title} {name}")
    for place, (label, metric) in enumerate(main.items()):
        part = attacks_of(series.rows, label, metric)
        if part.empty:
            continue
        how, colour = measures[metric], COLOURS[place % len(COLOURS)]
        panel = panels.setdefault(
            "Leakage" if how.kind != "number" else how.title, Panel(how.kind != "number")
        )
        name = f"{label}: {how.title.lower() if how.kind != 'number' else how.title}"
        worst = worst_probe(part, how)
        name += ", mean of probes" if worst else ""
        panel.traces += _of_series(over_rounds(part, how), name, place, of="attacks")
        if worst:
            means = over_rounds(part[part["probe"] == worst], how)
            alone = {at: replace(one, low=None, high=None) for at, one in means.items()}
            style = {"color": colour, "width": 1.5, "dash": WORST}
            panel.traces += curve(alone, f"{label}: worst probe, {worst}", style, f"{place} worst")
        chance = _chance(part)
        if chance:
            guess = guesses(chance, f"{label}: chance", colour, width=1.5)
            panel.traces.append({**guess, "showlegend": False, "legendgroup": str(place)})
    _bands_first(panels.values())
    return with_room_for_legend(stacked(panels))


def overlay(every: Sequence[Series], main: Mapping[str, str], measures: Measures) -> dict[str, Any]:
    """Plot several series over each other: a chart for each metric of utility and each adversary.

    Args:
        every: The series, in the order of the legend; those beyond `OVERLAID` are left out. Those
            beyond the number of colours are hidden until the reader chooses them in the legend.
        main: The main metric of each adversary, by label.
        measures: How metrics are read.
    """
    every, panels = every[:OVERLAID], dict[str, Panel]()
    metrics = dict.fromkeys(metric for one in every for metric in one.utility["metric"])
    for metric in sorted(metrics, key=lambda one: not one.endswith("accuracy")):
        title, _, whose = quantity(metric)
        elsewhere = whose in ("train", "client") and metric.rpartition("_")[2] in metrics
        if title and not elsewhere:
            panel = panels[metric if whose else title] = Panel(title == "Accuracy")
            for place, one in enumerate(every):
                means = _utility(one.utility, metric)
                panel.traces += _of_series(means, one.name, place)
    for label, metric in main.items():
        how, panel = measures[metric], Panel(measures[metric].kind != "number")
        chances: dict[str, dict[float, float]] = {}
        for place, one in enumerate(every):
            part = attacks_of(one.rows, label, metric)
            panel.traces += _of_series(over_rounds(part, how), one.name, place, of="attacks")
            if chance := _chance(part):
                chances[str(place)] = chance
        levels = {tuple(chance.items()) for chance in chances.values()}
        if len(levels) == 1:
            chances = {"chance": chances.popitem()[1]}
        for group, chance in chances.items():
            colour = GREY if group == "chance" else COLOURS[int(group) % len(COLOURS)]
            panel.traces.append({**guesses(chance, GUESS, colour), "legendgroup": group})
        if panel.traces:
            panels[f"{label}: {how.title}"] = panel
    _bands_first(panels.values())
    named: set[str] = set()
    for trace in (trace for panel in panels.values() for trace in panel.traces):
        group, is_band = trace["legendgroup"], "fill" in trace
        own_guess = trace["name"] == GUESS and group != "chance"
        trace["showlegend"] = not (is_band or own_guess or group in named)
        if group.isdigit() and int(group) >= len(COLOURS):
            trace["visible"] = "legendonly"
        if trace["showlegend"]:
            named.add(group)
    found = with_room_for_legend(stacked(panels, headings=True))
    found["layout"]["margin"] |= {"t": HEADING_PIXELS}
    found["layout"]["height"] += HEADING_PIXELS
    return found


def with_room_for_legend(figure: dict[str, Any]) -> dict[str, Any]:
    """A figure whose lower margin is as high as the lines that its legend probably takes."""
    entries = (trace["name"] for trace in figure["data"] if trace.get("showlegend", True))
    lines = sum(7 * len(name) + 50 for name in entries) / 950
    more = max(0, math.ceil(lines) - 1) * LEGEND_PIXELS
    margin = figure["layout"]["margin"]
    figure["layout"] |= {
        "margin": margin | {"b": margin["b"] + more},
        "height": figure["layout"]["height"] + more,
    }
    return figure


def stacked(panels: Mapping[str, Panel], *, headings: bool = False) -> dict[str, Any]:
    """Panels one above the other, with the axis of rounds below the last.

    Args:
        panels: By title.
        headings: Whether a title stands above its panel; otherwise it is that of the axis.
    """
    count, data = len(panels), []
    gap = HEADING_PIXELS if headings else 0.07 * ROW_PIXELS * count
    pixels = ROW_PIXELS * count + (gap * (count - 1) if headings else 0)
    layout: dict[str, Any] = {
        "height": pixels + 110,
        "hovermode": "x",
        **LAYOUT,
        "xaxis": {
            "title": {"text": "Round"},
            "anchor": f"y{count}" if count > 1 else "y",
            "tickformat": "d",
            "zeroline": False,
        },
    }
    share_of_gap = gap / pixels if count else 0.0
    height = (1 - share_of_gap * (count - 1)) / count if count else 1
    for place, (title, panel) in enumerate(panels.items()):
        suffix = str(place + 1) if place else ""
        top = 1 - place * (height + share_of_gap)
        axis: dict[str, Any] = {
            "domain": [max(0.0, top - height), top],
            "anchor": "x",
            "zeroline": False,
        }
        if headings:
            layout.setdefault("annotations", []).append(_heading(title, top))
        else:
            axis["title"] = {"text": plain(title, NAME)}
        layout[f"yaxis{suffix}"] = axis | _scale(panel)
        data += [trace | {"xaxis": "x", "yaxis": f"y{suffix}"} for trace in panel.traces]
    rounds = [v for trace in data for v in trace["x"] if v is not None]
    if rounds and max(rounds) - min(rounds) <= 12:
        layout["xaxis"]["dtick"] = 1
    return {"data": data, "layout": layout}


def _scale(panel: Panel) -> dict[str, Any]:
    """The scale of a panel's axis; on a logarithmic one, bands are cut off at positive values."""
    values = [
        v for trace in panel.traces if "fill" not in trace for v in trace["y"] if v is not None
    ]
    if values and min(values) > 0 and max(values) / min(values) > 50:
        for trace in (trace for trace in panel.traces if "fill" in trace):
            trace["y"] = [max(v, min(values) / 10) for v in trace["y"]]
        return {"type": "log", "exponentformat": "power", "dtick": 1}
    if values and panel.share and max(values) <= 1:
        return dict(SHARE)
    return {"rangemode": "tozero"} if values else {}


def _heading(title: str, top: float) -> dict[str, Any]:
    place = {"x": 0, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left"}
    return {
        "text": f"<b>{plain(title, NAME)}</b>",
        "yanchor": "bottom",
        "showarrow": False,
        **place,
    }


def quantity(metric: str) -> tuple[str, str, str]:
    """The panel of a utility metric ("" if it has none), its name there, and whose value it is.

    `loss`, `train_loss` and `client_loss` are one quantity, measured on different examples.
    """
    if (spent := budget(metric)) is not None:
        return ("Privacy spent: epsilon" if spent.startswith("epsilon") else ""), metric, "budget"
    whose, _, quantity = metric.rpartition("_")
    title = TITLES.get(quantity, quantity.capitalize())
    return title, f"{quantity}: {WHOSE.get(whose, whose)}", whose


def _utility(utility: "pd.DataFrame", metric: str) -> dict[float, Estimate]:
    part = utility[utility["metric"] == metric]
    return over_rounds(part, utility_measure(metric), "value")


def _of_series(
    means: Mapping[float, Estimate], name: str, place: int, *, of: str = ""
) -> list[Trace]:
    """The curve of one of several series or adversaries.

    Earlier ones are wider, so that a line is seen where a later one lies on it.
    """
    width = max(1.5, 7 - 2.5 * (place % len(COLOURS)))
    style = {"color": COLOURS[place % len(COLOURS)], "width": width}
    traces = curve(means, name or "(no point)", style, str(place), of=of)
    symbol = SYMBOLS[place % len(SYMBOLS)]
    for trace in traces:
        if "marker" in trace:
            trace["marker"] |= {"symbol": symbol, "size": 6 + width}
    return traces


def _bands_first(panels: Iterable[Panel]) -> None:
    """Order traces so that no band lies on a line."""
    for panel in panels:
        panel.traces.sort(key=lambda trace: "fill" not in trace)


def _chance(part: "pd.DataFrame") -> dict[float, float]:
    """The mean score of a random guess in each round, as far as it is known."""
    means = part.groupby("round")["baseline"].mean().dropna()
    return dict(zip(means.index.tolist(), means.tolist(), strict=True))
