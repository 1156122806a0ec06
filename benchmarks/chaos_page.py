"""The table of docs/reliability.md, from the rows that chaos.py wrote.

python benchmarks/chaos_page.py
"""

import csv
import re
from collections import Counter
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
ROWS = DOCS / "results" / "rows" / "chaos.csv"
PAGE = DOCS / "reliability.md"
WHERE = ("inline", "ray", "flower", "nodes")


def table(rows: list[dict[str, str]]) -> str:
    """Equal of all trials by kind and place, as Markdown."""
    made = Counter((row["kind"], row["where"]) for row in rows)
    equal = Counter((row["kind"], row["where"]) for row in rows if row["equal"] == "True")

    def cell(kinds: list[str], where: tuple[str, ...]) -> str:
        of = sum(made[kind, one] for kind in kinds for one in where)
        same = sum(equal[kind, one] for kind in kinds for one in where)
        return f"{same} of {of}" if of else ""

    kinds = sorted({row["kind"] for row in rows})
    lines = [
        "| fault | one process | Ray | Flower's engine | two Ray nodes | all |",
        "| --- " * 6 + "|",
    ]
    for name, some in [*((kind, [kind]) for kind in kinds), ("all", kinds)]:
        cells = [cell(some, (one,)) for one in WHERE]
        lines.append(f"| {' | '.join([name, *cells, cell(some, WHERE)])} |")
    return "\n".join(lines)


def main() -> None:
    with ROWS.open(encoding="utf-8", newline="") as file:
        found = table(list(csv.DictReader(file)))
    text = PAGE.read_text(encoding="utf-8")
    block = re.compile(r"<!-- chaos -->\n.*?<!-- end of chaos -->", re.DOTALL)
    new = f"<!-- chaos -->\n{found}\n<!-- end of chaos -->"
    PAGE.write_text(block.sub(lambda _: new, text), encoding="utf-8")


if __name__ == "__main__":
    main()
