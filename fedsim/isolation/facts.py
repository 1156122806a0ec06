"""What a process that does not import an adversary has to know of it."""

import ast
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedsim.adversary import Adversary, group_size


def parts_of(adversary: Adversary) -> list[Adversary]:
    """An adversary and those that it runs first."""
    inner = [one for part in adversary.parts().values() for one in parts_of(part)]
    return [adversary, *inner]


def source_digest(parts: list[Adversary]) -> str:
    """The SHA-256 of the source files of plugins, and of what these import from their package."""
    digest = hashlib.sha256()
    for file in sources_of(parts):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def sources_of(parts: list[Adversary]) -> list[Path]:
    """The source files of plugins, and of what these import from their package, sorted."""
    return sorted({file for part in parts for file in _files(type(part))})


def _files(kind: type) -> Iterator[Path]:
    """The files of a class's modules and of modules that these import from the same package."""
    left = [base.__module__ for base in kind.__mro__]
    done: set[str] = {name for name in left if name.partition(".")[0] in ("builtins", "fedsim")}
    packages = {name.partition(".")[0] for name in left} - {"abc", "builtins", "fedsim", "pydantic"}
    while left:
        name = left.pop()
        if name in done or name.partition(".")[0] not in packages:
            continue
        done.add(name)
        module = sys.modules.get(name)
        file = Path(getattr(module, "__file__", None) or "")
        if file.is_file():
            yield file
        python = file.suffix == ".py" and file.is_file()
        bound, named = _imports(file, file.stat().st_mtime_ns) if python else (frozenset(), ())
        left += named
        for key, value in list(vars(module).items()) if module else ():
            if isinstance(value, ModuleType):
                # A package has its modules as attributes once anybody has imported them.
                if key in bound or value.__name__ != f"{name}.{key}":
                    left.append(value.__name__)
            elif callable(value):
                left.append(str(getattr(inspect.unwrap(value), "__module__", "")))


@functools.lru_cache
def _imports(file: Path, changed: int) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names that `from` imports of a source file bind, and modules that other imports name.

    It is read again once `changed`, its time of change, differs.
    """
    try:
        statements = [*ast.walk(ast.parse(file.read_bytes()))]
    except (SyntaxError, ValueError):  # it was changed since it was imported
        return frozenset(), ()
    froms = [one for one in statements if isinstance(one, ast.ImportFrom)]
    others = [one for one in statements if isinstance(one, ast.Import)]
    bound = frozenset(alias.asname or alias.name for one in froms for alias in one.names)
    return bound, tuple(alias.name for one in others for alias in one.names)


def settings_of(parts: list[Adversary]) -> list[dict[str, Any]]:
    """The settings of an adversary and of those that it runs first, as JSON values."""
    return [part.model_dump(mode="json") for part in parts]


class Facts(BaseModel):
    """An adversary's declarations with its settings, as they come from its process.

    Attributes:
        declared: Its name.
        summary: The first line of its docstring.
        needs: Knowledge that it needs with any settings.
        required: Knowledge that it needs with these settings.
        recovers: Fields of a claim on which it is scored with any settings.
        fills: Fields on which it is scored with these settings.
        fails: What `fills` raised, as a text; "" if it did not.
        group: Number of observations that it attacks at once with these settings.
        over_history: Whether it claims the examples of a history.
        suits: The modalities that it attacks, and the names of each one's class and base classes.
        cautious: Whether it may have warnings about a model.
        conditions: The arguments of its requirements.
        settings: Its settings and those of adversaries that it runs first.
        source: Digest of its source files.
        files: When these were changed, in nanoseconds.
        parts: The adversaries that it runs first, by setting.
    """

    declared: Annotated[str, Field(max_length=200)]
    summary: Annotated[str, Field(max_length=1000)]
    needs: list[str]
    required: list[str]
    recovers: list[str]
    fills: list[str]
    fails: Annotated[str, Field(max_length=2000)]
    group: Annotated[int, Field(ge=1, le=1000)]
    over_history: bool
    suits: list[tuple[str, list[str]]]
    cautious: bool
    conditions: list[tuple[str, str, float, list[str], str]]
    settings: list[dict[str, Any]]
    source: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    files: dict[str, int]
    parts: "dict[str, Facts]"

    model_config = ConfigDict(ser_json_inf_nan="constants")


def facts_of(adversary: Adversary) -> Facts:
    """Collect an adversary's declarations."""
    all_parts = parts_of(adversary)
    fails = ""
    try:
        fills = sorted(adversary.fills())
    except Exception as reason:  # its attacks fail, and say so
        fills, fails = [], f"{type(reason).__name__}: {reason}"
    return Facts(
        declared=adversary.name or type(adversary).__name__,
        summary=adversary.summary()[:1000],
        needs=adversary.needs.names(),
        required=adversary.requires().names(),
        recovers=sorted(adversary.recovers),
        fills=fills,
        fails=fails[:2000],
        group=group_size(adversary),
        over_history=adversary.over_history,
        suits=[(kind.modality, lineage(kind)) for kind in adversary.suits],
        cautious=any(type(one).cautions is not Adversary.cautions for one in all_parts),
        conditions=[
            (one.quantity, one.why, one.most, list(one.only), one.advice)
            for one in adversary.conditions()
        ],
        settings=settings_of(all_parts),
        source=source_digest(all_parts),
        files={str(file): file.stat().st_mtime_ns for file in sources_of(all_parts)},
        parts={setting: facts_of(part) for setting, part in adversary.parts().items()},
    )


def lineage(kind: type) -> list[str]:
    """The full names of a class and of its base classes."""
    return [f"{one.__module__}:{one.__qualname__}" for one in kind.__mro__[:-1]]
