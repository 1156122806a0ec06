"""Draws the report's plotly figures as PNG and SVG with matplotlib, which needs no browser."""

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

DASHES = {"dash": "--", "dot": ":", "dashdot": "-.", "longdashdot": (0, (8, 3, 1, 3))}
SYMBOLS = {
    "circle": "o", "square": "s", "triangle-up": "^", "x": "X", "diamond": "D", "star": "*",
    "line-ew-open": "_",
}  # fmt: skip
WIDTH, LEFT, RIGHT, BELOW, INCH = 900, 80, 24, 56, 100
"""Pixels: of the picture, its margins beside and below the charts, and an inch."""
POINT = 0.72
"""Points in a pixel, at 100 pixels an inch."""
RESOLUTION = 200
"""Dots an inch of a PNG file."""

STYLE: dict[Any, Any] = {
    # Names of a run folder are no formulas, whatever characters they have.
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsim",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
}


def draw(figure: Mapping[str, Any], formats: Sequence[str]) -> dict[str, bytes]:
    """Draw a figure of `fedsim.report`: curves, bands and marks in charts below each other.

    Curves that the page hides until they are chosen in the legend are left out.

    Args:
        figure: {"data", "layout"} as plotly takes them.
        formats: Such as "png" and "svg".

    Returns:
        The content of a file for each format.
    """
    layout = figure["layout"]
    traces = [one for one in figure["data"] if one.get("visible") != "legendonly"]
    margin = layout["margin"]
    pixels = layout["height"] - margin["t"] - margin["b"]
    with rc_context(STYLE):
        picture = Figure(figsize=(WIDTH / INCH, 1), dpi=INCH)
        legend = _legend(picture, traces)
        below = BELOW + legend
        height = margin["t"] + pixels + below
        picture.set_size_inches(WIDTH / INCH, height / INCH)
        spot = (LEFT / WIDTH, below / height, 1 - (LEFT + RIGHT) / WIDTH, pixels / height)
        for axes, own in _charts(picture, traces, layout, spot):
            for trace in own:
                _trace(axes, trace)
            if layout[f"yaxis{own[0]['yaxis'][1:]}"].get("rangemode") == "tozero":
                bottom, top = axes.get_ylim()
                bottom = min(0.0, bottom)
                axes.set_ylim(bottom, top + 0.05 * (top - bottom))
        for note in layout.get("annotations", []):
            y = spot[1] + note["y"] * spot[3] + 4 / height
            picture.text(spot[0], y, _text(note["text"]), weight="bold", va="bottom")
        found = {}
        for format in formats:
            stream = io.BytesIO()
            # Without a date, the same run gives the same bytes.
            meta = {"Date": None} if format == "svg" else None
            picture.savefig(stream, format=format, dpi=RESOLUTION, metadata=meta)
            found[format] = stream.getvalue()
    return found


def _charts(
    picture: Figure,
    traces: Sequence[Mapping[str, Any]],
    layout: Mapping[str, Any],
    spot: tuple[float, float, float, float],
) -> list[tuple[Axes, list[Mapping[str, Any]]]]:
    """Make the axes of each chart, and return them with what is drawn there."""
    left, bottom, width, height = spot
    by_chart: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for trace in traces:
        by_chart.setdefault((trace["xaxis"], trace["yaxis"]), []).append(trace)
    found, shared = [], dict[str, Axes]()
    for (x, y), own in by_chart.items():
        horizontal = layout[f"xaxis{x[1:]}"]
        vertical = layout[f"yaxis{y[1:]}"]
        low, high = vertical["domain"]
        place = (left, bottom + low * height, width, (high - low) * height)
        axes = picture.add_axes(place, sharex=shared.get(x))
        shared[x] = axes
        _scale(axes, "x", horizontal)
        _scale(axes, "y", vertical)
        if horizontal["anchor"] != y:
            axes.tick_params(axis="x", labelbottom=False)
            axes.set_xlabel("")
        found.append((axes, own))
    return found


def _scale(axes: Axes, which: str, wanted: Mapping[str, Any]) -> None:
    """Title, range and numbers of one axis."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text(_text(wanted.get("title", {}).get("text", "")))
    if wanted.get("type") == "log":
        axes.set(**{f"{which}scale": "log"})
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    elif wanted.get("tickformat") == ".0%":
        axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    elif wanted.get("tickformat") == "d":
        axis.set_major_locator(MaxNLocator(integer=True))
    if "range" in wanted:
        axes.set(**{f"{which}lim": wanted["range"]})


def _trace(axes: Axes, trace: Mapping[str, Any]) -> None:
    x, y = (_numbers(trace[name]) for name in ("x", "y"))
    if "fill" in trace:
        colour = trace["line"]["color"]
        if len(x) == 2:  # the ends of one interval
            axes.plot(x, y, color=colour, linewidth=6 * POINT, alpha=trace["opacity"])
        else:
            axes.fill(x, y, color=colour, alpha=trace["opacity"], linewidth=0)
        return
    ends = {
        name: [bar["arrayminus"], bar["array"]]
        for name in ("error_x", "error_y")
        if "array" in (bar := trace.get(name, {}))
    }
    if ends:
        axes.errorbar(
            x,
            y,
            xerr=ends.get("error_x"),
            yerr=ends.get("error_y"),
            fmt="none",
            ecolor=trace["marker"]["color"],
            elinewidth=1,
        )
    axes.plot(x, y, **_look(trace))


def _look(trace: Mapping[str, Any]) -> dict[str, Any]:
    """The line and the marker of a trace, as matplotlib names them."""
    line, marker = trace.get("line", {}), trace.get("marker", {})
    look: dict[str, Any] = {"color": line.get("color") or marker["color"], "linestyle": "none"}
    if "lines" in trace["mode"]:
        look["linestyle"] = DASHES.get(line.get("dash", ""), "-")
        look["linewidth"] = line["width"] * POINT
    if "markers" in trace["mode"]:
        symbol = SYMBOLS.get(marker.get("symbol", "circle"), "o")
        look |= {"marker": symbol, "markersize": marker["size"] * POINT}
    return look


def _legend(picture: Figure, traces: Sequence[Mapping[str, Any]]) -> float:
    """Draw the legend at the lower edge, and return its height in pixels."""
    shown = [one for one in traces if one.get("showlegend", True)]
    if not shown:
        return 0.0
    marks = [Line2D([], [], **_look(one)) for one in shown]
    names = [_text(one["name"]) for one in shown]
    columns = max(1, min(4, int(110 / (max(map(len, names)) + 8))))
    legend = picture.legend(
        marks, names, loc="lower left", bbox_to_anchor=(0, 0), ncols=columns, frameon=False
    )
    picture.draw_without_rendering()
    return math.ceil(legend.get_window_extent().height)


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if one is None else float(one) for one in values]


def _text(shown: str) -> str:
    """Text as plotly shows it: of its markup, only that for bold occurs."""
    return html.unescape(re.sub(r"</?b>", "", shown))
