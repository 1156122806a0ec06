"""Text that is no more than text where it is shown: no formula in a spreadsheet, no control codes.

Names and messages of clients and plugins stand in the tables of a run folder and in its report,
which people open in a spreadsheet, or copy into one.
"""

import re
import unicodedata

from fedsim.errors import encodable

FIRST = frozenset("'=+-@＝＋－＠ \t\r\n")
"""What a text begins with that may be a formula, or an escaped one."""
FORMULA = re.compile(r"'*(?:[\t\r\n]|\s*[=+\-@＝＋－＠])")
CONTROLS = frozenset({"Cc", "Zl", "Zp"})
"""Unicode's categories of control characters and of separators that end a line."""
TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of what is written, by which a text looks like another."""


def inert(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would take for a formula.

    A number is no formula. `restored` is the inverse.
    """
    if text[:1] not in FIRST or not FORMULA.match(text) or _number(text):
        return text
    return f"'{text}"


def restored(text: str) -> str:
    """The text that `inert` was given."""
    return text[1:] if text[:1] == "'" and FORMULA.match(text) else text


def visible(text: str) -> str:
    """Write control characters, those that turn the direction, and lone surrogates as escapes.

    Line breaks and tabs stay.
    """
    text = encodable(text)
    if text.isprintable() and text.isascii():
        return text
    return "".join(_escaped(one) if _hidden(one) else one for one in text)


def legible(text: str) -> str:
    """As `visible`, for a block of text whose characters matter: also those that have no width."""
    return "".join(
        _escaped(one) if _hidden(one) or unicodedata.category(one) == "Cf" else one
        for one in encodable(text)
    )


def line(text: str) -> str:
    """A text in one line, `visible`: in a log, none of it looks like an entry of its own."""
    return visible(" ".join(re.split(r"[\t\r\n]+", text)))


def shown(text: str) -> str:
    """A text as it is shown in a table: a `line` that is `inert`."""
    return inert(line(text))


def _hidden(character: str) -> bool:
    if character in "\n\t":
        return False
    return unicodedata.category(character) in CONTROLS or character in TURNING


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
