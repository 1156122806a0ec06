"""Reproduction of papers' figures and tables: measured results beside the published numbers.

catalogue    the figures that can be reproduced: scenarios with a [paper] table
driver       runs their scenarios, one repetition after another, into run folders
cells        means and intervals of the rows of a run folder
verdict      compares a mean and its interval with a published statement
outcome      the results of one figure: cells, verdicts, examples, data, model and versions
tables       the papers' tables, ours beside published, as they ship
picture      a plotly figure that resembles the paper's
pages        one page for each paper, as HTML and Markdown
console      the same tables on a terminal
"""

from fedsim.reproduce.catalogue import choose, figures
from fedsim.reproduce.driver import run_figure
from fedsim.reproduce.outcome import outcome
from fedsim.reproduce.pages import write_page
from fedsim.runs.lock import locked

__all__ = ["choose", "figures", "locked", "outcome", "play", "run_figure", "write_page"]

play = run_figure
