"""Recordings by name: csv files, LibriSpeech, the Hub, synthetic voices."""

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fedsim.errors import DataError
from fedsim.tasks.speech import Speech
from fedsim.tasks.speech.data import Limits, load
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.utterances import Recordings, frames
from fedsim.tasks.speech.voices import RATE, speak
from fedsim.tasks.transcripts import normalise, public_text

REAL = os.environ.get("FEDSIM_DATA")
real = pytest.mark.skipif(not REAL, reason="FEDSIM_DATA names no folder of real data sets")
EVERY = Limits()


def tone(path: Path, rate=RATE, channels=1, seconds=0.5):
    at = np.arange(int(rate * seconds)) / rate
    sound = 0.3 * np.sin(2 * np.pi * 440 * at)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.stack([sound] * channels, axis=1), rate)


def table(folder: Path, rows: list[str], header="file,speaker,transcript", rate=RATE) -> Path:
    for row in rows:
        tone(folder / row.split(",")[0], rate)
    (folder / "clips.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


ROWS = [f"clips/{k}.wav,{who},{said}" for k, (who, said) in enumerate(
    [("ann", "One two"), ("bob", "THREE"), ("ann", "it's four"), ("cy", "five six")]
)]  # fmt: skip


def recorded(folder: Path, name="clips", limits=EVERY) -> Recordings:
    return load(name, folder, "sentences", limits)


def test_a_csv_names_recordings(tmp_path):
    found = recorded(table(tmp_path / "audio", ROWS).parent)
    assert found.speakers == ("ann", "bob", "ann", "cy")
    assert found.texts == ("one two", "three", "it's four", "five six")
    assert [one.test for one in found] == [None] * len(found)
    assert found[1].sound().shape == (8000,)


def test_the_split_of_a_csv_is_kept(tmp_path):
    rows = [f"{row},{split}" for row, split in zip(ROWS, ("train", "test") * 2, strict=True)]
    found = recorded(table(tmp_path, rows, "file,speaker,transcript,split"))
    tested, rest = found.split(0.2, seed=0)
    assert tested.tolist() == [1, 3]
    assert rest.tolist() == [0, 2]


def test_other_rates_and_channels_become_one_at_16_khz(tmp_path):
    folder = table(tmp_path, ROWS)
    tone(folder / "clips/0.wav", rate=8000, channels=2)
    tone(folder / "clips/1.wav", rate=44_100)
    found = recorded(folder)
    for index in (0, 1):
        sound = found[index].sound()
        assert sound.dtype == torch.float32
        assert sound.shape == (8000,)
        torch.testing.assert_close(sound[500:-500], found[2].sound()[500:-500], atol=0.01, rtol=0)


def test_librispeechs_folders_are_read(tmp_path):
    chapter = tmp_path / "audio" / "dev" / "1688" / "142285"
    for k in range(3):
        tone(chapter / f"1688-142285-000{k}.flac")
    lines = [f"1688-142285-000{k} HE SAID {word}" for k, word in enumerate(["A", "B", "C"])]
    (chapter / "1688-142285.trans.txt").write_text("\n".join(lines) + "\n")
    found = recorded(tmp_path, "dev")
    assert found.speakers == ("1688",) * 3
    assert found.texts == ("he said a", "he said b", "he said c")
    assert len(found[2].sound()) == 8000
    (chapter / "1688-142285-0001.flac").unlink()
    load.cache_clear()
    with pytest.raises(DataError, match=r"there is no 1688-142285-0001\.flac beside it"):
        recorded(tmp_path, "dev")


def test_limits_choose_speakers_and_utterances(tmp_path):
    folder = table(
        tmp_path, [f"clips/{k}.wav,{'abc'[k % 3]},word {k % 2 * 'x'}" for k in range(12)]
    )
    found = recorded(folder, limits=Limits(speakers=2, utterances=3))
    assert found.speakers == ("a", "b") * 3
    assert torch.equal(found[2].sound(), recorded(folder)[3].sound())
    assert set(recorded(folder, limits=Limits(longest=4)).texts) == {"word"}
    assert len(recorded(folder, limits=Limits(per_length=2))) == 4
    with pytest.raises(DataError, match=r"12 utterances, of which .* leave 0; expected 3"):
        recorded(folder, limits=Limits(longest=1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "file,speaker\nclips/0.wav,ann\n",
            "has file, speaker; expected the columns file, speaker",
        ),
        ("", "has no rows; expected the columns"),
        ("file,speaker,transcript\nclips/0.wav,ann\n", "row 1 has fewer cells"),
        ("file,speaker,transcript\nclips/9.wav,ann,one\n", r"there is no recording .*9\.wav"),
        ("file,speaker,transcript\nclips/0.wav,ann,12 %\n", "utterance 0 has no word"),
        ("file,speaker,transcript\nclips/0.wav,ann,one\n", "leave 1; expected 3"),
        (b"file,speaker,transcript\n\xff\xfe,a,b\n", "cannot be read"),
    ],
)
def test_a_csv_that_is_wrong_says_how(tmp_path, content, message):
    folder = table(tmp_path, ROWS)
    (folder / "clips.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message):
        recorded(folder)


def test_a_recording_that_cannot_be_read_is_named(tmp_path):
    folder = table(tmp_path, ROWS)
    (folder / "clips/0.wav").write_bytes(b"RIFF no sound")
    soundfile.write(folder / "clips/1.wav", np.zeros((0, 1)), RATE)
    found = recorded(folder)
    with pytest.raises(DataError, match=r"0\.wav cannot be read"):
        found[0].sound()
    with pytest.raises(DataError, match=r"1\.wav holds no sound"):
        found[1].sound()


def test_data_that_is_not_there_names_the_nearest(tmp_path):
    with pytest.raises(DataError, match="Did you mean 'clips'"):
        recorded(table(tmp_path, ROWS), "clip")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "letters.csv").write_text("text,label\nhello,1\n")
    with pytest.raises(DataError, match=r"Known: clips, speech-commands, voices\.$"):
        recorded(tmp_path, "pictures")
    with pytest.raises(DataError, match=r'Use data = "voices"'):
        load("clips", None, "sentences", EVERY)
    with pytest.raises(DataError, match=r"which is not there"):
        load("clips", tmp_path / "no", "sentences", EVERY)


