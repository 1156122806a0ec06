"""Recordings and transcripts that are odd or wrong: what a user is told, and what is refused."""

import builtins
import csv
import sys

import numpy as np
import pytest
import soundfile
import torch
from support.tiny import rows

from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import DataError, ScenarioError
from fedsim.scenario import Scenario
from fedsim.tasks.speech import Speech
from fedsim.tasks.speech.data import Limits, load
from fedsim.tasks.speech.features import Features, Header, decode, read_header
from fedsim.tasks.speech.voices import RATE
from fedsim.tasks.transcripts import dropped_characters, normalise

pytestmark = pytest.mark.usefixtures("unreported")

MODELS = {
    "las": {"name": "las", "encoder": 6, "attention": 6, "embedding": 6, "decoder": 12,
            "projection": 10},
    "deepspeech": {"name": "deepspeech", "hidden": 16, "recurrent": 8, "context": 2},
}  # fmt: skip


def noise(samples: int, channels: int = 1, seed: int = 0):
    return 0.1 * np.random.default_rng(seed).standard_normal((samples, channels))


@pytest.fixture
def set_of(tmp_path):
    """Writes a set of eight sound recordings of a second, and of what else is given."""

    def make(*more, header=("file", "speaker", "transcript")):
        rows = [(f"{k}.wav", "abcd"[k % 4], "one two", noise(RATE, seed=k), RATE) for k in range(8)]
        with (tmp_path / "clips.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for name, speaker, transcript, sound, rate in [*rows, *more]:
                writer.writerow((name, speaker, transcript))
                if isinstance(sound, bytes):
                    (tmp_path / name).write_bytes(sound)
                else:
                    soundfile.write(tmp_path / name, sound, rate)
        load.cache_clear()
        return tmp_path

    return make


def scenario(folder, model="las", **task):
    return Scenario.parse(
        {
            "name": "odd",
            "data_dir": str(folder),
            "seed": 3,
            "task": {
                "name": "speech",
                "data": "clips",
                "vocabulary": 64,
                "model": MODELS[model],
                "test_examples": 1,
                "auxiliary_fraction": 0.0,
                **task,
            },
            "training": {
                "algorithm": "fedsgd", "rounds": 3, "clients": 4, "batch_size": 1, "lr": 0.01
            },
            "adversaries": [{"name": "bias-signs"}],
            "engine": {"workers": 1},
        },
    )  # fmt: skip


def warned(folder, model="las", **task):
    return preflight(scenario(folder, model, **task))[1]


def test_recordings_that_are_as_they_should_be_are_not_talked_of(set_of):
    assert warned(set_of()) == []
    assert Speech(speakers=4, utterances=4, clients=4).cautions() == []


# --- the form of a recording ----------------------------------------------------------------


def test_other_rates_are_resampled_and_said(set_of):
    folder = set_of(
        ("slow.wav", "a", "three", noise(8000), 8000),
        ("cd.wav", "b", "four", noise(44_100), 44_100),
    )
    (told,) = warned(folder)
    assert told == "2 of 10 recordings are resampled to 16000 Hz, from 8000 Hz, 44100 Hz"
    found = load("clips", folder, "sentences", Limits())
    for index in (8, 9):
        assert len(found[index].sound()) == RATE
        assert found[index].header().resampled == RATE
        assert found[index].header().frames(Features()) == len(Features().of(found[index].sound()))


def test_channels_are_averaged_and_said(set_of):
    (told,) = warned(set_of(("stereo.wav", "a", "three", noise(RATE, channels=2), RATE)))
    assert told == "1 of 9 recordings have several channels, which are averaged"


@pytest.mark.parametrize("samples", [2, 100, 511])
def test_a_clip_shorter_than_a_window_is_filled_up_and_said(set_of, samples):
    folder = set_of(("click.wav", "a", "three", noise(samples), RATE))
    (told,) = warned(folder)
    assert told.startswith("1 of 9 recordings are shorter than a window of 512 samples and filled")
    assert told.endswith("click.wav")
    heard = Features().of(load("clips", folder, "sentences", Limits())[8].sound())
    assert heard.shape == (2, 26)
    assert torch.isfinite(heard).all()


@pytest.mark.parametrize("value", [0.0, 0.25])
def test_silence_is_said_and_its_frames_are_finite(set_of, value):
    folder = set_of(("still.wav", "a", "three", np.full((RATE, 1), value), RATE))
    (told,) = warned(folder)
    assert told.startswith("1 of the first recordings are silent")
    assert told.endswith("still.wav")
    heard = Features().of(load("clips", folder, "sentences", Limits())[8].sound())
    assert torch.isfinite(heard).all()
    assert torch.isfinite(Features(trim=40.0).of(torch.zeros(RATE))).all()


@pytest.mark.parametrize("model", ["las", "deepspeech"])
def test_a_run_with_a_silent_and_a_short_clip_goes_on(set_of, tmp_path, model):
    folder = set_of(
        ("still.wav", "a", "three", np.zeros((RATE, 1)), RATE),
        ("click.wav", "b", "a", noise(100), RATE),
    )
    run = scenario(folder, model)
    simulate(run, tmp_path / "run")
    utility = rows(tmp_path / "run", "utility.csv")
    losses = [float(row["value"]) for row in utility if row["metric"] == "loss"]
    assert losses
    assert all(np.isfinite(losses))
    assert {row["status"] for row in rows(tmp_path / "run")} == {"ok"}


def test_what_is_odd_about_a_large_set_is_said_of_its_first_recordings(set_of, monkeypatch):
    from fedsim.tasks.speech import checks as speech_checks

    folder = set_of(*((f"x{k}.wav", "a", "three", noise(800), 8000) for k in range(5)))
    monkeypatch.setattr(speech_checks, "LOOKED_AT", 10)
    monkeypatch.setattr(speech_checks, "DECODED", 0)
    (told,) = warned(folder)
    assert told.startswith("2 of the first 10 recordings are resampled")


# --- transcripts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept", "gone"),
    [
        ("Well, it's DÉJÀ vu!", "well it's deja vu", ""),
        ("42 % of 7", "of", "%247"),
        ("straße & søn", "stra e s n", "&ßø"),
        ("mail me @ home – it costs £5 (or so)…", "mail me home it costs or so", "5@£"),
        ("привет one", "one", "привет"),
    ],
)
def test_what_has_no_place_in_a_transcript_and_is_spoken_is_known(text, kept, gone):
    assert normalise(text) == kept
    assert dropped_characters(text) == frozenset(gone)


