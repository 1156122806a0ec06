"""Tables of the docs, by the name in their first column."""

import re
from pathlib import Path


def rows(page: Path) -> dict[str, str]:
    """The second cell of every table row by the names in code font of the first."""
    found = {}
    for line in page.read_text().splitlines():
        if line.startswith("| `"):
            first, second, *_ = re.split(r"(?<!\\)\|", line.strip("| "))
            for name in re.findall(r"`([^`]+)`", first):
                found[name] = second.strip()
    return found
