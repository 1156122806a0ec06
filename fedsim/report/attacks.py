"""All attacks of a run as columns, for the table of the page that shows the rows in view alone."""

import math
from typing import TYPE_CHECKING, Any

from fedsim.runs.reading import Measures

if TYPE_CHECKING:
    import pandas as pd

FACETS = ("point", "seed", "round", "client", "label", "status")
"""The columns of text, by which the reader chooses."""
KEY = ["point", "seed", "round", "victim", "client", "label"]
MESSAGES, MESSAGE_LENGTH, NAME_LENGTH = 500, 240, 120


def table(rows: "pd.DataFrame", measures: Measures) -> dict[str, Any]:
    """One row for each attack, in the order of the findings.

    Args:
        rows: The findings, a row for each attack and metric.
        measures: How metrics are read. Details are left out unless an adversary has no others.

    Returns:
        count; facets (for each of `FACETS` its values, and of each attack the place of its value
        there); scores (for each metric its title, kind, unit, and the value of each attack, None if
        it has none); messages and why (for each attack the place of its message, -1 for none).
    """
    number = rows.groupby(KEY, sort=False).ngroup()
    first = rows[~number.duplicated()]
    count = len(first)
    facets = {}
    for name in FACETS:
        values = first[name]
        texts = [f"{one:g}" for one in values] if name == "round" else [*map(str, values)]
        known = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        facets[name] = {
            "values": [text[:NAME_LENGTH] for text in known],
            "of": [known[text] for text in texts],
        }
    chief = {
        label for label, metric in zip(rows["label"], rows["metric"], strict=True)
        if not measures[metric].detail
    }  # fmt: skip
    scores = []
    for metric in sorted(rows["metric"].unique(), key=measures.rank):
        how, mine = measures[metric], rows["metric"] == metric
        if how.detail:
            mine &= ~rows["label"].isin(chief)
        found: list[Any] = [None] * count
        for place, value in zip(number[mine], rows.loc[mine, "value"], strict=True):
            found[place] = _short(value)
        if any(value is not None for value in found):
            one = {"title": how.title[:NAME_LENGTH], "kind": how.kind, "unit": how.unit}
            scores.append({**one, "values": found})
    errors = [" ".join(text.split())[:MESSAGE_LENGTH] for text in first["error"]]
    said = {
        text: place for place, text in enumerate([*dict.fromkeys(filter(None, errors))][:MESSAGES])
    }
    return {
        "count": count,
        "facets": facets,
        "scores": scores,
        "messages": [*said],
        "why": [said.get(text, -1) for text in errors],
    }


def _short(value: float) -> Any:
    """A score with four digits for JSON, which has no infinity."""
    if math.isnan(value):
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else ("∞" if value > 0 else "−∞")
