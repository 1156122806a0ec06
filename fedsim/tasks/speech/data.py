"""Utterances with speakers and transcripts: synthetic voices, local recordings, or the Hub's."""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import importlib.util
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import HUB, installing
from fedsim.seeds import numpy_generator, torch_generator
from fedsim.tasks.hub import splits
from fedsim.tasks.local_data import data_folder
from fedsim.tasks.speech.commands import COMMANDS, words
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.sound_files import Header, decoded, header
from fedsim.tasks.speech.voices import speak
from fedsim.tasks.transcripts import lost, plain, public_text, within

__all__ = ["READABLE", "VOICES", "Limits", "Recordings", "frames", "load", "often", "samples"]

VOICES = "voices"
PACKAGES = ("jiwer", "soundfile", "tokenizers", "torchaudio")
COLUMNS = ("file", "speaker", "transcript")
SPEAKERS, EACH = 20, 12
"""Synthetic speakers, and utterances of each, where the scenario does not say."""

READABLE = 60
"""Characters of the longest sentence that a voice reads, where the scenario does not say."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Which utterances are used, None for all: so many speakers, the first so many of each
    speaker, transcripts of at most `longest` characters, at most `per_length` of each length."""

    speakers: int | None = None
    utterances: int | None = None
    longest: int | None = None
    per_length: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Recordings:
    """Utterances, whose sound is read, or spoken, when it is asked for.

    speakers, texts: one an utterance, texts plain. tests: whether each is in the source's test
    split, None where the source has none. sound(i): (n,) float32 at 16 kHz, one channel.
    content(i): bytes by which a change of the sound shows. header(i): what its file says of itself,
    None where there are no files. name(i): what a message calls it. lost: of each, the characters
    that its transcript lost when it became plain.
    """

    speakers: tuple[str, ...]
    texts: tuple[str, ...]
    sound: Callable[[int], Tensor]
    content: Callable[[int], bytes]
    tests: tuple[bool, ...] | None = None
    header: Callable[[int], Header] | None = None
    name: Callable[[int], str] = "utterance {}".format
    lost: tuple[frozenset[str], ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def split(self, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
        """Indices (int64) of the test utterances and of the rest: the source's own split, else
        the given share, drawn by the seed, where it has none or leaves one of the two empty."""
        if self.tests is not None and any(self.tests) and not all(self.tests):
            tests = torch.tensor(self.tests)
            return tests.nonzero().flatten(), (~tests).nonzero().flatten()
        order = torch.randperm(len(self), generator=torch_generator(seed, "test split"))
        count = min(max(1, round(fraction * len(self))), len(self) - 1)
        return order[:count], order[count:]

    def fingerprint(self) -> str:
        """SHA-256 of speakers, transcripts and sound."""
        digest = hashlib.sha256(repr((self.speakers, self.texts, self.tests)).encode())
        for index in range(len(self)):
            digest.update(self.content(index))
        return digest.hexdigest()


@functools.lru_cache(maxsize=2)
def load(data: str, folder: Path | None, text: str, limits: Limits) -> Recordings:
    """Utterances by name, once a process.

    data: "voices"; the stem of a csv, a folder in LibriSpeech's layout, or "speech-commands", under
    `folder` or its subfolder `audio`; or "hub:OWNER/SET[/CONFIG]", the only one that uses the
    network. text: what the voices read (`public_text`). Raises `DataError` for what is missing or
    unreadable, a package among it.
    """
    if lacking := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise DataError(f"speech needs {', '.join(lacking)}: {installing('audio')}")
    if data == VOICES:
        return _voices(text, folder, limits)
    found = _hub(data) if data.startswith(HUB) else _local(data, folder)
    for index, said in enumerate(found.texts):
        if not said:
            signs = ", ".join(sorted(found.lost[index])) or "nothing that is spoken"
            raise DataError(
                f"data '{data}': utterance {index} has no word in its transcript, but {signs}; "
                f"expected words of a-z. Spell them out, or leave out {found.name(index)}"
            )
    kept = _limited(found, limits)
    if len(kept) < 3:
        raise DataError(
            f"data '{data}' has {len(found)} utterances, of which task.speakers, task.utterances, "
            f"task.longest and task.per_length leave {len(kept)}; expected 3 at least"
        )
    return _only(found, kept)


@functools.lru_cache(maxsize=8)
def often(found: Recordings, least: int) -> Recordings:
    """Those of the speakers of whom there are so many; `DataError` where fewer than three are."""
    count = Counter(found.speakers)
    kept = [i for i, speaker in enumerate(found.speakers) if count[speaker] >= least]
    if len(kept) < 3:
        name, most = count.most_common(1)[0]
        raise DataError(
            f"task.least_utterances = {least} leaves {len(kept)} of {len(found)} utterances; "
            f"expected 3 at least. The speaker of most, '{name}', has {most}: lower it"
        )
    return _only(found, kept)


@functools.lru_cache(maxsize=4096)
def frames(recordings: Recordings, features: Features, index: int) -> Tensor:
    """Frames (T, size) of an utterance; shared, so that nobody may write to them."""
    return features.of(recordings.sound(index))


def samples(recordings: Recordings, index: int) -> int:
    """How long an utterance is at 16 kHz; decoded only where no header says."""
    if recordings.header is not None:
        return recordings.header(index).resampled
    return len(recordings.sound(index))


def _limited(found: Recordings, limits: Limits) -> list[int]:
    names = set(list(dict.fromkeys(found.speakers))[: limits.speakers])
    seen: Counter[str] = Counter()
    kept = []
    for index in within(found.texts, limits.longest, limits.per_length):
        speaker = found.speakers[index]
        seen[speaker] += 1
        if speaker in names and (limits.utterances is None or seen[speaker] <= limits.utterances):
            kept.append(index)
    return kept


def _only(found: Recordings, kept: Sequence[int]) -> Recordings:
    header = found.header
    return dataclasses.replace(
        found,
        speakers=tuple(found.speakers[i] for i in kept),
        texts=tuple(found.texts[i] for i in kept),
        tests=None if found.tests is None else tuple(found.tests[i] for i in kept),
        sound=lambda index: found.sound(kept[index]),
        content=lambda index: found.content(kept[index]),
        header=header and (lambda index: header(kept[index])),
        name=lambda index: found.name(kept[index]),
        lost=tuple(found.lost[i] for i in kept) if found.lost else (),
    )


# --- synthetic voices -----------------------------------------------------------------------


def _voices(text: str, folder: Path | None, limits: Limits) -> Recordings:
    """Sentences in an order of their own, dealt to the speakers in turn."""
    pool = public_text(text, folder)
    order = numpy_generator(0, "read aloud").permutation(len(pool)).tolist()
    shuffled = tuple(pool[i] for i in order)
    fitting = within(shuffled, limits.longest or READABLE, limits.per_length)
    speakers = limits.speakers or SPEAKERS
    count = speakers * (limits.utterances or EACH)
    if len(fitting) < count:
        raise DataError(
            f"text '{text}' has {len(fitting)} sentences of at most "
            f"{limits.longest or READABLE} characters"
            + (f", {limits.per_length} of each length" if limits.per_length else "")
            + f"; {speakers} speakers are to read {count}. Lower task.utterances or task.speakers"
        )
    texts = tuple(shuffled[i] for i in fitting[:count])

    def sound(index: int) -> Tensor:
        return torch.from_numpy(speak(texts[index], index % speakers))

    def content(index: int) -> bytes:
        # The rest of a speaker's utterances follow from the text and the same voice.
        return sound(index).numpy().tobytes() if index < speakers else b""

    names = tuple(f"voice{index % speakers:03d}" for index in range(count))
    return Recordings(names, texts, sound, content)


# --- local recordings -----------------------------------------------------------------------


def _local(name: str, folder: Path | None) -> Recordings:
    folder = data_folder(folder, what=f"data '{name}'", use='data = "voices"')
    places = [place for place in (folder / "audio", folder) if place.is_dir()]
    for place in places:
        if (place / f"{name}.csv").is_file():
            return _table(place / f"{name}.csv")
        if (place / name).is_dir() and (found := sorted((place / name).rglob("*.trans.txt"))):
            return _librispeech(found)
    if name == COMMANDS:
        said = words(places)
        return _files(said.files, said.speakers, said.texts, said.tests)
    known = [name for place in places for name in _readable(place) if folder / name not in places]
    raise DataError(
        f"no data '{name}' in {folder} (as {name}.csv or audio/{name}.csv with the columns "
        f"{', '.join(COLUMNS)}, or as a folder in LibriSpeech's layout). "
        f"{did_you_mean(name, {*known, COMMANDS, VOICES})}"
    )


def _readable(place: Path) -> Iterator[str]:
    """Names of what a folder holds in one of the two layouts."""
    for path in place.glob("*.csv"):
        with contextlib.suppress(DataError):
            _table(path)
            yield path.stem
    yield from (p.name for p in place.iterdir() if p.is_dir() and any(p.rglob("*.trans.txt")))


def _table(path: Path) -> Recordings:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not rows or not set(COLUMNS) <= rows[0].keys():
        found = ", ".join(rows[0]) if rows else "no rows"
        raise DataError(f"{path} has {found}; expected the columns {', '.join(COLUMNS)}")
    for number, row in enumerate(rows, 1):
        if None in row.values():
            raise DataError(f"{path}: row {number} has fewer cells than the header")
    files = tuple(path.parent / row["file"] for row in rows)
    tests = tuple(row["split"] == "test" for row in rows) if "split" in rows[0] else None
    return _files(
        files,
        tuple(row["speaker"] for row in rows),
        tuple(row["transcript"] for row in rows),
        tests,
    )


def _librispeech(lists: Sequence[Path]) -> Recordings:
    """SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt beside its recordings."""
    files, speakers, texts = [], [], []
    for path in lists:
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, text = line.partition(" ")
            file = next((f for f in (path.parent / f"{name}{e}" for e in (".flac", ".wav"))
                         if f.is_file()), None)  # fmt: skip
            if file is None:
                raise DataError(f"{path} tells of '{name}', and there is no {name}.flac beside it")
            files.append(file)
            speakers.append(path.parent.parent.name)
            texts.append(text)
    return _files(tuple(files), tuple(speakers), tuple(texts), None)


def _files(
    files: tuple[Path, ...],
    speakers: tuple[str, ...],
    texts: tuple[str, ...],
    tests: tuple[bool, ...] | None,
) -> Recordings:
    if missing := next((path for path in files if not path.is_file()), None):
        raise DataError(f"there is no recording {missing}")
    return Recordings(
        speakers,
        tuple(map(plain, texts)),
        sound=lambda index: decoded(files[index], str(files[index])),
        content=lambda index: files[index].read_bytes(),
        tests=tests,
        header=lambda index: header(files[index], str(files[index])),
        name=lambda index: str(files[index]),
        lost=tuple(map(lost, texts)),
    )


# --- the Hub --------------------------------------------------------------------------------


def _hub(name: str) -> Recordings:
    import datasets

    loaded = splits(
        name, f"under --data as recordings and a csv with the columns {', '.join(COLUMNS)}"
    )
    features = next(iter(loaded.values())).features
    audio = next((key for key, kind in features.items() if isinstance(kind, datasets.Audio)), None)
    # As Speech Commands has it; other labels, an emotion say, are no transcripts.
    commands = {"label", "is_unknown"} <= features.keys()
    text = next(
        (k for k in ("text", "transcript", "transcription", "sentence") if k in features),
        "label" if commands else "",
    )
    who = next((k for k in ("speaker_id", "speaker", "client_id") if k in features), "")
    if audio is None or not text or not who:
        raise DataError(
            f"data '{name}' has columns {dict(features)}; expected an Audio, a transcript (text, "
            "transcript, transcription, sentence, or label and "
            "is_unknown) and a speaker (speaker_id, speaker, client_id)"
        )
    # Decoded by soundfile, like files: the library's own decoder is a package of its own.
    parts = [part.cast_column(audio, datasets.Audio(decode=False)) for part in loaded.values()]
    whole = datasets.concatenate_datasets(parts)
    tests = tuple(key == "test" for key, part in loaded.items() for _ in range(len(part)))
    texts, speakers = list(whole[text]), list(whole[who])
    if text == "label":
        texts = [features[text].names[label] for label in texts]

    def content(index: int) -> bytes:
        stored = whole[index][audio]
        return bytes(stored["bytes"] or Path(stored["path"]).read_bytes())

    def called(index: int) -> str:
        return f"{name}, utterance {index}"

    every = Recordings(
        tuple(map(str, speakers)),
        tuple(map(plain, texts)),
        sound=lambda index: decoded(io.BytesIO(content(index)), called(index)),
        content=content,
        tests=tests,
        header=lambda index: header(io.BytesIO(content(index)), called(index)),
        name=called,
        lost=tuple(map(lost, texts)),
    )
    if text != "label":
        return every
    # Speech Commands has noise among its words: `_silence_`, by nobody.
    return _only(every, [i for i, who in enumerate(speakers) if who is not None])
