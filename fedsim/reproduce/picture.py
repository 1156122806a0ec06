"""A plot that resembles the paper's: our curves with 95 % bands, chance, published numbers."""

import math
from collections.abc import Sequence
from typing import Any

from fedsim.report.traces import COLOURS, LAYOUT, SHARE, Trace, band, guesses, plain
from fedsim.reproduce.cells import Cell, axis
from fedsim.reproduce.outcome import Outcome, Share
from fedsim.reproduce.verdict import shown, speaks_of
from fedsim.scenario.paper import Published


def picture(found: Outcome, measure: str) -> dict[str, Any]:
    """Plot one measure as a plotly figure {"data", "layout"}; no data if nothing was measured."""
    shares = [share for share in found.shares if measure in share.paper.measure]
    names = list(dict.fromkeys(c.series for s in shares for c in s.cells if c.measure == measure))
    traces: list[Trace] = []
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        for share in shares:
            own = [c for c in share.cells if (c.measure, c.series) == (measure, name)]
            if own:
                traces += _series(name, own, colour, share.paper.kind)
                traces += _published(share, measure, name, colour)
    guesses = [c for s in shares for c in s.cells if c.measure == measure and c.chance is not None]
    if guesses:
        traces.append(_chance(guesses))
    return {"data": traces, "layout": _layout(shares, measure) if shares else {}}


def _series(name: str, cells: Sequence[Cell], colour: str, kind: str) -> list[Trace]:
    x, y = [cell.place.at for cell in cells], [cell.mean for cell in cells]
    line: Trace = {
        "name": plain(name),
        "legendgroup": name,
        "x": x,
        "y": y,
        "customdata": [cell.n for cell in cells],
        "hovertemplate": "%{y:.3~g}, n = %{customdata}",
        "marker": {"color": colour, "size": 8},
    }
    if kind != "curve":
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [(c.mean if c.high is None else c.high) - c.mean for c in cells],
            "arrayminus": [c.mean - (c.mean if c.low is None else c.low) for c in cells],
        }
        return [{"type": "bar", "error_y": bars, **line}]
    line |= {"type": "scatter", "mode": "lines+markers", "line": {"color": colour, "width": 2.5}}
    known = [(c.place.at, c.low, c.high) for c in cells if c.low is not None]
    return [*(band(known, colour, name) if len(known) > 1 else ()), line]


def _published(share: Share, measure: str, name: str, colour: str) -> list[Trace]:
    """Published numbers as open diamonds, and limits as open triangles, joined by dashed lines."""
    traces = []
    for statement in share.paper.published:
        of = statement.measure or share.paper.measure[0]
        if of != measure or not ({"*", name} & {*statement.series}):
            continue
        x = [place.at for place in share.places if speaks_of(statement, place, share.paper.x)]
        number = shown(statement, share.measures[measure])
        for level, symbol in _levels(statement):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if len(x) > 1 else "markers",
                    "name": plain(f"{name}: published {number}"),
                    "legendgroup": name,
                    "showlegend": False,
                    "x": x,
                    "y": [level] * len(x),
                    "line": {"color": colour, "width": 1.5, "dash": "dash"},
                    "marker": {"color": colour, "symbol": symbol, "size": 10},
                    "hovertemplate": plain(f"published: {number}"),
                }
            )
    return traces


def _levels(statement: Published) -> list[tuple[float, str]]:
    marks = [
        (statement.value, "diamond-open"),
        (statement.at_least, "triangle-up-open"),
        (statement.at_most, "triangle-down-open"),
        *((level, "line-ew-open") for level in statement.between or ()),
    ]
    return [(level, symbol) for level, symbol in marks if isinstance(level, float)]


def _chance(cells: Sequence[Cell]) -> Trace:
    by_place: dict[float | str, list[float]] = {}
    for cell in cells:
        by_place.setdefault(cell.place.at, []).append(cell.chance or 0.0)
    return guesses({at: sum(values) / len(values) for at, values in by_place.items()})


def _layout(shares: Sequence[Share], measure: str) -> dict[str, Any]:
    reading = shares[0].measures[measure]
    x = shares[0].paper.x
    below: dict[str, Any] = {"title": {"text": plain(axis(x))}}
    at = sorted({p.at for share in shares for p in share.places if isinstance(p.at, float)})
    if x == "round":
        below |= {"zeroline": False}
    elif len(at) > 2 and at[0] > 0 and all(math.log2(one).is_integer() for one in at):
        below |= {"type": "log", "tickmode": "array", "tickvals": at}
        below |= {"ticktext": [f"{one:g}" for one in at]}
    elif len(at) > 2 and at[0] > 0 and at[-1] / at[0] > 50:
        below |= {"type": "log"}
    elif not at:
        below |= {"type": "category"}
    y: dict[str, Any] = {"title": {"text": plain(reading.title)}, "zeroline": False}
    if reading.kind != "number":
        y |= SHARE
        if measure.endswith("_change"):
            del y["range"]
    return {
        "height": 420,
        "hovermode": "x" if at else "closest",
        **LAYOUT,
        "xaxis": below,
        "yaxis": y,
    }
