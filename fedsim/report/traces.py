"""Parts of plots that `fedsim report` and `fedsim reproduce` share: curves, bands, chance lines."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.report.intervals import Estimate

Trace = dict[str, Any]

# Distinct under the common colour vision deficiencies, on white and on near-black.
COLOURS = ("#d9660b", "#2f7ed8", "#1a9a76", "#9a6fd8", "#d6457a", "#9a8a12")
SYMBOLS = ("circle", "square", "triangle-up", "x", "diamond", "star")
GREY = "#7d8797"
LAYOUT = {
    "margin": {"l": 66, "r": 16, "t": 10, "b": 90},
    "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
}
SHARE = {"range": [-0.03, 1.05], "tickformat": ".0%"}
"""The axis of values from 0 to 1."""
NAME = 60
"""Length of a name in a legend, in characters."""

GUESS = "random guess"

MARKED = 60
"""The largest number of places of a line that have a marker each."""


def curve(
    means: Mapping[float, Estimate], name: str, style: dict[str, Any], group: str, *, of: str = ""
) -> list[Trace]:
    """A line with the band of its intervals, as far as there are any.

    Args:
        means: Estimates by place on the x axis.
        name: The name in the legend.
        style: Colour, width and dash of the line.
        group: The legend group of the line and the band.
        of: What the means are over, such as "attacks", for the text that a pointer shows.
    """
    if not means:
        return []
    line: Trace = {
        "type": "scatter",
        "mode": "lines+markers" if len(means) <= MARKED else "lines",
        "name": plain(name, NAME),
        "x": [_number(at) for at in means],
        "y": [_number(one.mean) for one in means.values()],
        "line": style,
        "marker": {"color": style["color"], "size": 8},
        "hovertemplate": "%{y:.3~g}",
        "legendgroup": group,
    }
    if of:
        line["customdata"] = [one.n for one in means.values()]
        line["hovertemplate"] += f", mean of %{{customdata}} {of}"
    known = [(at, one.low, one.high) for at, one in means.items() if one.low is not None]
    return [*band(known, style["color"], group), line]


def band(ends: Sequence[tuple[Any, Any, Any]], colour: str, group: str) -> list[Trace]:
    """The area between the ends of intervals, or a bar where there is but one interval.

    Args:
        ends: Place on the x axis, lower end and upper end of each interval.
        colour: The colour.
        group: The legend group.
    """
    x, low, high = ([one[at] for one in ends] for at in range(3))
    shape: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "95 % interval",
        "fill": "toself",
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "line": {"width": 0, "color": colour},
        "opacity": 0.25,
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": group,
    }
    if len(ends) == 1:
        shape |= {"line": {"width": 6, "color": colour}}
    return [shape] if ends else []


def guesses(
    chance: Mapping[Any, float], name: str = GUESS, colour: str = GREY, *, width: float = 2
) -> Trace:
    """The dotted line of what a random guess scores, by place on the x axis."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(chance) == 1 else "lines",
        "name": plain(name, NAME),
        "x": list(chance),
        "y": [_number(one) for one in chance.values()],
        "line": {"color": colour, "width": width, "dash": "dot"},
        "marker": {"color": colour, "symbol": "line-ew-open", "size": 12},
        "hovertemplate": "%{y:.3~g}",
    }


def plain(text: str, most: int | None = None) -> str:
    """Escape text for plotly, which interprets some HTML in names, and shorten it to a length."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return html.escape(cut, quote=False)


def _number(value: Any) -> Any:
    """A value for JSON, which has neither NaN nor infinity; None is a gap in the line."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
