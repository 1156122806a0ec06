"""Why each adversary leaks or not, in sentences: what it found, and what stands in its way.

What was found is read from the findings, as the verdict is, so that the two never disagree; the
reasons are those of diagnosis.csv, which a run writes when it ends (`fedsim.diagnosis`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedsim.errors import RunFolderError
from fedsim.inert import inert, shown
from fedsim.report.folder import RunFolder, read_folder
from fedsim.report.leakage import summarise
from fedsim.report.verdict import Verdict, verdicts_of
from fedsim.runs.reading import Measures, printable, read_rows, split_point

if TYPE_CHECKING:
    import pandas as pd

FILE = "diagnosis.csv"
NEEDED = {"point", "seed", "round", "victim", "label", "expected", "found", "reasons", "unknown",
          "seen", "needs", "advice", "layers"}  # fmt: skip
"""The columns that sentences are made of; `fedsim.diagnosis` writes more."""

ATTACK = ["seed", "round", "client", "victim"]
LONGEST = 240
"""Characters of an error that a sentence has."""

ENDED = {"failed": "failed", "timeout": "ran out of time", "unverified": "is unverified"}
"""How attacks without a score that counts are named."""

ANOTHER, MORE = "another adversary", "more iterations or another adversary"
"""What to try where an attack found nothing in spite of all that it requires: one that makes no
iterations, and one that does."""


class Reason(NamedTuple):
    """What speaks for or against an adversary in a stretch of rounds.

    Attributes:
        text: A sentence without a full stop.
        advice: Which setting to try; "" if nothing is missing.
    """

    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.text}; try {self.advice}" if self.advice else self.text


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why one adversary leaks or not at one point of a sweep.

    Attributes:
        point: The point, "" without a sweep; seeds are repetitions of it.
        label: The adversary's label.
        found: What it found, completing a sentence that begins with the label.
        reasons: Why, one for each stretch of rounds; empty if nothing was measured.
    """

    point: str
    label: str
    found: str
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        where = f"{self.point}: " if self.point else ""
        return ". ".join([f"{where}{self.label} {self.found}", *map(str, self.reasons)])


def explain(run_dir: Path) -> list[Diagnosis]:
    """Say of each adversary of a run what it found, and why.

    Raises:
        RunFolderError: The folder cannot be read.
    """
    folder = read_folder(run_dir)
    found = verdicts_of(folder.rows, folder.measures)
    return diagnoses(folder, found, summarise(folder.rows, folder.measures, found))[0]


def diagnoses(
    folder: RunFolder,
    verdicts: Mapping[tuple[str, str], Verdict],
    totals: Sequence[Mapping[str, Any]],
) -> tuple[list[Diagnosis], str]:
    """Say of each adversary what it found, and why.

    Args:
        folder: The run folder.
        verdicts: The verdicts, by point and label.
        totals: The rows of `fedsim.report.leakage.summarise`.

    Returns:
        A diagnosis for each point and label, and a note on what was not measured, "" if all was.
    """
    table, note = _table(folder)
    measured: dict[tuple[str, str], list[dict[Any, Any]]] = {}
    for row in table.to_dict("records"):
        measured.setdefault((row["point"], row["label"]), []).append(row)
    attacked = {
        (str(point), str(label)): part
        for (point, label), part in folder.rows.groupby(["point", "label"], sort=False)
    }
    scored: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for total in totals:
        scored.setdefault((total["point"], total["label"]), []).append(total)
    found = []
    for key in dict.fromkeys([*attacked, *measured]):
        rows, advice = measured.get(key, []), ANOTHER
        if key in attacked:
            advice = MORE if (attacked[key]["iterations"] > 0).any() else ANOTHER
            verdict = verdicts[key]
            said = _found(verdict, scored[key], attacked[key], folder.measures, rows)
        else:
            verdict, said = None, "is not attacked yet"
        found.append(Diagnosis(*key, said, tuple(_reasons(rows, verdict, advice))))
    return found, note or _left_out(attacked, measured)


def _table(folder: RunFolder) -> "tuple[pd.DataFrame, str]":
    """The rows of diagnosis.csv with points and labels as in the findings, and a note."""
    import pandas as pd

    nothing = pd.DataFrame(columns=sorted(NEEDED))
    again = "`fedsim diagnose RUN` measures the reasons, and writes this page again."
    try:
        table, _ = read_rows(folder.path, FILE, NEEDED)
    except RunFolderError:
        return nothing, f"{FILE} is not one that this version of fedsim writes. {again}"
    if len(table):
        table = table[table["round"].str.fullmatch(r"[0-9]{1,9}")].copy()
    if table.empty:
        return nothing, f"No reasons were measured. {again}"
    table["round"] = table["round"].astype(int)
    for column in ("seen", "needs", "advice"):
        table[column] = [_line(text)[: 2 * LONGEST] for text in table[column]]
    table["point"] = [shown(split_point(point)[1]) for point in table["point"]]
    keys = ["point", "seed", "victim", "named"]
    rows = folder.rows.drop_duplicates(keys)
    known = dict(zip(zip(*(rows[key] for key in keys), strict=True), rows["label"], strict=True))
    mine = zip(*(table[key] for key in ("point", "seed", "victim", "label")), strict=True)
    table["label"] = [known.get(key, shown(key[-1])) for key in mine]
    return table.drop_duplicates(["point", "seed", "victim", "label"], keep="last"), ""


