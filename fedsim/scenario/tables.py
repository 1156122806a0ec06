"""The base class of a scenario's tables, and the type of names that become files."""

import re
from typing import Annotated

from pydantic import AfterValidator, ConfigDict

from fedsim.described import Described


def plain(value: str) -> str:
    """Return a text that can name a file; raise `ValueError` for any other."""
    if value.isspace() or not re.fullmatch(r"[^/\\\x00-\x1f.][^/\\\x00-\x1f]{0,99}", value):
        raise ValueError(
            "expected what can name a file: 1 to 100 characters, not only spaces, none of "
            "them / or \\ or a control character, and no dot at the beginning"
        )
    return value


PlainName = Annotated[str, AfterValidator(plain)]
"""A text that can name a file: no separator, control character or leading dot, not too long."""


class Table(Described):
    """Base class of a scenario's tables, which are frozen and refuse unknown keys."""

    # Infinity is a valid setting (no clipping) and must survive serialisation to the clients.
    model_config = ConfigDict(ser_json_inf_nan="constants")
