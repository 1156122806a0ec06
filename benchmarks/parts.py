"""A table of a page, its plot, and the machine that it was measured on."""

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import psutil
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.engine.process import device_name
from fedsim.scenario import Scenario

DOCS = Path(__file__).resolve().parent.parent / "docs"


def machine() -> str:
    """The processor, its cores, the version of PyTorch, and the day."""
    name = device_name(Scenario.parse({"task": {"name": "images"}, "engine": {"device": "cpu"}}))
    return (
        f"{name}, {psutil.cpu_count()} cores, PyTorch {torch.__version__}, "
        f"{datetime.date.today():%d %B %Y}."
    )


@dataclass(frozen=True)
class Part:
    """Heads and rows of a table; how it is drawn; the machine and the day."""

    heads: Sequence[str]
    rows: list[list[Any]]
    draw: Callable[[Axes], None]
    where: str = field(default_factory=machine)

    def table(self) -> str:
        """As Markdown, with the machine below it."""
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        rows = "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)
        return f"{rows}\n\n{self.where}"


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if isinstance(value, int) or (isinstance(value, float) and value >= 1000):
        return f"{value:,.0f}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def plot(name: str, part: Part) -> None:
    """Draw a part in docs/pictures."""
    mpl.rcParams.update({"svg.hashsalt": "fedsim", "font.size": 9})
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    part.draw(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / f"pictures/performance-{name}.svg", metadata={"Date": None})


def write(name: str, part: Part, page: Path) -> None:
    """Put a part's table into the page."""
    text = page.read_text()
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    old = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not old.search(text):
        raise SystemExit(f"{page} has no place for '{name}': {begin.strip()} and {end.strip()}")
    page.write_text(old.sub(lambda _: begin + part.table() + end, text))
