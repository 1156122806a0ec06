"""Utility against leakage for each setting of a run, as a plotly figure in plain JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.metric import Measure
from fedsim.report.charts import OVERLAID, quantity, with_room_for_legend
from fedsim.report.intervals import Estimate
from fedsim.report.replication import Series, attacks_of, last_utility, leaked, utility_measure
from fedsim.report.traces import COLOURS, GREY, GUESS, LAYOUT, NAME, SHARE, SYMBOLS, Trace, plain
from fedsim.runs.reading import Measures, budget

PANEL_PIXELS, TITLE_PIXELS = 300, 70
"""Heights of a chart, and of the title of its axis below it."""


def frontier(
    every: Sequence[Series], main: Mapping[str, str], measures: Measures
) -> dict[str, Any]:
    """Plot the utility of each series against its leakage, a chart for each adversary.

    The utility is the accuracy after the last round, or the first metric of utility where none is
    measured; the leakage is the mean of the adversary's main metric over all attacked rounds. Both
    are the numbers of the page's table of points, with their intervals over seeds. The dotted line
    is what a random guess scores.

    Args:
        every: The series, in the order of the legend; those beyond `OVERLAID` are left out.
        main: The main metric of each adversary, by label.
        measures: How metrics are read.

    Returns:
        The figure {"data", "layout"}; without data if no series has both utility and leakage.
    """
    utility = [last_utility(one.utility) for one in every[:OVERLAID]]
    metric = _chosen([name for values in utility for name in values])
    charts: dict[str, tuple[Measure, list[Trace]]] = {}
    named: set[str] = set()
    for label, of in main.items():
        how, traces, guess = measures[of], list[Trace](), list[float]()
        for place, (one, values) in enumerate(zip(every, utility, strict=False)):
            part = attacks_of(one.rows, label, of)
            if part.empty or metric not in values:
                continue
            name, leakage = one.name or "(no point)", leaked(part, how)
            if not (math.isfinite(leakage.mean) and math.isfinite(values[metric].mean)):
                continue
            traces.append(_mark(leakage, values[metric], name, place))
            traces[-1]["showlegend"] = name not in named
            named.add(name)
            guess += filter(math.isfinite, part["baseline"])
        if guess and math.isfinite(level := sum(guess) / len(guess)):
            traces.append(_guess(level, traces, metric, GUESS not in named))
            named.add(GUESS)
        if traces:
            more = " (lower: leaks more)" if how.lower else ""
            charts[f"{label}: {how.title}{more}"] = how, traces
    return _below_each_other(charts, metric)


def _chosen(metrics: Sequence[str]) -> str:
    """The metric of utility that is shown, "" if there is none."""
    known = [name for name in metrics if budget(name) is None]
    return min(
        known, key=lambda name: (name != "accuracy", not name.endswith("accuracy")), default=""
    )


def _mark(leakage: Estimate, utility: Estimate, name: str, place: int) -> Trace:
    # The shapes move on with each cycle of the colours, so that no two marks are alike.
    symbol = SYMBOLS[(place + place // len(COLOURS)) % len(SYMBOLS)]
    colour = COLOURS[place % len(COLOURS)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name, NAME),
        "legendgroup": str(place),
        "x": [leakage.mean],
        "y": [utility.mean],
        "error_x": _bar(leakage),
        "error_y": _bar(utility),
        "marker": {"color": colour, "symbol": symbol, "size": 12},
        "hovertemplate": "leakage %{x:.3~g}, utility %{y:.3~g}",
    }


def _bar(one: Estimate) -> dict[str, Any]:
    """The bar of an interval over seeds."""
    if not one.over_seeds or one.low is None or one.high is None:
        return {"visible": False}
    ends = {"array": [one.high - one.mean], "arrayminus": [one.mean - one.low]}
    return {"type": "data", "symmetric": False, "thickness": 1.5, **ends}


def _guess(mean: float, marks: Sequence[Trace], metric: str, shown: bool) -> Trace:
    heights = [0.0, *(mark["y"][0] for mark in marks)]
    if utility_measure(metric).kind != "number":
        heights.append(1.0)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": GUESS,
        "legendgroup": GUESS,
        "showlegend": shown,
        "x": [mean, mean],
        "y": [min(heights), max(heights)],
        "line": {"color": GREY, "width": 2, "dash": "dot"},
        "hovertemplate": "%{x:.3~g}",
    }


def _below_each_other(
    charts: Mapping[str, tuple[Measure, list[Trace]]], metric: str
) -> dict[str, Any]:
    count, data = len(charts), list[Trace]()
    pixels = PANEL_PIXELS * count + TITLE_PIXELS * (count - 1)
    layout: dict[str, Any] = {"height": pixels + 120, "hovermode": "closest", **LAYOUT}
    for place, (title, (how, traces)) in enumerate(charts.items()):
        suffix = str(place + 1) if place else ""
        top = 1 - place * (PANEL_PIXELS + TITLE_PIXELS) / pixels
        layout[f"xaxis{suffix}"] = {
            "title": {"text": plain(title, NAME)},
            "anchor": f"y{suffix}",
            "zeroline": False,
            **(SHARE if how.kind != "number" else {}),
        }
        layout[f"yaxis{suffix}"] = {
            "title": {"text": plain(f"{quantity(metric)[0] or metric} after the last round", NAME)},
            "domain": [max(0.0, top - PANEL_PIXELS / pixels), top],
            "anchor": f"x{suffix}",
            "zeroline": False,
            **(SHARE if utility_measure(metric).kind != "number" else {}),
        }
        data += [trace | {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"} for trace in traces]
    return with_room_for_legend({"data": data, "layout": layout})
