"""Additions to the documentation site: pages from outside `docs/`, and the reference of the API."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import fedsim

OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docker/README.md",
    "examples/README.md",
)
"""Pages of the repository that are part of the site."""

WIDE = ("results/README.md",)
"""Pages whose tables need the width of the navigation and of the table of contents."""

LINK = re.compile(r"\[([^\]\n]*)\]\(((?:\.\./)*)([^)#\s:]+)(#[^)\s]*)?\)")
"""A Markdown link to a file: its text, the way up, the file and the heading."""


def modules() -> dict[str, list[str]]:
    """The public modules, each with its names in `from fedsim import ...`."""
    found: dict[str, list[str]] = {module: [] for module in fedsim._MODULES}
    for name, module in fedsim._HOMES.items():
        found.setdefault(module, []).append(name)
    return dict(sorted(found.items(), key=lambda one: ("." in one[0], one[0])))


def reference() -> Iterator[tuple[str, str]]:
    """The pages of the reference with their texts, the list of names first."""
    rows = [
        f"| [fedsim.{module}]({module}.md) | "
        f"{', '.join(f'[`{name}`][fedsim.{module}.{name}]' for name in names)} |"
        for module, names in modules().items()
    ]
    head = "# Reference\n\nThe public modules, and the names that `fedsim` itself has.\n\n"
    table = "\n".join(["| Module | `from fedsim import` |", "| --- | --- |", *rows])
    yield "reference/index.md", head + table
    for module, names in modules().items():
        options = f"    options:\n      members: {names}\n" if "." in module else ""
        yield f"reference/{module}.md", f"# fedsim.{module}\n\n::: fedsim.{module}\n{options}"


def on_config(config: Any) -> Any:
    """Add the reference to the navigation."""
    pages = [{f"fedsim.{module}": f"reference/{module}.md"} for module in modules()]
    config.nav.append({"Reference": ["reference/index.md", *pages]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository and the reference."""
    pages = [(name, Path(name).read_text(encoding="utf-8")) for name in OUTSIDE]
    for name, text in [*pages, *reference()]:
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Point links out of `docs/` at their places on the site, or leave their text alone.

    Pages with wide tables have no navigation beside them.
    """
    depth = page.file.src_uri.count("/")
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["navigation", "toc"]

    def put(link: re.Match[str]) -> str:
        text, up, target, heading = link[1], link[2], link[3], link[4] or ""
        if up.count("../") <= depth and page.file.src_uri not in OUTSIDE:
            return link[0]
        target = target.removeprefix("docs/")
        there = files.get_file_from_path(target) is not None
        return f"[{text}]({'../' * depth}{target}{heading})" if there else text

    return LINK.sub(put, markdown)