def test_transcripts_with_other_characters_lose_them_and_that_is_said(set_of):
    folder = set_of(
        ("x.wav", "z", "chapter 42", noise(RATE), RATE), ("y.wav", "z", "ten %", noise(RATE), RATE)
    )
    (told,) = warned(folder)
    assert told.startswith("2 of 10 transcripts have characters that are left out (%, 2, 4)")
    assert load("clips", folder, "sentences", Limits()).texts[8:] == ("chapter", "ten")
    assert warned(folder, speakers=4) == []


def test_a_transcript_of_other_characters_alone_is_refused_by_name(set_of):
    folder = set_of(("x.wav", "a", "42", noise(RATE), RATE))
    with pytest.raises(
        DataError, match=r"utterance 8 has no word .*but 2, 4; .*leave out .*x\.wav"
    ):
        preflight(scenario(folder))
    with pytest.raises(DataError, match="but nothing that is spoken"):
        preflight(scenario(set_of(("x.wav", "a", "...", noise(RATE), RATE))))


def test_a_transcript_too_long_for_its_recording_is_refused_before_the_run(set_of):
    folder = set_of(
        ("x.wav", "a", "stop it now", noise(100), RATE), ("y.wav", "b", "aaa", noise(512), RATE)
    )
    with pytest.raises(
        DataError,
        match=r"x\.wav has 2 frames, and its transcript 'stop it now' takes 11 .*would be infinite "
        r"\(recordings like it: 2\)\. Use a smaller task\.features\.stride than 320",
    ):
        preflight(scenario(folder, "deepspeech"))
    # Three equal characters take five frames: as many as there are at a smaller stride.
    preflight(scenario(folder, "deepspeech", longest=7, features={"stride": 100}))
    assert len(warned(folder)) == 1, "word pieces need no frame each"


