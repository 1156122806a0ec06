"""Pages from templates, with every value escaped."""

import base64
import contextlib
import functools
import glob
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from fedsim.errors import not_written
from fedsim.runs.files import make_folder, opened

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "templates"
COMPARISON = TEMPLATES / "comparison"


def render(
    content: dict[str, Any],
    format: Literal["html", "markdown"],
    template: Path = TEMPLATES / "report",
) -> str:
    """Render a page as HTML or Markdown, with every value escaped.

    Args:
        content: The values of the template.
        format: "html" or "markdown".
        template: The path of the template without `.html.jinja` or `.md.jinja`. If its HTML has an
            element `figures` (a JSON list of plotly figures), each element with `data-figure`
            shows one of them.
    """
    environment = _environment(template.parent, format)
    if format == "markdown":
        return environment.get_template(f"{template.name}.md.jinja").render(
            content, quote=_fenced, grid=_grid
        )
    return environment.get_template(f"{template.name}.html.jinja").render(content, **_of_pages())


@functools.cache
def _environment(folder: Path, format: Literal["html", "markdown"]) -> "jinja2.Environment":
    """What compiles the templates of a folder, once in a process."""
    import jinja2

    html = format == "html"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=html,  # noqa: S701 (markdown has its own escaping, on every value)
        finalize=None if html else _markdown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return environment


@functools.cache
def _of_pages() -> dict[str, Any]:
    """The scripts of an HTML page, their hashes and its style."""
    import plotly.offline
    from markupsafe import Markup

    scripts = [plotly.offline.get_plotlyjs(), (TEMPLATES / "report.js").read_text("utf-8")]
    scripts = [text.replace("\r\n", "\n").replace("</script", "<\\/script") for text in scripts]
    # Only these two scripts may run, and nothing may be fetched, so that text of the run folder
    # would do nothing even if it got past the escaping.
    digests = [hashlib.sha256(text.encode()).digest() for text in scripts]
    return {
        "scripts": [Markup(text) for text in scripts],  # noqa: S704
        "hashes": " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests),
        "style": Markup((TEMPLATES / "report.css").read_text("utf-8")),  # noqa: S704
    }


def write_page(path: Path, text: str) -> Path:
    """Write a page in one step, so that no reader meets half of it, and return its path.

    Raises:
        RunFolderError: The file cannot be written; `DiskFull` without room.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        make_folder(path.parent)
        _remove_drafts(path)
        how = {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}
        with opened(draft, "x", **how) as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise not_written(path, error) from error
    return path


def _remove_drafts(path: Path) -> None:
    """Remove the drafts of a page that killed processes, or earlier ones of this number, left."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):
        number = draft.suffix[1:]
        own = number == str(os.getpid())
        if own or (number.isdecimal() and not psutil.pid_exists(int(number))):
            draft.unlink(missing_ok=True)


def _markdown(value: object) -> object:
    """Escape a value for a line or a table cell of Markdown, except for text from `_fenced`."""
    from markupsafe import Markup

    if isinstance(value, Markup):
        return value
    text = " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)


def _grid(table: Mapping[str, Any]) -> str:
    """A table of `fedsim.report.tables` in Markdown, with the lines of a cell in one line."""
    from markupsafe import Markup

    texts = [table["head"], *([" ".join(cell) for cell in row] for row in table["body"])]
    rows = [" | ".join(str(_markdown(text)) for text in row) for row in texts]
    rows.insert(1, " | ".join("---" for _ in table["head"]))
    return Markup("\n".join(f"| {row} |" for row in rows))  # noqa: S704


def _fenced(text: str) -> str:
    """Text as a Markdown code block, with a fence that is longer than any in the text."""
    from markupsafe import Markup

    ticks = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return Markup(f"{fence}\n{text.rstrip()}\n{fence}")  # noqa: S704
