"""Transcripts for the speech task: an embedded text, text files, and their normal form."""

import functools
import re
import tomllib
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np

from fedsim.errors import DataError, did_you_mean
from fedsim.seeds import numpy_generator
from fedsim.tasks.local_data import data_folder, read_text

ALPHABET = "abcdefghijklmnopqrstuvwxyz'"
"""The characters of a plain transcript, apart from the single spaces between words."""

SENTENCES = "sentences"
"""The name of the embedded text."""

PUBLIC = 3000
"""The number of sentences in the embedded text."""

SPOKEN = frozenset("%&@")
"""Signs that are read aloud, besides those of currency and mathematics."""

_STORED = Path(__file__).with_name("sentences.toml")
_WORDS: dict[str, list[str]] = tomllib.loads(_STORED.read_text(encoding="utf-8"))
"""The vocabulary of the embedded sentences, by part of the sentence."""


def normalise(text: str) -> str:
    """Normalise a text: lower-case words of a-z and the apostrophe, one space between them.

    Accents are removed from letters. Every other character separates words. An apostrophe is kept
    if a letter is beside it.
    """
    words = re.sub(r"[^a-z']+", " ", _bare(text)).split()
    return " ".join(word for word in words if word.strip("'"))


def dropped_characters(text: str) -> frozenset[str]:
    """The characters that are spoken, but that `normalise` removes: letters, digits and signs."""
    strange = set(_bare(text)) - set(ALPHABET)
    return frozenset(
        c for c in strange if c.isalnum() or c in SPOKEN or unicodedata.category(c) in ("Sc", "Sm")
    )


def _bare(text: str) -> str:
    """The text in lower case, without accents."""
    bare = unicodedata.normalize("NFKD", text.replace("\u2019", "'").lower())
    return "".join(c for c in bare if not unicodedata.combining(c))


def _sentence(rng: np.random.Generator) -> str:
    """A random sentence of two to fourteen words."""

    def one(kind: str) -> str:
        return _WORDS[kind][int(rng.integers(len(_WORDS[kind])))]

    words = [one("who"), one("does")]
    if rng.random() < 0.8:
        words.append(one("whose") if rng.random() < 0.4 else "the")
        words += [one("kind")] if rng.random() < 0.4 else []
        words.append(one("what"))
    if rng.random() < 0.3:
        words.append(one("where"))
    if rng.random() < 0.25:
        words.append(one("when"))
    return " ".join(words)


@functools.cache
def _embedded() -> tuple[str, ...]:
    rng = numpy_generator(0, "sentences")
    found: dict[str, None] = {}
    while len(found) < PUBLIC:
        found[_sentence(rng)] = None
    return tuple(found)


def public_text(name: str, folder: Path | None) -> tuple[str, ...]:
    """Load plain sentences of at least two words, without repetitions.

    Sentences that contain a digit or a mark of a tokenised corpus (`<unk>`, `@-@`, `= heading =`)
    are left out.

    Args:
        name: "sentences" for the 3,000 embedded ones, the stem of a text file, or the name of a
            folder of text files.
        folder: Where files are looked up, there or in its subfolder `lm`.

    Raises:
        DataError: There is no such text, or it has no sentence.
    """
    if name == SENTENCES:
        return _embedded()
    files = text_files(name, folder, SENTENCES)
    found = _read(tuple((path, path.stat().st_mtime_ns) for path in files))
    if not found:
        raise DataError(f"text '{name}' in {folder} has no sentence of two words")
    return found


def text_files(
    name: str, folder: Path | None, embedded: str, *, key: str = "text"
) -> tuple[Path, ...]:
    """Find a text file by its stem, or all text files of a folder.

    Args:
        name: The stem of a file or the name of a folder.
        folder: Where it is looked up, there or in its subfolder `lm`.
        embedded: The text that needs no file, for the error message.
        key: The setting that names the text, for the error message.

    Raises:
        DataError: There is none of this name.
    """
    folder = data_folder(folder, what=f"text '{name}'", use=f'{key} = "{embedded}"')
    places = [place for place in (folder / "lm", folder) if place.is_dir()]
    files: dict[str, tuple[Path, ...]] = {}
    files |= {path.stem: (path,) for place in places for path in sorted(place.glob("*.txt"))}
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        if texts := tuple(sorted(inner.glob("*.txt"))):
            files[inner.name] = texts
    if name not in files:
        raise DataError(
            f"no text '{name}' in {folder} (as {name}.txt, lm/{name}.txt or a folder of texts). "
            f"{did_you_mean(name, [*files, embedded])}"
        )
    return files[name]


@functools.lru_cache(maxsize=2)
def _read(files: tuple[tuple[Path, int], ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for path, _ in files:
        for part in re.split(r"[.!?;:\n]+", read_text(path)):
            if not re.search(r"[0-9<>@=_]", part):
                sentence = normalise(part)
                if " " in sentence:
                    found[sentence] = None
    return tuple(found)


def select_by_length(
    texts: tuple[str, ...], longest: int | None, per_length: int | None
) -> list[int]:
    """Select texts by their length.

    Args:
        texts: The texts.
        longest: The largest number of characters; None for no limit.
        per_length: How many texts of each length are kept, the first ones; None for all.

    Returns:
        The positions of the selected texts.
    """
    seen = Counter[int]()
    kept = []
    for index, size in enumerate(map(len, texts)):
        seen[size] += 1
        fits = longest is None or size <= longest
        if fits and (per_length is None or seen[size] <= per_length):
            kept.append(index)
    return kept
