"""Scenario files: where those that come with fedsim lie, and how one is found and read."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedsim.errors import ScenarioError, did_you_mean

__all__ = ["FOLDER", "locate", "read_table", "scenario_names"]

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"


def read_table(path: Path) -> dict[str, Any]:
    """A TOML file as plain tables; raises `ScenarioError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ScenarioError(f"{path} cannot be read as TOML: {error}") from error


def scenario_names(*, papers: bool = True) -> list[str]:
    """Scenarios that come with fedsim, by name; those of papers' figures are many."""
    found = (path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.toml"))
    return sorted(path.as_posix() for path in found if papers or path.parts[0] != "papers")


def locate(source: str | Path) -> Path:
    """The TOML file of a scenario, by name or path; raises `ScenarioError`."""
    path = Path(source)
    if path.is_file():
        return path
    builtin = FOLDER / f"{source}.toml"
    # A figure's file stands in its paper's folder; its name is "papers/llg-fig4a" as well.
    figure = re.sub(r"^papers/([^/-]+)-", r"papers/\1/", str(source))
    for file in (builtin, FOLDER / f"{figure}.toml"):
        if file.is_file():
            return file
    raise ScenarioError(
        f"no scenario '{source}': neither a file, nor one that comes with fedsim. "
        f"{did_you_mean(str(source), scenario_names(), scenario_names(papers=False))} "
        "fedsim list scenarios describes them, and fedsim reproduce lists those of papers"
    )
