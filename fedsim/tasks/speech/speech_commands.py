"""Speech Commands (Warden, 2018): recordings of one word each, in torchaudio's folder layout."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fedsim.errors import DataError
from fedsim.tasks.local_data import read_text

COMMANDS = "speech-commands"

FOLDERS = ("SpeechCommands/speech_commands_v0.02", "speech_commands_v0.02", COMMANDS, ".")
"""The folders, relative to a data folder, in which words are looked up."""

MARK = "_nohash_"
"""The text between the speaker and the number in the name of a recording."""

NOISE = "_background_noise_"
TESTED = "testing_list.txt"


def list_recordings(places: Sequence[Path]) -> list[tuple[Path, str, str, bool | None]]:
    """List the recordings WORD/SPEAKER_nohash_NUMBER.wav of the first folder that has any.

    They are ordered by the hash of WORD/FILE, so that the first utterances of a speaker are not
    those of the alphabet's first words. The order is the same on every machine and for every seed.
    Background noise is left out.

    Args:
        places: The data folders to search.

    Returns:
        For each recording its path, speaker, word, and whether the release's list names it as a
        test; None if there is no list.

    Raises:
        DataError: There are none; the message names every folder that was searched.
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
    """WORD/FILE, as the release's lists name a recording."""
    return f"{path.parent.name}/{path.name}"


def _listed(path: Path) -> frozenset[str] | None:
    """The lines of a list of recordings; None if there is no such list."""
    if not path.is_file():
        return None
    return frozenset(map(str.strip, read_text(path).splitlines()))
