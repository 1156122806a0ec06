"""`fedsim new`: a working plugin package to start from."""

import importlib.util
import keyword
from pathlib import Path
from typing import Annotated, Literal

import typer


def new(
    kind: Annotated[
        Literal["adversary", "defense", "metric", "task"], typer.Argument(help="What it is")
    ],
    name: Annotated[str, typer.Argument(help="Name of its module, such as my_attack")],
) -> None:
    """Write a plugin package, with a test, an entry point and a README, into ./NAME."""
    import re

    from jinja2 import Environment, PackageLoader, StrictUndefined

    from fedsim.errors import PluginError
    from fedsim.metrics.registry import installed as metrics
    from fedsim.plugin import GROUPS, names

    words = [kind, *re.findall("[a-z0-9]+", name.lower())]
    fixed = "_".join(words[1:] if len(words) > 1 and words[1][0].isalpha() else words)
    fixed = f"my_{fixed}" if keyword.iskeyword(fixed) else fixed
    folder = Path(name)
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise PluginError(
            f"'{name}' cannot name a module: use small letters, digits and single underscores, "
            f"such as: fedsim new {kind} {fixed}"
        )
    if folder.exists():
        raise PluginError(f"{folder} is there already: choose another name, or remove it")
    if importlib.util.find_spec(name) is not None:
        raise PluginError(
            f"a module '{name}' is installed already, and would be shadowed: choose another name, "
            f"such as: fedsim new {kind} my_{name}"
        )
    kinds, label = "adversaries" if kind == "adversary" else f"{kind}s", name.replace("_", "-")
    if label in (metrics() if kind == "metric" else names(kinds)):
        raise PluginError(
            f"'{label}' is the name of one of the {kinds} already: choose another name, such as: "
            f"fedsim new {kind} my_{name}"
        )
    cls = "".join(map(str.capitalize, name.split("_")))
    known = {
        "kind": kind,
        "article": "an" if kind == "adversary" else "a",
        "name": name,
        "label": label,
        "cls": cls,
        "group": GROUPS[kinds],
    }
    pages = Environment(  # noqa: S701 - Python and TOML, no HTML
        loader=PackageLoader("fedsim.cli"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{name}.py": f"{kind}.py",
        f"test_{name}.py": "test.py",
    }
    texts = {
        file: pages.get_template(f"{page}.jinja").render(known) for file, page in files.items()
    }
    imported = rf"^(from|import) .*\b{cls}\b"
    if keyword.iskeyword(cls) or re.search(imported, texts[f"{name}.py"], re.MULTILINE):
        raise PluginError(
            f"the class of '{name}' would be called '{cls}', which means something else in its "
            f"file: choose another name, such as: fedsim new {kind} my_{name}"
        )
    folder.mkdir()
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    typer.echo(f"{folder}/ holds {', '.join(texts)}. Next:")
    typer.echo(f"  cd {folder}\n  python -m pytest\n  fedsim check {name}:{cls}")
