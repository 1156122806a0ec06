"""Tables of a run folder made whole again after a kill, a full disk or a power failure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedsim.runs.attack_log import AttackLog
from fedsim.runs.files import write_whole
from fedsim.runs.tables import LABEL, POINT, TABLES, VICTIM, lines, read_table, writing


def attack_of(row: Sequence[str]) -> tuple[str, str, str]:
    """What identifies the attack of a row of findings.csv: point, victim and label."""
    return row[POINT], row[VICTIM], row[LABEL]


def attempt_of(row: Sequence[str]) -> int:
    """The attempt that a row of findings.csv is of; tables of earlier versions state none."""
    text = row[TABLES["findings.csv"].index("attempt")]
    return int(text) if text.isdecimal() else 1


def with_inclusion(
    rows: Iterable[Sequence[str]], selected: Mapping[tuple[str, str, str], float]
) -> list[Sequence[str]]:
    """Rows of findings.csv whose `inclusion` is at least the probability of a later selection.

    Args:
        rows: The rows.
        selected: The probability of the later selection, by point, victim and label.
    """
    at, found = TABLES["findings.csv"].index("inclusion"), list[Sequence[str]]()
    for row in rows:
        later = selected.get(attack_of(row), 0.0)
        raised = later > float(row[at] or 0.0)
        found.append([*row[:at], str(later), *row[at + 1 :]] if raised else row)
    return found


def mend_tables(folder: Path) -> None:
    """Write the tables of a run folder again without rows that are incomplete.

    A round whose utility may lack a row loses all of it, so that the round is trained again.

    Raises:
        RunFolderError: A table has other columns or cannot be written, or findings are missing.
    """
    for name, columns in TABLES.items():
        path = folder / name
        if name != "findings.csv" and not path.exists():
            continue
        rows, torn = read_table(path, columns)
        if torn and name == "utility.csv" and rows:
            last = rows[-1][0], rows[-1][3]
            rows = [row for row in rows if (row[0], row[3]) != last]
        if torn:
            with writing(path):
                write_whole(path, lines([columns, *rows]).encode(), sync=True)


def forget_incomplete(folder: Path, attacks: AttackLog) -> None:
    """Forget attacks of which fewer rows are left than they wrote, so that they are repeated."""
    rows, _ = read_table(folder / "findings.csv", TABLES["findings.csv"])
    there = Counter(map(attack_of, rows))
    lacking = {key for key, one in attacks.ended.items() if there[key] < one.rows}
    if lacking:
        attacks.drop(lambda one: one.key in lacking)
