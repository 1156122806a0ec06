"""Papers' figures and tables, ours beside published.

catalogue    which there are: scenarios with a [paper] table
driver       plays them, repetition after repetition, into run folders
cells        the rows of a run folder, averaged
verdict      a mean and its interval against a published statement
outcome      a figure: cells, verdicts, what they rest on
gallery      what was recovered, to look at
picture      a plotly figure like the paper's
pages        one page a paper, HTML and Markdown
console      the same on a terminal
"""

from fedsim.reproduce.catalogue import choose, figures
from fedsim.reproduce.driver import locked, play
from fedsim.reproduce.outcome import outcome
from fedsim.reproduce.pages import write_page

__all__ = ["choose", "figures", "locked", "outcome", "play", "write_page"]