def test_a_transcript_too_long_for_a_voice_is_refused_as_well():
    run = Scenario.parse(
        {
            "task": {
                "name": "speech",
                "model": "deepspeech",
                "features": {"stride": 4000},
            },
            "training": {"clients": 2},
        }
    )
    with pytest.raises(DataError, match=r"utterance \d+ has \d+ frames, .*would be infinite"):
        preflight(run)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"seconds": [2.0, 1.0]}, r"expected the lower number first\.$"),
        ({"cut": True}, r"or leave out task\.cut\.$"),
    ],
)
def test_lengths_that_make_no_sense_are_told_without_the_whole_task(task, said):
    with pytest.raises(ScenarioError, match=said):
        Scenario.parse({"task": {"name": "speech", **task}}).build_task()


def test_frames_are_counted_after_trimming(set_of, monkeypatch):
    from fedsim.tasks.speech import checks as speech_checks

    click = np.concatenate([noise(1600), np.zeros((RATE, 1))])
    folder = set_of(("x.wav", "a", "stop it now", click, RATE))
    assert warned(folder, "deepspeech") == []
    said = r"x\.wav has 6 frames \(task\.features\.trim is 40\), and its transcript .* takes 11 "
    with pytest.raises(DataError, match=said):
        preflight(scenario(folder, "deepspeech", features={"trim": 40.0}))
    monkeypatch.setattr(speech_checks, "DECODED", 0)
    (told,) = warned(folder, "deepspeech", features={"trim": 40.0})
    assert told.startswith(
        "0 of 9 recordings were decoded and trimmed (task.features.trim): others"
    )
    assert warned(folder, features={"trim": 40.0}) == [], "word pieces need no frame each"


def test_where_all_are_heard_after_trimming_nothing_is_said(set_of):
    assert warned(set_of(), "deepspeech", features={"trim": 40.0}) == []


@pytest.mark.parametrize("trim", [None, 40.0])
def test_seconds_are_those_before_trimming_and_that_is_said(set_of, trim):
    told = warned(set_of(), seconds=[0.5, 2.0], features={"trim": trim} if trim else {})
    assert [one.split(" is the length")[0] for one in told] == ["task.seconds"] * bool(trim)


# --- files that cannot be read --------------------------------------------------------------


def test_an_unknown_codec_names_the_package_and_what_it_reads(set_of):
    folder = set_of(("x.m4a", "a", "three", b"\0\0\0 ftypM4A " + bytes(400), RATE))
    said = r"x\.m4a cannot be read: .*soundfile .* reads WAV, FLAC, OGG.*convert it"
    with pytest.raises(DataError, match=said):
        preflight(scenario(folder))
    for read in (decode, read_header):
        with pytest.raises(DataError, match="clip cannot be read"):
            read(folder / "x.m4a", "clip")


def test_a_recording_that_is_cut_off_is_refused_and_one_of_unknown_length_is_not(tmp_path):
    path, samples = tmp_path / "x.wav", np.zeros(8000, np.float32)
    soundfile.write(path, samples, RATE)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut off: it states 16000 bytes .* and holds 7978"):
        decode(path, "clip")
    data = whole.index(b"data") + 4
    path.write_bytes(whole[:data] + b"\xff\xff\xff\xff" + whole[data + 4 :])
    assert len(decode(path, "clip")) == len(samples)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError, r"recordings need soundfile: pip install -e '\.\[audio\]' in"),
        (OSError, r"no libsndfile.*--force-reinstall soundfile"),
    ],
)
def test_a_missing_library_is_named(set_of, monkeypatch, error, said):
    folder = set_of()
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "soundfile":
            raise error("sndfile library not found")
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "soundfile")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=said):
        decode(folder / "0.wav", "clip")


@pytest.mark.parametrize(
    ("given", "resampled", "frames"),
    [
        (Header(16_000, 1, 16_000), 16_000, 51),
        (Header(8000, 2, 1), 2, 2),
        (Header(44_100, 1, 44_101), 16_001, 51),
    ],
)
def test_headers_tell_the_frames(given, resampled, frames):
    assert given.resampled == resampled
    assert given.frames(Features()) == frames
