"""Speech data sets: synthetic voices, local recordings, or data sets of the Hub."""

import contextlib
import functools
import importlib.util
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import HUB, installing
from fedsim.seeds import numpy_generator
from fedsim.tasks.hub import splits
from fedsim.tasks.local_data import data_folder, read_rows, read_text
from fedsim.tasks.speech.sound_files import decode, read_header
from fedsim.tasks.speech.speech_commands import COMMANDS, list_recordings
from fedsim.tasks.speech.utterances import Recordings, Utterance
from fedsim.tasks.speech.voices import speak
from fedsim.tasks.transcripts import dropped_characters, normalise, public_text, select_by_length

__all__ = ["READABLE", "VOICES", "Limits", "frequent_speakers", "load"]

VOICES = "voices"
PACKAGES = ("jiwer", "soundfile", "tokenizers", "torchaudio")
COLUMNS = ("file", "speaker", "transcript")
SPEAKERS, EACH = 20, 12
"""The number of synthetic speakers and of utterances of each, unless the scenario says otherwise.
"""

READABLE = 60
"""The largest number of characters in a sentence that a synthetic voice reads, by default."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the utterances that are used; None for no limit.

    Attributes:
        speakers: The number of speakers.
        utterances: The number of utterances of each speaker; the first are used.
        longest: The largest number of characters in a transcript.
        per_length: The number of transcripts of each length.
    """

    speakers: int | None = None
    utterances: int | None = None
    longest: int | None = None
    per_length: int | None = None


@functools.lru_cache(maxsize=2)
def load(data: str, folder: Path | None, text: str, limits: Limits) -> Recordings:
    """Load utterances by name; cached in each process.

    Args:
        data: "voices"; the stem of a csv, a folder in LibriSpeech's layout, or "speech-commands",
            in `folder` or its subfolder `audio`; or "hub:OWNER/SET[/CONFIG]", the only one that
            uses the network.
        folder: Where local data sets are looked up.
        text: The text that synthetic voices read; see `public_text`.
        limits: Which utterances are used.

    Raises:
        DataError: The data set or a package is missing, or a recording cannot be used.
    """
    if lacking := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise DataError(f"speech needs {', '.join(lacking)}: {installing('audio')}")
    if data == VOICES:
        return _voices(text, folder, limits)
    found = _hub(data) if data.startswith(HUB) else _local(data, folder)
    for index, one in enumerate(found):
        if not one.text:
            signs = ", ".join(sorted(one.dropped)) or "nothing that is spoken"
            raise DataError(
                f"data '{data}': utterance {index} has no word in its transcript, but {signs}; "
                f"expected words of a-z. Spell them out, or leave out {one.name}"
            )
    kept = _limited(found, limits)
    if len(kept) < 3:
        raise DataError(
            f"data '{data}' has {len(found)} utterances, of which task.speakers, task.utterances, "
            f"task.longest and task.per_length leave {len(kept)}; expected 3 at least"
        )
    return kept


@functools.lru_cache(maxsize=8)
def frequent_speakers(found: Recordings, least: int) -> Recordings:
    """Keep the utterances of speakers who have at least `least` of them.

    Raises:
        DataError: Fewer than three utterances are left.
    """
    count = Counter(found.speakers)
    kept = Recordings(one for one in found if count[one.speaker] >= least)
    if len(kept) < 3:
        name, most = count.most_common(1)[0]
        raise DataError(
            f"task.least_utterances = {least} leaves {len(kept)} of {len(found)} utterances; "
            f"expected 3 at least. The speaker of most, '{name}', has {most}: lower it"
        )
    return kept


def _limited(found: Recordings, limits: Limits) -> Recordings:
    names = set(list(dict.fromkeys(found.speakers))[: limits.speakers])
    seen: Counter[str] = Counter()
    kept = []
    for index in select_by_length(found.texts, limits.longest, limits.per_length):
        speaker = found[index].speaker
        seen[speaker] += 1
        if speaker in names and (limits.utterances is None or seen[speaker] <= limits.utterances):
            kept.append(found[index])
    return Recordings(kept)


