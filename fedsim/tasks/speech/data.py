"""Speech data sets: synthetic voices, local recordings, or data sets of the Hub."""

import functools
import importlib.util
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.libraries import HUB, installing
from fedsim.references import is_reference
from fedsim.seeds import numpy_generator
from fedsim.tasks.local_data import hub_splits
from fedsim.tasks.speech.local import COLUMNS, VOICES, local_recordings, own_recordings, recorded
from fedsim.tasks.speech.utterances import Recordings, Utterance
from fedsim.tasks.speech.voices import speak
from fedsim.tasks.transcripts import public_text, select_by_length

__all__ = ["READABLE", "VOICES", "Limits", "frequent_speakers", "load"]

PACKAGES = ("jiwer", "soundfile", "tokenizers", "torchaudio")
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
        data: "voices"; the stem of a csv, a folder in LibriSpeech's layout or with one subfolder
            a word, or "speech-commands", in `folder` or its subfolder `audio`; a path;
            "module:function"; or "hub:OWNER/SET[/CONFIG]", the only one that uses the network.
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
    if is_reference(data):
        found = own_recordings(data)
    else:
        found = _hub(data) if data.startswith(HUB) else local_recordings(data, folder)
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
        bounds = [f"task.{key}" for key in ("longest", "per_length") if getattr(limits, key)]
        raise DataError(
            f"text '{text}' has {len(fitting)} sentences of at most "
            f"{limits.longest or READABLE} characters"
            + (f", {limits.per_length} of each length" if limits.per_length else "")
            + f"; {speakers} speakers are to read {count}. Lower task.utterances or task.speakers"
            + (f", or raise {' or '.join(bounds)}" if bounds else "")
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


def _hub(name: str) -> Recordings:
    import datasets

    layout = f"under --data as recordings and a csv with the columns {', '.join(COLUMNS)}"
    loaded = hub_splits(name, layout)
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

        return recorded(
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
