"""Tables of the docs, by the name in their first column."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "write-an-adversary.md"
DEFENSE = DOCS / "write-a-defense.md"
FLOWER = DOCS / "in-your-flower-project.md"
METRIC = DOCS / "write-a-metric.md"
TASK = DOCS / "write-a-task.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
PAGES.append(ROOT / "docker" / "README.md")
OTHERS = [page for page in PAGES if page not in (TUTORIAL, DEFENSE, FLOWER, METRIC, TASK)]
KNOWN_HOSTS = {"flower.ai", "www.ray.io", "docs.ray.io", "keepachangelog.com"}


def rows(page: Path) -> dict[str, str]:
    """The second cell of every table row by the names in code font of the first."""
    found = {}
    for line in page.read_text().splitlines():
        if line.startswith("| `"):
            first, second, *_ = re.split(r"(?<!\\)\|", line.strip("| "))
            for name in re.findall(r"`([^`]+)`", first):
                found[name] = second.strip()
    return found
