"""Speech Commands as a source of utterances: torchaudio's folders, and the columns of the Hub."""

import io
from pathlib import Path

import datasets
import numpy as np
import pytest
import soundfile

from fedsim.errors import DataError
from fedsim.tasks.speech import Speech
from fedsim.tasks.speech.data import Limits, load
from fedsim.tasks.speech.local import COMMANDS
from fedsim.tasks.speech.utterances import Recordings
from fedsim.tasks.speech.voices import RATE, speak

RELEASE = "SpeechCommands/speech_commands_v0.02"
SPOKEN = [
    *("bed/0a_nohash_0", "bed/0a_nohash_1", "bed/1b_nohash_0"),
    *("go/0a_nohash_0", "go/2c_nohash_0", "yes/1b_nohash_0"),
]

EVERY = Limits()


def release(root: Path, tested: str | None = "go/2c_nohash_0.wav\n") -> Path:
    """Words of three speakers, noise, and what else the release has."""
    for number, name in enumerate(
        [*SPOKEN, "_background_noise_/hum", "_background_noise_/a_nohash_0"]
    ):
        path = root / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, speak(name.split("/")[0].strip("_"), number % 3), RATE)
    (root / "README.md").write_text("words")
    if tested is not None:
        (root / "testing_list.txt").write_text(tested)
    return root


def commands(folder: Path, limits: Limits = EVERY) -> Recordings:
    return load(COMMANDS, folder, "sentences", limits)


@pytest.mark.parametrize(
    "inner",
    [
        RELEASE,
        f"audio/{RELEASE}",
        "audio/speech_commands_v0.02",
        *(COMMANDS, f"audio/{COMMANDS}"),
        ".",
    ],
)
def test_words_are_transcripts_and_files_name_speakers(tmp_path, inner):
    root = release(tmp_path / inner)
    found = commands(tmp_path)
    assert found.texts == ("go", "bed", "go", "bed", "yes", "bed")
    assert found.speakers == ("2c", "0a", "0a", "1b", "1b", "0a")
    assert found[1].name == str(root / "bed/0a_nohash_1.wav")
    np.testing.assert_allclose(found[2].sound().numpy(), speak("go", 0), atol=1e-4)


def test_the_first_utterances_of_speakers_are_not_all_one_word(tmp_path):
    for word in ("backward", "bed", "yes"):
        (tmp_path / word).mkdir()
        for who in range(8):
            (tmp_path / word / f"{who:02d}_nohash_0.wav").touch()
    first = commands(tmp_path, Limits(utterances=1))
    assert len(set(first.speakers)) == len(first) == 8
    assert set(first.texts) == {"backward", "bed", "yes"}


def test_the_release_says_which_are_for_tests(tmp_path):
    release(tmp_path / RELEASE)
    tested, rest = commands(tmp_path).split(0.5, seed=0)
    assert tested.tolist() == [0]
    assert rest.tolist() == [1, 2, 3, 4, 5]
    some = commands(tmp_path, Limits(speakers=2, utterances=2))
    assert some.speakers == ("2c", "0a", "0a")


@pytest.mark.parametrize("tested", [None, "", "no/9f_nohash_0.wav\n"])
def test_without_a_list_tests_are_drawn(tmp_path, tested):
    release(tmp_path / RELEASE, tested)
    assert len(commands(tmp_path).split(0.5, seed=0)[0]) == 3


def test_where_no_test_utterance_is_left_tests_are_drawn(tmp_path):
    release(tmp_path / RELEASE, "yes/1b_nohash_0.wav\n")
    assert len(commands(tmp_path, Limits(speakers=2)).split(0.5, seed=0)[0]) == 2


def test_speakers_with_few_utterances_can_be_left_out(tmp_path):
    release(tmp_path)
    task = {"data": COMMANDS, "folder": tmp_path, "clients": 1}
    assert set(Speech(**task, least_utterances=3).recordings.speakers) == {"0a"}
    assert set(Speech(**task, least_utterances=2).recordings.speakers) == {"0a", "1b"}
    with pytest.raises(DataError, match=r"= 4 leaves 0 of 6 utterances.* '0a', has 3: lower it"):
        _ = Speech(**task, least_utterances=4).recordings


def test_what_is_not_there_is_told_with_every_folder(tmp_path):
    with pytest.raises(DataError, match="is looked up in a folder, and none is given"):
        load(COMMANDS, None, "sentences", EVERY)
    noise = tmp_path / RELEASE / "_background_noise_"
    noise.mkdir(parents=True)
    (noise / "a_nohash_0.wav").touch()
    with pytest.raises(DataError, match=r"WORD/SPEAKER_nohash_NUMBER\.wav") as raised:
        commands(tmp_path)
    for place in (RELEASE, "speech_commands_v0.02", COMMANDS, ""):
        assert str(tmp_path / place) in str(raised.value)
    assert "torchaudio.datasets.SPEECHCOMMANDS" in str(raised.value)
    (tmp_path / COMMANDS).mkdir()
    with pytest.raises(DataError, match=f"Did you mean '{COMMANDS}'") as raised:
        load("speech-command", tmp_path, "sentences", EVERY)
    assert str(raised.value).partition("Known: ")[2].count(COMMANDS) == 1


def test_a_list_that_cannot_be_read_is_named(tmp_path):
    root = release(tmp_path / RELEASE)
    (root / "testing_list.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"testing_list\.txt cannot be read"):
        commands(tmp_path)


def test_a_task_has_the_words_and_their_speakers(tmp_path):
    release(tmp_path)
    built = Speech(
        data=COMMANDS, folder=tmp_path, clients=2, model="deepspeech", auxiliary_fraction=0.0
    )
    truth = built.truth([0], 1, batch_size=1, steps=1)
    assert truth.text[0] in {"bed", "go", "yes"}
    assert truth.attributes["speaker"][0] in {"0a", "1b"}
    assert len(truth.inputs[0]) == truth.lengths[0] > 3


def on_the_hub(columns: dict) -> datasets.DatasetDict:
    def part(labels: list[int], who: list[str | None]) -> datasets.Dataset:
        stream = io.BytesIO()
        soundfile.write(stream, np.full(RATE, 0.1), RATE, format="WAV")
        stored = {"bytes": stream.getvalue(), "path": None}
        rows = {
            "audio": [stored] * len(labels),
            "label": labels,
            "speaker_id": who,
            **{name: [value] * len(labels) for name, value in columns.items()},
        }
        return (
            datasets.Dataset.from_dict(rows)
            .cast_column("audio", datasets.Audio(decode=False))
            .cast_column("label", datasets.ClassLabel(names=["yes", "bed", "_silence_"]))
        )

    return datasets.DatasetDict(
        {"train": part([1, 2, 0], ["0a", None, "1b"]), "test": part([0, 2], ["2c", None])}
    )


def test_the_hubs_labels_are_words_and_silence_is_left_out(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_: on_the_hub({"is_unknown": False}))
    found = load("hub:google/speech_commands/v0.02", None, "sentences", EVERY)
    assert found.texts == ("bed", "yes", "yes")
    assert found.speakers == ("0a", "1b", "2c")
    assert [one.test for one in found] == [False, False, True]
    assert found[2].sound().shape == (RATE,)


def test_other_labels_are_no_transcripts(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_: on_the_hub({}))
    with pytest.raises(DataError, match=r"expected an Audio, a transcript .* label and is_unknown"):
        load("hub:some/emotions", None, "sentences", EVERY)