def _left_out(
    attacked: "Mapping[tuple[str, str], pd.DataFrame]",
    measured: Mapping[tuple[str, str], Sequence[Mapping[Any, Any]]],
) -> str:
    """A note if not all attacked updates were measured."""
    number = sum(len(rows.drop_duplicates(ATTACK)) for rows in attacked.values())
    there = sum(len(measured.get(key, ())) for key in attacked)
    if there >= number:
        return ""
    return (
        f"Reasons were measured for {there} of {number} attacks, evenly spread over the rounds, in "
        "a few seconds at the end of the run. `fedsim diagnose RUN` measures all that it recorded."
    )


def _found(
    verdict: Verdict,
    totals: Sequence[Mapping[str, Any]],
    rows: "pd.DataFrame",
    measures: Measures,
    measured: Sequence[Mapping[Any, Any]],
) -> str:
    """What an adversary found, as its verdict has it, and how many attacks have no score."""
    attacks = rows.drop_duplicates(ATTACK)
    if verdict.kind == "denied":
        needs = next((row["needs"] for row in measured if row["needs"]), "")
        if not needs:
            return f"is denied: {_usual(attacks['error'])}"
        withheld = "which threat.grants withholds"
        return f"is denied: it needs {needs}, {withheld}; try threat.grants with {needs}"
    lost, number = _lost(rows, attacks), len(attacks)
    if verdict.kind == "unknown" and len(lost) == 1 and lost[0][0] == number:
        return lost[0][1]
    ended = [f"{count} of {number} attacks {how.removeprefix('is ')}" for count, how in lost]
    if verdict.kind == "unknown":
        return "; ".join([f"is {verdict.badge}", *ended])
    chief = next((row for row in totals if row["metric"] == verdict.metric), None)
    chance = measures[verdict.metric].show(chief["baseline"]) if chief else "–"
    figure = f"({verdict.figure}, chance {chance})"
    if verdict.kind == "leaks":
        said = f"found {', '.join(_parts(verdict, totals, measures))}"
    elif verdict.kind == "guessed":
        guess = measures[verdict.metric].show(chief["baseline_prior"]) if chief else "–"
        said = (
            f"is not shown to find more than a guess from public data {figure[:-1]}, guess {guess})"
        )
    elif verdict.badge.startswith("nothing seen"):
        said = f"{verdict.badge.replace('nothing seen', 'found nothing', 1)} {figure}"
    else:
        said = f"is {verdict.badge} {figure}"
    return "; ".join([said, *ended])


def _lost(rows: "pd.DataFrame", attacks: "pd.DataFrame") -> list[tuple[int, str]]:
    """The number of attacks without a score, and how they ended, with the most frequent reason."""
    found = []
    for status, words in ENDED.items():
        part = attacks[attacks["status"] == status]
        if len(part):
            found.append((len(part), f"{words}: {_usual(part['error'])}"))
    for truth in ("absent", "partial"):
        part = rows[(rows["status"] == "ok") & (rows["truth"] == truth)]
        if len(part) and len(blank := part.groupby(ATTACK).filter(_blank)):
            blank = blank.drop_duplicates(ATTACK)
            why = _usual(blank["checked"]).removeprefix("not checked: ")
            found.append((len(blank), f"cannot be scored: truth {truth} ({why})"))
    return found


def _blank(rows: "pd.DataFrame") -> bool:
    return bool(rows["value"].isna().all())


def _usual(texts: "pd.Series") -> str:
    """The most frequent text, in one line, without its full stop."""
    usual = Counter(line for line in map(_line, texts) if line).most_common(1)
    text = usual[0][0].removesuffix(".") if usual else "unknown"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _line(text: str) -> str:
    """Text in one line, without control characters."""
    return inert(printable(" ".join(str(text).split())))


