"""Speech Commands (Warden, 2018): recordings of a word each, as torchaudio lays them out."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fedsim.errors import DataError
from fedsim.tasks.local_data import read_text

__all__ = ["COMMANDS", "list_recordings"]

COMMANDS = "speech-commands"

FOLDERS = ("SpeechCommands/speech_commands_v0.02", "speech_commands_v0.02", COMMANDS, ".")
"""Where the words are, below a place that is looked in."""

MARK = "_nohash_"
"""Between the speaker and a number, in the name of each recording."""

NOISE = "_background_noise_"
TESTED = "testing_list.txt"


def list_recordings(places: Sequence[Path]) -> list[tuple[Path, str, str, bool | None]]:
    """The recordings WORD/SPEAKER_nohash_NUMBER.wav of the first folder that has any.

    Each with its speaker, its word, and whether it is for tests; None where no list says so.

    In a shuffled order that is the same on every machine and for every seed, by the hash of
    WORD/FILE: the first utterances of a speaker are not those of the alphabet's first words. The
    folder's own list says which are for tests; noise is left out. Raises `DataError`, which
    names every folder that was looked in, where there are none.
    """
    roots = [place / folder for place in places for folder in FOLDERS]
    found = next(filter(None, map(_recordings, roots)), [])
    if not found:
        raise DataError(
            f"no recording of Speech Commands (WORD/SPEAKER{MARK}NUMBER.wav) in any of "
            f"{', '.join(map(str, roots))}. torchaudio.datasets.SPEECHCOMMANDS(DIR, download=True) "
            "lays them out so: name that DIR with --data"
        )
    tested = _listed(found[0].parent.parent / TESTED)
    return [
        (
            path,
            path.name.partition(MARK)[0],
            path.parent.name,
            None if tested is None else _called(path) in tested,
        )
        for path in found
    ]


def _recordings(root: Path) -> list[Path]:
    found = (path for path in root.glob(f"*/?*{MARK}*.wav") if path.parent.name != NOISE)
    return sorted(found, key=lambda path: hashlib.sha256(_called(path).encode()).digest())


def _called(path: Path) -> str:
    """WORD/FILE, as the release's lists have it."""
    return f"{path.parent.name}/{path.name}"


def _listed(path: Path) -> frozenset[str] | None:
    """The lines of a list of recordings; None where there is no such list."""
    if not path.is_file():
        return None
    return frozenset(map(str.strip, read_text(path).splitlines()))
