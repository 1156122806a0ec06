"""Finding and reading scenario files."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.libraries import HUB
from fedsim.references import references

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"

_OF_A_RUN = ("provenance.json", "findings.csv")
"""Files whose presence beside a scenario shows that a run wrote it."""


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file as nested tables; raise `ScenarioError` if that fails."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ScenarioError(f"{path} cannot be read as TOML: {error}") from error
    except RecursionError:
        raise ScenarioError(f"{path} cannot be read as TOML: it is nested too deeply") from None


def scenario_names(*, papers: bool = True) -> list[str]:
    """Return the names of fedsim's own scenarios, sorted.

    Args:
        papers: Whether to include those of papers' figures.
    """
    found = (path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.toml"))
    return sorted(path.as_posix() for path in found if papers or path.parts[0] != "papers")


def locate(source: str | Path) -> Path:
    """Return the TOML file of a scenario, by name or path; raise `ScenarioError` without one."""
    path = Path(source)
    if path.is_file():
        return path
    builtin = FOLDER / f"{source}.toml"
    # The file "papers/llg/fig4a" is also found under its short name, "papers/llg-fig4a".
    figure = re.sub(r"^papers/([^/-]+)-", r"papers/\1/", str(source))
    for file in (builtin, FOLDER / f"{figure}.toml"):
        if file.is_file():
            return file
    if (path / "scenario.toml").is_file():  # a run folder
        return path / "scenario.toml"
    if path.is_dir():
        raise ScenarioError(
            f"no scenario '{source}': it is a folder without a scenario.toml, so that no run began "
            "in it. Name a file, a run folder, or one of fedsim list scenarios"
        )
    raise ScenarioError(
        f"no scenario '{source}': neither a file, nor one that comes with fedsim. "
        f"{did_you_mean(str(source), scenario_names(), scenario_names(papers=False))} "
        "fedsim list scenarios describes them, and fedsim reproduce lists those of papers"
    )


def code_named(table: dict[str, Any]) -> list[str]:
    """The references to code ("module:name") in a scenario."""
    sections = ("task", "defenses", "adversaries", "metrics", "sweep")
    return references([table.get(key) for key in sections])


def search_dirs(table: dict[str, Any], path: Path, *, trust: bool) -> list[str]:
    """Return the folders in which a scenario's modules and relative paths are looked up.

    Args:
        table: The scenario.
        path: The scenario's file.
        trust: Whether code that it names may be imported even if a run wrote the file.

    Returns:
        The folders that the file lists, or the file's own folder, then the current one; empty if
        it names neither a module nor a path.

    Raises:
        ScenarioError: A run wrote the file, and it names code, but is not trusted.
    """
    named = code_named(table)
    by_a_run = "search_dirs" in table or any((path.parent / one).exists() for one in _OF_A_RUN)
    if named and by_a_run and not trust:
        raise ScenarioError(
            f"{path} is of a run folder and names code ({', '.join(dict.fromkeys(named))}), which "
            "is imported only with --trust (trust=True): give it if you know who wrote that code"
        )
    task = table.get("task")
    paths = [task.get(key) for key in ("data", "test_data")] if isinstance(task, dict) else []
    if not named and not any("/" in str(one) and not str(one).startswith(HUB) for one in paths):
        return []
    listed = table.get("search_dirs") if trust else None
    own = listed if isinstance(listed, list) else [str(path.parent)]
    return list(dict.fromkeys([*own, str(Path.cwd())]))