def _parts(verdict: Verdict, totals: Sequence[Mapping[str, Any]], measures: Measures) -> list[str]:
    """What of labels, inputs and so on was found, and what was not."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(totals, key=lambda row: measures.rank(row["metric"])):
        how = measures[row["metric"]]
        if how.leaks:
            groups.setdefault(how.what or how.title, []).append(row)
    found, missing = [], []
    for what, rows in groups.items():
        said = {row["metric"]: str(row["verdict"]) for row in rows}
        beating = [row for row in rows if said[row["metric"]] == "beats chance"]
        best = next((row for row in rows if row["metric"] == verdict.metric), None)
        if best or beating:
            row = best or min(beating, key=lambda row: measures[row["metric"]].detail)
            how = measures[row["metric"]]
            level = verdict.figure if best else f"{how.title} {how.show(row['mean'])}"
            found.append(f"{what} ({level}, chance {how.show(row['baseline'])})")
        elif guessed := [row for row in rows if said[row["metric"]].startswith("beats chance")]:
            row = min(guessed, key=lambda row: measures[row["metric"]].detail)
            how = measures[row["metric"]]
            level = f"{how.title} {how.show(row['mean'])}, guess {how.show(row['baseline_prior'])}"
            missing.append(f"{what} not shown to be more than a guess from public data ({level})")
        elif any(one.startswith("too few") for one in said.values()):
            missing.append(f"{what} in too few victims to tell")
        elif all(one == "not known" for one in said.values()):
            missing.append(f"{what} not known")
        else:
            missing.append(f"no {what}")
    return found + missing


def _reasons(
    rows: Sequence[Mapping[Any, Any]], verdict: Verdict | None, advice: str
) -> Iterator[Reason]:
    """Why, one for each stretch of rounds in which most updates have the same reasons.

    Args:
        rows: The rows of diagnosis.csv of one adversary and point.
        verdict: The verdict on the adversary; None if it did not attack.
        advice: What to try where it found nothing in spite of all that it requires.
    """
    if verdict is not None and verdict.kind == "denied":
        return
    rounds: dict[int, list[Mapping[Any, Any]]] = {}
    for row in [row for row in rows if row["found"]] or rows:  # attacked updates, if there are any
        rounds.setdefault(row["round"], []).append(row)
    spans: list[tuple[tuple[str, str], list[int], list[Mapping[Any, Any]]]] = []
    for number, updates in sorted(rounds.items()):
        keys = [(one["expected"], one["reasons"]) for one in updates]
        usual = max(keys, key=keys.count)
        if not spans or spans[-1][0] != usual:
            spans.append((usual, [], []))
        spans[-1][1].append(number)
        spans[-1][2].extend(updates)
    for usual, span, updates in spans:
        alike = [one for one in updates if (one["expected"], one["reasons"]) == usual]
        found = Counter(one["found"] for one in alike).most_common(1)[0][0]
        row = next(one for one in alike if one["found"] == found)
        reason = _reason(row, rounds_text(span), verdict, advice)
        some = f" (so in {len(alike)} of {len(updates)} updates)"
        yield reason._replace(text=reason.text + some * (len(alike) < len(updates)))


def _reason(row: Mapping[Any, Any], where: str, verdict: Verdict | None, advice: str) -> Reason:
    """What was measured, what the adversary needs, and what to try where it lacks something."""
    if not row["expected"]:
        return Reason(f"In {where} it declares no requirements that could say why")
    if row["expected"] != "leaks" and not row["seen"]:
        denied = f"it needs {row['needs']}, which threat.grants withholds"
        return Reason(f"In {where} it would be denied: {denied}", row["advice"])
    reached = row["found"] == "leaks"
    if row["expected"] == "leaks":
        begins = f"In {where}" if verdict else f"In {where} it is expected to leak"
        text = f"{begins}: {row['seen']}"
        if not row["layers"] and row["unknown"]:
            more = f"{row['unknown'].replace(' ', ', ')} could be measured"
            more = f', and with record.keep = "attacked" {more}'
            more *= row["found"] != "failed"  # the update may be refused, which no setting keeps
            return Reason(f"{text}; updates were not recorded{more}")
        return Reason(text, advice if verdict and not reached and _scored(row) else "")
    if reached:
        return Reason(f"In {where} in spite of {row['seen']}: as a rule it needs {row['needs']}")
    begins = f"In {where}"
    if verdict is None:
        begins = f"It is expected to find nothing in {where}"
    elif verdict.kind == "leaks":
        begins = f"It finds no more in {where}"
    return Reason(f"{begins}: {row['seen']}; it needs {row['needs']}", row["advice"])


def _scored(row: Mapping[Any, Any]) -> bool:
    return row["found"] in ("leaks", "less", "nothing")


def rounds_text(rounds: Sequence[int]) -> str:
    """Rounds in words, such as `round 3` or `rounds 1 to 9`."""
    if rounds[0] == rounds[-1]:
        return f"round {rounds[0]}"
    return f"rounds {rounds[0]} to {rounds[-1]}"