def _voices(text: str, folder: Path | None, limits: Limits) -> Recordings:
    """Sentences read by synthetic voices: shuffled, then dealt to the speakers in turn."""
    pool = public_text(text, folder)
    order = numpy_generator(0, "read aloud").permutation(len(pool)).tolist()
    shuffled = tuple(pool[i] for i in order)
    fitting = select_by_length(shuffled, limits.longest or READABLE, limits.per_length)
    speakers = limits.speakers or SPEAKERS
    count = speakers * (limits.utterances or EACH)
    if len(fitting) < count:
        raise DataError(
            f"text '{text}' has {len(fitting)} sentences of at most "
            f"{limits.longest or READABLE} characters"
            + (f", {limits.per_length} of each length" if limits.per_length else "")
            + f"; {speakers} speakers are to read {count}. Lower task.utterances or task.speakers"
        )

    def synthesised(index: int, text: str) -> Utterance:
        who = index % speakers

        def sound() -> Tensor:
            return torch.from_numpy(speak(text, who))

        # A speaker's first utterance stands for the others, which follow from text and voice.
        first = index < speakers
        return Utterance(
            f"voice{who:03d}",
            text,
            sound,
            content=lambda: sound().numpy().tobytes() if first else b"",
            name=f"utterance {index}",
        )

    return Recordings(synthesised(n, shuffled[i]) for n, i in enumerate(fitting[:count]))


def _local(name: str, folder: Path | None) -> Recordings:
    folder = data_folder(folder, what=f"data '{name}'", use='data = "voices"')
    places = [place for place in (folder / "audio", folder) if place.is_dir()]
    for place in places:
        if (place / f"{name}.csv").is_file():
            return _table(place / f"{name}.csv")
        if (place / name).is_dir() and (found := sorted((place / name).rglob("*.trans.txt"))):
            return _librispeech(found)
    if name == COMMANDS:
        return Recordings(_file(*one) for one in list_recordings(places))
    known = [name for place in places for name in _readable(place) if folder / name not in places]
    raise DataError(
        f"no data '{name}' in {folder} (as {name}.csv or audio/{name}.csv with the columns "
        f"{', '.join(COLUMNS)}, or as a folder in LibriSpeech's layout). "
        f"{did_you_mean(name, {*known, COMMANDS, VOICES})}"
    )


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
            path.parent / row["file"],
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
            file = next((f for f in (path.parent / f"{name}{e}" for e in (".flac", ".wav"))
                         if f.is_file()), None)  # fmt: skip
            if file is None:
                raise DataError(f"{path} tells of '{name}', and there is no {name}.flac beside it")
            found.append(_file(file, path.parent.parent.name, text))
    return Recordings(found)


def _file(path: Path, speaker: str, text: str, test: bool | None = None) -> Utterance:
    if not path.is_file():
        raise DataError(f"there is no recording {path}")
    return _recorded(speaker, text, lambda: path, path.read_bytes, str(path), test)


def _recorded(
    speaker: Any,
    text: str,
    source: Callable[[], Any],
    content: Callable[[], bytes],
    name: str,
    test: bool | None,
) -> Utterance:
    """An utterance that soundfile decodes; `source` returns a path or a stream."""
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


def _hub(name: str) -> Recordings:
    import datasets

    layout = f"under --data as recordings and a csv with the columns {', '.join(COLUMNS)}"
    loaded = splits(name, layout)
    features = next(iter(loaded.values())).features
    audio = next((key for key, kind in features.items() if isinstance(kind, datasets.Audio)), None)
    # These are Speech Commands' columns. Other labels, such as emotions, are no transcripts.
    commands = {"label", "is_unknown"} <= features.keys()
    text = next(
        (k for k in ("text", "transcript", "transcription", "sentence") if k in features),
        "label" if commands else "",
    )
    who = next((k for k in ("speaker_id", "speaker", "client_id") if k in features), "")
    if audio is None or not text or not who:
        raise DataError(
            f"data '{name}' has columns {dict(features)}; expected an Audio, a transcript (text, "
            "transcript, transcription, sentence, or label and is_unknown) and a speaker "
            "(speaker_id, speaker, client_id)"
        )
    # soundfile decodes them, as it does files: the library's decoder is a separate package.
    parts = [part.cast_column(audio, datasets.Audio(decode=False)) for part in loaded.values()]
    rows = datasets.concatenate_datasets(parts)
    tests = [key == "test" for key, part in loaded.items() for _ in range(len(part))]
    texts, speakers = list(rows[text]), list(rows[who])
    if text == "label":
        texts = [features[text].names[label] for label in texts]

    def hosted(index: int) -> Utterance:
        def content() -> bytes:
            stored = rows[index][audio]
            return bytes(stored["bytes"] or Path(stored["path"]).read_bytes())

        return _recorded(
            speakers[index],
            texts[index],
            lambda: io.BytesIO(content()),
            content,
            f"{name}, utterance {index}",
            tests[index],
        )

    # Speech Commands contains noise without a speaker, under the label `_silence_`.
    used = (i for i, who in enumerate(speakers) if text != "label" or who is not None)
    return Recordings(map(hosted, used))
