"""The README as a package index shows it, where links to files of the source tree lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Sets `readme`, which `pyproject.toml` declares as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Take README.md with links that work elsewhere; see `portable`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source", "")
        metadata["readme"] = {"content-type": "text/markdown", "text": portable(text, source)}


def portable(text: str, source: str = "") -> str:
    """Change the links and pictures of a page that are files of the source tree.

    Args:
        text: The page, in Markdown.
        source: The address that the files' paths are appended to (`[project.urls] Source`); without
            one, links become plain text, and pictures are left out.
    """

    def link(found: re.Match[str]) -> str:
        picture, shown, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        if source:
            return f"{picture}[{shown}]({source.rstrip('/')}/{target})"
        return "" if picture else shown

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)
