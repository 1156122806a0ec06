"""Recordings in local files, or from a function of the user's own."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.errors import DataError, did_you_mean
from fedsim.tasks.local_data import (
    call_loader,
    data_folder,
    files_by_label,
    find_path,
    inside_folder,
    names_in,
    not_there,
    read_rows,
    read_text,
)
from fedsim.tasks.speech.features import decode, read_header, resample
from fedsim.tasks.speech.utterances import Recordings, Utterance
from fedsim.tasks.transcripts import dropped_characters, normalise

VOICES = "voices"
COLUMNS = ("file", "speaker", "transcript")
SOUNDS = (".flac", ".mp3", ".ogg", ".wav")
"""Suffixes of sound files."""

COMMANDS = "speech-commands"

FOLDERS = ("SpeechCommands/speech_commands_v0.02", "speech_commands_v0.02", COMMANDS, ".")
"""The folders, relative to a data folder, in which words are looked up."""

MARK = "_nohash_"
"""The text between the speaker and the number in the name of a recording."""

NOISE = "_background_noise_"
TESTED = "testing_list.txt"


def local_recordings(name: str, folder: Path | None) -> Recordings:
    """Find recordings by name in the data folder, or by a path.

    Args:
        name: The stem of a csv, a folder in LibriSpeech's layout or with one subfolder a word, or
            "speech-commands"; or the path of one of the first three.
        folder: The data folder; its subfolder `audio` is searched first.

    Raises:
        DataError: There are none, or a recording is missing or outside its data set's folder.
    """
    layouts = (
        f"a csv with the columns {', '.join(COLUMNS)}, a folder in LibriSpeech's layout, or one "
        "with a subfolder a word that holds its sound files"
    )
    if (path := find_path(name, folder)) is not None:
        found = _listed(path) or _labelled(path)
        if found is None:
            raise DataError(f"data '{name}' is {path}; expected {layouts}")
        return found
    folder = data_folder(folder, what=f"data '{name}'", use=f'data = "{VOICES}"')
    places = [place for place in (folder / "audio", folder) if place.is_dir()]
    for place in places:
        found = _listed(place / f"{name}.csv") or _listed(place / name)
        if found is not None:
            return found
    if name == COMMANDS:
        return _commands(places)
    for place in places:
        if (found := _labelled(place / name)) is not None:
            return found
    if "/" in name:
        raise not_there(name, folder)
    known = [name for place in places for name in _readable(place) if folder / name not in places]
    raise DataError(
        f"no data '{name}' in {folder} or its folder audio: expected {layouts}. "
        f"{did_you_mean(name, {*known, COMMANDS, VOICES})}"
    )


def recordings_in(folder: Path) -> list[str]:
    """The names of the data sets in the data folder, sorted."""
    places = [place for place in (folder / "audio", folder) if place.is_dir()]
    listed = {name for place in places for name in _readable(place)}
    return sorted(listed | set(names_in(folder, inside="audio", endings=(), labelled=SOUNDS)))


def own_recordings(name: str) -> Recordings:
    """Call a function of the user's own that returns (samples, rate, transcript, speaker) rows.

    Args:
        name: "module:function".

    Raises:
        DataError: A row is something else.
    """
    expected = (
        "a list of (samples, rate, transcript, speaker): samples floats (n,), finite; rate "
        "an integer in Hz; transcript and speaker strings"
    )
    found = call_loader(name, expected)
    try:
        return Recordings(_sampled(f"{name}(), row {n}", *row) for n, row in enumerate(found, 1))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}() returned no recordings: {error}; expected {expected}") from error


def _sampled(name: str, samples: Any, rate: Any, text: Any, speaker: Any) -> Utterance:
    """An utterance from its samples; raises `ValueError` for what cannot be one."""
    sound = torch.tensor(np.asarray(samples, dtype=np.float32))
    if sound.ndim != 1 or not len(sound) or not bool(sound.isfinite().all()):
        raise ValueError(f"{name}: samples of shape {tuple(sound.shape)}, or not all finite")
    if not isinstance(rate, Integral) or rate < 1 or not isinstance(text, str):
        raise ValueError(f"{name}: rate {rate!r:.40}, transcript {text!r:.40}")
    return Utterance(
        str(speaker),
        normalise(text),
        sound=lambda: resample(sound, int(rate)),
        content=lambda: sound.numpy().tobytes() + str(rate).encode(),
        name=name,
        dropped=dropped_characters(text),
    )


def _listed(path: Path) -> Recordings | None:
    """Recordings with transcripts: a csv's, or those of a folder in LibriSpeech's layout."""
    if path.suffix == ".csv" and path.is_file():
        return _table(path)
    lists = sorted(path.rglob("*.trans.txt")) if path.is_dir() else []
    return _librispeech(lists) if lists else None


def _labelled(path: Path) -> Recordings | None:
    """Recordings WORD/SPEAKER_ANYTHING.wav: what is said, and who says it, by their names."""
    files = files_by_label(path, SOUNDS) if path.is_dir() else {}
    found = [
        _file(file, file.stem.partition("_")[0], word) for word in files for file in files[word]
    ]
    return Recordings(found) if found else None


def _readable(place: Path) -> Iterator[str]:
    """The names of the data sets in a folder that have one of the two layouts."""
    for path in place.glob("*.csv"):
        with contextlib.suppress(DataError):
            _table(path)
            yield path.stem
    yield from (p.name for p in place.iterdir() if p.is_dir() and any(p.rglob("*.trans.txt")))


def _table(path: Path) -> Recordings:
    rows = read_rows(path)
    if not rows or not set(COLUMNS) <= rows[0].keys():
        found = ", ".join(rows[0]) if rows else "no rows"
        raise DataError(f"{path} has {found}; expected the columns {', '.join(COLUMNS)}")
    for number, row in enumerate(rows, 1):
        if None in row.values():
            raise DataError(f"{path}: row {number} has fewer cells than the header")
    split = "split" in rows[0]
    return Recordings(
        _file(
            inside_folder(path.parent, row["file"]),
            row["speaker"],
            row["transcript"],
            row["split"] == "test" if split else None,
        )
        for row in rows
    )


def _librispeech(lists: Sequence[Path]) -> Recordings:
    """Recordings beside their transcripts: SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt."""
    found = []
    for path in lists:
        for line in read_text(path).splitlines():
            name, _, text = line.partition(" ")
            files = (inside_folder(path.parent, f"{name}{ending}") for ending in (".flac", ".wav"))
            file = next((file for file in files if file.is_file()), None)
            if file is None:
                raise DataError(f"{path} lists '{name}', and there is no {name}.flac beside it")
            found.append(_file(file, path.parent.parent.name, text))
    return Recordings(found)


def _file(path: Path, speaker: str, text: str, test: bool | None = None) -> Utterance:
    if not path.is_file():
        raise DataError(f"there is no recording {path}")
    return recorded(speaker, text, lambda: path, path.read_bytes, str(path), test)


def recorded(
    speaker: Any,
    text: str,
    source: Callable[[], Any],
    content: Callable[[], bytes],
    name: str,
    test: bool | None,
) -> Utterance:
    """Make an utterance that soundfile decodes.

    Args:
        speaker: Who speaks.
        text: The transcript.
        source: Returns a path or a stream.
        content: Returns the bytes of the file.
        name: The utterance's name in messages.
        test: Whether it is in the source's test split; None if the source has none.
    """
    return Utterance(
        str(speaker),
        normalise(text),
        sound=lambda: decode(source(), name),
        content=content,
        name=name,
        test=test,
        header=lambda: read_header(source(), name),
        dropped=dropped_characters(text),
    )


def _commands(places: Sequence[Path]) -> Recordings:
    """Recordings WORD/SPEAKER_nohash_NUMBER.wav of Speech Commands (Warden, 2018).

    They are those of the first folder that has any, ordered by the hash of WORD/FILE, so that the
    first utterances of a speaker are not those of the alphabet's first words. The order is the same
    on every machine and for every seed. Background noise is left out.

    Args:
        places: The data folders to search.

    Raises:
        DataError: There are none; the message names every folder that was searched.
    """
    roots = [place / folder for place in places for folder in FOLDERS]
    sounds = ([p for p in r.glob(f"*/?*{MARK}*.wav") if p.parent.name != NOISE] for r in roots)
    found = next(filter(None, sounds), [])
    if not found:
        raise DataError(
            f"no recording of Speech Commands (WORD/SPEAKER{MARK}NUMBER.wav) in any of "
            f"{', '.join(map(str, roots))}. torchaudio.datasets.SPEECHCOMMANDS(DIR, download=True) "
            "lays them out so: name that DIR with --data"
        )
    # The release's lists name a recording WORD/FILE.
    named = {f"{path.parent.name}/{path.name}": path for path in found}
    listed = found[0].parent.parent / TESTED
    tested = set(map(str.strip, read_text(listed).splitlines())) if listed.is_file() else None
    recordings = []
    for name in sorted(named, key=lambda name: hashlib.sha256(name.encode()).digest()):
        word, _, file = name.partition("/")
        test = None if tested is None else name in tested
        recordings.append(_file(named[name], file.partition(MARK)[0], word, test))
    return Recordings(recordings)
