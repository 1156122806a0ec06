"""The tables and figures of the five papers, ours beside published, as they ship with fedsim.

`tables.json` is written by `benchmarks/results_index.py` from the pages under `docs/results`, and
never by hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

FILE = Path(__file__).parent / "tables.json"


class Title(NamedTuple):
    """The names of a paper."""

    short: str
    long: str


PAPERS = {
    "dlg": Title("DLG", "Zhu et al., Deep Leakage from Gradients (NeurIPS 2019)"),
    "llg": Title(
        "LLG",
        "Wainakh et al., User-Level Label Leakage from Gradients in Federated Learning "
        "(PoPETs 2022)",
    ),
    "lamp": Title(
        "LAMP",
        "Balunovic et al., LAMP: Extracting Text from Gradients with Language Model Priors "
        "(NeurIPS 2022)",
    ),
    "rlg": Title(
        "RLG",
        "Dang et al., Revealing and Protecting Labels in Distributed Training (NeurIPS 2021)",
    ),
    "hfgm": Title(
        "HFGM",
        "Dang et al., A Method to Reveal Speaker Identity in Distributed ASR Training, and How to "
        "Counter It (ICASSP 2022)",
    ),
}
"""The papers, by the first part of their figures' ids."""


VERDICTS = ("differs", "too few", "better", "agrees", "no number", "not measured")
"""Verdicts; the first in this order that a point has is that of its table."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A point that a claim is about, ours beside published, as text.

    Attributes:
        what: What is compared.
        published: The published number, range or limit.
        ours: Our mean with its 95 % interval in brackets.
        victims: The number of attacked victims and, if it differs, of seeds.
        scale: "smoke" or "paper".
        verdict: One of `VERDICTS`.
        by: By how much ours differs, or "".
    """

    what: str
    published: str
    ours: str
    victims: str
    scale: str
    verdict: str
    by: str


@dataclass(frozen=True, slots=True)
class Row:
    """One table or figure of a paper.

    Attributes:
        paper: The paper, a key of `PAPERS`.
        table: Its table or figure, such as "Table 2".
        claim: What the paper claims, in a sentence.
        points: The compared points, one or more.
        why: Why ours differs, or is not measured, in a sentence or two.
        ids: The ids of its scenarios.
    """

    paper: str
    table: str
    claim: str
    points: tuple[Compared, ...]
    why: str
    ids: tuple[str, ...]

    @property
    def decisive(self) -> Compared:
        """The first point with the verdict of the table."""
        return min(self.points, key=lambda point: VERDICTS.index(point.verdict))


ROWS = TypeAdapter(list[Row])


def tables() -> list[Row]:
    """The rows that ship with fedsim, in the papers' order."""
    return ROWS.validate_json(FILE.read_bytes())


def write_tables(rows: Sequence[Row]) -> None:
    """Replace the rows that ship with fedsim."""
    FILE.write_bytes(ROWS.dump_json([*rows], indent=1) + b"\n")
