"""Settings that are described by the string below each of them.

pydantic reads such strings, too (`use_attribute_docstrings`), but for every class when it is made:
that took a quarter to a half of the time in which fedsim is imported, in each command and worker.
Here a string is read from the source when the description is shown.
"""

import ast
import inspect
import linecache
import sys
from itertools import pairwise
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_validator


class Described(BaseModel):
    """Base class of frozen settings, each described by the string below it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    _statement: ClassVar[tuple[str, int]] = ("", 0)
    """File and line of the class statement; notebooks have no other way to find it."""

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        """Note where the class statement is."""
        super().__pydantic_init_subclass__(**settings)
        frame = inspect.currentframe()
        while frame and frame.f_globals.get("__name__") != cls.__module__:
            frame = frame.f_back
        cls._statement = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)

    @model_validator(mode="wrap")
    @classmethod
    def _no_boolean_is_a_number(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(values)
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool) and type(vars(made).get(name)) in (int, float):
                raise ValueError(f"{name} = {str(value).lower()}: expected a number")
        return made


def description(model: type[BaseModel], name: str) -> str:
    """What a setting means, in one line; empty if its author does not say.

    Args:
        model: The class of the settings.
        name: The setting.
    """
    said = model.model_fields[name].description
    if said is None:
        of = next(one for one in model.__mro__ if name in inspect.get_annotations(one))
        said = _strings(of).get(name, "") if issubclass(of, Described) else ""
    return " ".join(said.split())


def _strings(cls: type[Described]) -> dict[str, str]:
    """The strings below the annotated names of a class statement."""
    file, line = cls._statement
    try:
        module = sys.modules.get(cls.__module__)  # whose loader reads from a zip
        tree = ast.parse("".join(linecache.getlines(file, vars(module) if module else None)))
    except SyntaxError:  # the file has changed since
        return {}
    names = cls.__name__, cls.__qualname__.rpartition(".")[2]  # of which a decorator may change one
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and node.name in names
        and _first_line(node) <= line <= (node.end_lineno or 0)
    ]
    body = max(around, key=lambda node: node.lineno).body if around else []
    found = {}
    for pair in pairwise(body):
        match pair:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = text
    return found


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])