def hub(columns=("audio", "text", "speaker_id")):
    """A stand-in for `datasets.load_dataset`, made of 4 and 2 short recordings."""
    import io

    import datasets

    audio, text, who = columns

    def part(count):
        stored = []
        for _ in range(count):
            stream = io.BytesIO()
            soundfile.write(stream, np.full(8000, 0.1), 8000, format="WAV")
            stored.append({"bytes": stream.getvalue(), "path": None})
        return datasets.Dataset.from_dict(
            {audio: stored, text: [f"Text {'abcd'[k]}" for k in range(count)], who: [7] * count}
        ).cast_column(audio, datasets.Audio(decode=False))

    return datasets.DatasetDict({"train": part(4), "test": part(2)})


def test_a_set_of_the_hub_is_read_by_its_features(monkeypatch):
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *a: asked.append(a) or hub())
    found = load("hub:owner/set/config", None, "sentences", EVERY)
    assert asked == [("owner/set", "config")]
    assert found.speakers == ("7",) * 6
    assert found.texts[:2] == ("text a", "text b")
    assert [one.test for one in found] == [False] * 4 + [True] * 2
    torch.testing.assert_close(
        found[5].sound()[1000:-1000].mean(), torch.tensor(0.1), atol=0.01, rtol=0
    )
    assert len(found.fingerprint()) == 64


def test_the_hub_without_network_or_columns_says_so(monkeypatch):
    def unreachable(*_):
        raise ConnectionError("no route\nand more")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(DataError, match=r"ConnectionError: no route\).*cached.*under --data"):
        load("hub:a/b", None, "sentences", EVERY)
    monkeypatch.setattr("datasets.load_dataset", lambda *_: hub(("audio", "words", "speaker_id")))
    with pytest.raises(DataError, match=r"expected an Audio, a transcript"):
        load("hub:a/c", None, "sentences", EVERY)


def test_voices_read_sentences_in_turn():
    found = load("voices", None, "sentences", Limits(speakers=3, utterances=4))
    assert len(found) == 12
    assert found.speakers[:4] == ("voice000", "voice001", "voice002", "voice000")
    assert len(set(found.texts)) == 12
    assert set(found.texts) <= set(public_text("sentences", None))
    assert np.array_equal(found[4].sound().numpy(), speak(found.texts[4], 1))
    more = load("voices", None, "sentences", Limits(speakers=3, utterances=5))
    assert more.texts[:12] == found.texts
    assert more.fingerprint() != found.fingerprint()
    with pytest.raises(DataError, match=r"are to read 4000\. Lower task\.utterances"):
        load("voices", None, "sentences", Limits(speakers=4, utterances=1000))
    with pytest.raises(DataError, match=r"task\.speakers, or raise task\.longest$"):
        load("voices", None, "sentences", Limits(speakers=4, longest=2))


@pytest.mark.parametrize("seconds", [None, (0.1, 20.0)])
def test_voices_with_few_utterances_can_be_left_out(seconds):
    task = Speech(speakers=2, utterances=3, clients=1, seconds=seconds, least_utterances=3)
    assert set(task.recordings.speakers) == {"voice000", "voice001"}
    assert not any(one.dropped for one in task.recordings)
    with pytest.raises(DataError, match=r"task\.least_utterances = 4 leaves 0 of 6"):
        _ = Speech(speakers=2, utterances=3, clients=1, least_utterances=4).recordings


def test_frames_are_worked_out_once_a_process(tmp_path, monkeypatch):
    found = recorded(table(tmp_path, ROWS))
    assert recorded(tmp_path) is found
    assert frames(found[0], Features()) is frames(found[0], Features())
    assert frames(found[0], Features(kind="log-mel")) is not frames(found[0], Features())


@real
@pytest.mark.parametrize(
    ("name", "count", "speakers", "longest"),
    [
        ("librispeech_test_other", 100, 10, 22.8),
        ("librispeech_short_wav", 23, None, 4.0),
        ("fsdd", 720, 6, 3.0),
    ],
)
def test_real_recordings_load_by_name(name, count, speakers, longest):
    found = recorded(Path(REAL), name)
    assert len(found) == count
    assert speakers is None or len(set(found.speakers)) == speakers
    assert all(normalise(text) == text for text in found.texts)
    for index in range(0, count, max(1, count // 5)):
        assert 0.1 * RATE < len(found[index].sound()) < (longest + 0.1) * RATE
        assert torch.isfinite(frames(found[index], Features())).all()


@real
def test_flac_and_wav_of_a_recording_are_the_same():
    flac, wav = (recorded(Path(REAL), f"librispeech_{k}") for k in ("test_other", "short_wav"))
    at = flac.texts.index(wav.texts[0])
    assert torch.equal(flac[at].sound(), wav[0].sound())
