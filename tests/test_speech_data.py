"""What the speech task is made of: text, voices, recordings, frames and word pieces."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.records import Spec
from fedsim.tasks.features import Features, resampled, trimmed
from fedsim.tasks.recognisers import END
from fedsim.tasks.speech_data import Limits, Recordings, frames, load
from fedsim.tasks.transcripts import ALPHABET, plain, public_text, within
from fedsim.tasks.voices import BLOCK, PHONES, RATE, phones, speak, voice
from fedsim.tasks.wordpieces import learn

REAL = os.environ.get("FEDSIM_DATA")
real = pytest.mark.skipif(not REAL, reason="FEDSIM_DATA names no folder of real data sets")
EVERY = Limits()


def elsewhere(code: str) -> str:
    """What code prints in another process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


# --- text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("YOU DON'T MEAN THAT", "you don't mean that"),
        ("“Don’t,” she said -- twice!", "don't she said twice"),
        ("Élan, naïve ﬁsh; 24 cafés", "elan naive fish cafes"),
        ("  a ' b '' c'  ", "a b c'"),
        ("零 1984", ""),
    ],
)
def test_plain_text_is_words_of_the_alphabet(said, expected):
    assert plain(said) == expected


@given(st.text())
def test_plain_text_stays_as_it_is(said):
    once = plain(said)
    assert plain(once) == once
    assert set(once) <= {*ALPHABET, " "}
    assert once.split(" ") == once.split() or once == ""


def test_the_embedded_sentences_are_plain_distinct_and_use_every_letter():
    text = public_text("sentences", None)
    assert len(set(text)) == len(text) == 3000
    assert all(plain(sentence) == sentence for sentence in text)
    assert set("".join(text)) == {*ALPHABET, " "}


def test_text_is_found_as_a_file_or_a_folder(tmp_path):
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "novel.txt").write_text("It rained. He ran!\nIn 1812 he left; so did she\n")
    (tmp_path / "lm" / "release.txt").write_text(" = Head line = \nan <unk> word\nHe ran .\n")
    assert public_text("novel", tmp_path) == ("it rained", "he ran", "so did she")
    assert public_text("lm", tmp_path) == ("it rained", "he ran", "so did she")
    (tmp_path / "lm" / "novel.txt").write_text("Now something else\n")
    os.utime(tmp_path / "lm" / "novel.txt", ns=(1, 1))
    assert public_text("novel", tmp_path) == ("now something else",)


def test_text_that_is_not_there_is_named(tmp_path):
    (tmp_path / "novel.txt").write_text("It rained.")
    with pytest.raises(DataError, match="Did you mean 'novel'"):
        public_text("novl", tmp_path)
    with pytest.raises(DataError, match=r"--data DIR or FEDSIM_DATA"):
        public_text("novel", None)
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"odd\.txt cannot be read"):
        public_text("odd", tmp_path)
    (tmp_path / "blank.txt").write_text("one\n\n2 3\n")
    with pytest.raises(DataError, match="no sentence of two words"):
        public_text("blank", tmp_path)


def test_texts_are_chosen_by_length():
    texts = ("aa", "b", "cc", "d", "e", "ffff")
    assert within(texts, None, None) == [0, 1, 2, 3, 4, 5]
    assert within(texts, 2, None) == [0, 1, 2, 3, 4]
    assert within(texts, 2, 1) == [0, 1]
    assert within(texts, None, 2) == [0, 1, 2, 3, 5]


# --- voices ---------------------------------------------------------------------------------


def digest(sound) -> str:
    return hashlib.sha256(np.asarray(sound).tobytes()).hexdigest()


def test_a_voice_says_the_same_in_every_process():
    ours = digest(speak("zemka fixes the quilt", 5))
    assert ours == digest(speak("zemka fixes the quilt", 5))
    code = """
import hashlib
from fedsim.tasks.voices import speak
print(hashlib.sha256(speak("zemka fixes the quilt", 5).tobytes()).hexdigest())
"""
    assert elsewhere(code) == ours
    assert digest(speak("zemka fixes the quilt", 6)) != ours
    assert digest(speak("zemka fixes the quilt", 5, take=1)) != ours


@pytest.mark.parametrize("text", ["a", "hm", *public_text("sentences", None)[:3], ALPHABET])
def test_any_plain_text_can_be_spoken(text):
    sound = speak(text, 3)
    assert sound.dtype == np.float32
    assert np.isfinite(sound).all()
    assert 0.2 < np.abs(sound).max() <= 0.6
    assert len(sound) % BLOCK == 0


def test_what_has_no_sound_is_a_quiet_room():
    assert 0 < np.abs(speak("'", 3)).max() < 1e-3


def test_letters_become_known_units():
    assert set(phones(" ".join(public_text("sentences", None)))) <= PHONES.keys()
    assert phones("that chip") == ["_", "th", "ae", "-", "t", ".", "-", "t", "sh", "ih", "-", "p",
                                   "_"]  # fmt: skip
    assert phones("bottle") == phones("botl")


def peak(sound, low, high):
    """The frequency between low and high (Hz) where the spectrum's envelope is highest."""
    size = 400  # windows shorter than two pitch periods show formants, not harmonics
    windows = np.lib.stride_tricks.sliding_window_view(sound, size)[:: size // 4] * np.hanning(size)
    power = (np.abs(np.fft.rfft(windows, 4096)) ** 2).mean(axis=0)
    at = np.fft.rfftfreq(4096, 1 / RATE)
    inside = (at >= low) & (at < high)
    return float(at[inside][power[inside].argmax()])


def pitch(sound):
    """The pitch (Hz) by the autocorrelation's highest peak."""
    correlation = np.correlate(sound, sound, "full")[len(sound) :]
    lags = slice(RATE // 400, RATE // 60)
    return RATE / (lags.start + 1 + int(correlation[lags].argmax()))


@pytest.mark.parametrize("speaker", range(4))
def test_speakers_have_the_pitch_and_the_formants_that_were_drawn(speaker):
    who = voice(speaker)
    sound = speak("oooooooooooo", speaker)[RATE // 5 : -RATE // 5].astype(np.float64)
    middle = sound[len(sound) // 2 - 1200 : len(sound) // 2 + 1200]
    assert pitch(middle) == pytest.approx(who.pitch, rel=0.15)
    vowel = speak("eeeeeeeeeeee", speaker)[RATE // 5 : -RATE // 5].astype(np.float64)
    assert peak(vowel, 1500, 4500) == pytest.approx(PHONES["iy"].f2 * who.tract, rel=0.1)


def test_deep_and_high_voices_differ():
    deep, high = (
        [voice(k).pitch for k in range(0, 20, 2)],
        [voice(k).pitch for k in range(1, 20, 2)],
    )
    assert max(deep) < min(high)
    assert len({voice(k) for k in range(100)}) == 100


def test_fricatives_hiss_where_vowels_do_not():
    def above(sound, edge=4000):
        power = np.abs(np.fft.rfft(sound)) ** 2
        return float(power[np.fft.rfftfreq(len(sound), 1 / RATE) > edge].sum() / power.sum())

    assert above(speak("sssssss", 0)) > 0.5
    assert above(speak("ooooooo", 0)) < 0.05


def test_a_word_sounds_like_itself_more_than_like_another():
    features = Features()

    def heard(word, take):
        found = features.of(torch.from_numpy(speak(word, 2, take)))
        return torch.nn.functional.interpolate(found.T[None], 40, mode="linear")[0]

    words = ["kettle", "violin", "harbour", "pumpkin", "sabiel"]
    first, second = ([heard(word, take) for word in words] for take in (0, 1))
    distances = torch.stack([torch.stack([(a - b).norm() for b in second]) for a in first])
    assert distances.argmin(dim=1).tolist() == [0, 1, 2, 3, 4]


# --- frames ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mfcc", "log-mel"])
@pytest.mark.parametrize("samples", [1, 511, 512, 16_000, 16_319, 16_320])
def test_a_frame_every_twenty_milliseconds(kind, samples):
    sound = torch.randn(samples, generator=torch.Generator().manual_seed(0))
    found = Features(kind=kind).of(sound)
    assert found.shape == (1 + max(samples, 512) // 320, 26)
    assert found.dtype == torch.float32
    assert torch.isfinite(found).all()


def test_normalised_frames_have_mean_zero_and_variance_one():
    sound = torch.from_numpy(speak("the kettle", 1))
    found = Features().of(sound)
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(26), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.var(dim=0, correction=0), torch.ones(26), atol=1e-4, rtol=0)
    raw = Features(normalised=False).of(sound)
    torch.testing.assert_close((raw - raw.mean(0)) / raw.std(0, correction=0), found)


@pytest.mark.parametrize("kind", ["mfcc", "log-mel"])
def test_silence_is_finite(kind):
    assert Features(kind=kind).of(torch.zeros(4000)).abs().max() < 1e-5


def test_log_mel_finds_a_tone_in_its_band():
    """The centre of band k of 40 is at (k + 1) / 41 of 0 to 8 kHz in mel (HTK's)."""
    for band in (10, 20, 30):
        top = 2595 * np.log10(1 + 8000 / 700)
        hertz = 700 * (10 ** ((band + 1) / 41 * top / 2595) - 1)
        tone = torch.sin(2 * torch.pi * hertz * torch.arange(8000) / RATE)
        found = Features(kind="log-mel", size=40, normalised=False).of(tone)
        assert found[5:-5].argmax(dim=1).unique().tolist() == [band]


def test_mfcc_are_the_cosine_transform_of_log_mel():
    sound = torch.from_numpy(speak("harbour", 1))
    mel = Features(kind="log-mel", size=40, normalised=False).of(sound).double()
    k, n = torch.arange(26)[:, None], torch.arange(40)[None]
    basis = torch.cos(torch.pi / 40 * (n + 0.5) * k) * (2 / 40) ** 0.5
    basis[0] /= 2**0.5
    found = Features(normalised=False).of(sound).double()
    torch.testing.assert_close(found, mel @ basis.T.double(), atol=1e-3, rtol=1e-4)


def test_trimming_takes_silence_off_both_ends_only():
    loud = torch.ones(3200)
    quiet = torch.full((1600,), 0.001)
    sound = torch.cat([quiet, loud, quiet, loud, quiet, quiet])
    assert len(trimmed(sound, 40)) == 3200 + 1600 + 3200
    assert len(trimmed(sound, 70)) == len(sound)
    assert len(trimmed(torch.zeros(999), 40)) == 999
    assert len(Features(trim=40).of(sound)) == 1 + 8000 // 320


def test_bands_too_many_for_the_window_are_refused():
    with pytest.raises(DataError, match=r"features\.size = 128 mel bands are too many"):
        Features(kind="log-mel", size=128, window=256).of(torch.zeros(4000))


def test_without_torchaudio_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setattr(libraries, "torchaudio", lambda: None)
    with pytest.raises(DataError, match=r"pip install 'fedsim\[audio\]'"):
        resampled(torch.zeros(100), 8000)


def test_missing_packages_are_named_before_anything_is_loaded(monkeypatch):
    for name in ("jiwer", "torchaudio"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=r"speech needs jiwer, torchaudio: pip install 'fedsim\["):
        load("voices", None, "sentences", Limits(speakers=5, utterances=1))


@pytest.mark.parametrize("error", ["OSError", "RuntimeError"])
def test_frames_need_none_of_torchaudios_compiled_parts(error):
    """error: what loading them raises beside a torch of another CUDA version, or without CUDA."""
    code = f"""
import hashlib, torch
def load_library(path):
    raise {error}("no such extension")
torch.ops.load_library = load_library
from fedsim.tasks.features import Features
from fedsim.tasks.voices import speak
frames = Features().of(torch.from_numpy(speak("kettle", 1)))
print(hashlib.sha256(frames.numpy().tobytes()).hexdigest())
"""
    assert elsewhere(code) == digest(Features().of(torch.from_numpy(speak("kettle", 1))))


# --- sources --------------------------------------------------------------------------------


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
    assert found.tests is None
    assert found.sound(1).shape == (8000,)


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
        sound = found.sound(index)
        assert sound.dtype == torch.float32
        assert sound.shape == (8000,)
        torch.testing.assert_close(sound[500:-500], found.sound(2)[500:-500], atol=0.01, rtol=0)


def test_librispeechs_folders_are_read(tmp_path):
    chapter = tmp_path / "audio" / "dev" / "1688" / "142285"
    for k in range(3):
        tone(chapter / f"1688-142285-000{k}.flac")
    lines = [f"1688-142285-000{k} HE SAID {word}" for k, word in enumerate(["A", "B", "C"])]
    (chapter / "1688-142285.trans.txt").write_text("\n".join(lines) + "\n")
    found = recorded(tmp_path, "dev")
    assert found.speakers == ("1688",) * 3
    assert found.texts == ("he said a", "he said b", "he said c")
    assert len(found.sound(2)) == 8000
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
    assert torch.equal(found.sound(2), recorded(folder).sound(3))
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
        found.sound(0)
    with pytest.raises(DataError, match=r"1\.wav holds no sound"):
        found.sound(1)


def test_data_that_is_not_there_names_the_nearest(tmp_path):
    with pytest.raises(DataError, match="Did you mean 'clips'"):
        recorded(table(tmp_path, ROWS), "clip")
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
    assert found.tests == (False,) * 4 + (True,) * 2
    torch.testing.assert_close(
        found.sound(5)[1000:-1000].mean(), torch.tensor(0.1), atol=0.01, rtol=0
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
    assert np.array_equal(found.sound(4).numpy(), speak(found.texts[4], 1))
    more = load("voices", None, "sentences", Limits(speakers=3, utterances=5))
    assert more.texts[:12] == found.texts
    assert more.fingerprint() != found.fingerprint()
    with pytest.raises(DataError, match=r"are to read 4000\. Lower task\.utterances"):
        load("voices", None, "sentences", Limits(speakers=4, utterances=1000))


def test_frames_are_worked_out_once_a_process(tmp_path, monkeypatch):
    found = recorded(table(tmp_path, ROWS))
    assert recorded(tmp_path) is found
    assert frames(found, Features(), 0) is frames(found, Features(), 0)
    assert frames(found, Features(kind="log-mel"), 0) is not frames(found, Features(), 0)


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
    assert all(plain(text) == text for text in found.texts)
    for index in range(0, count, max(1, count // 5)):
        assert 0.1 * RATE < len(found.sound(index)) < (longest + 0.1) * RATE
        assert torch.isfinite(frames(found, Features(), index)).all()


@real
def test_flac_and_wav_of_a_recording_are_the_same():
    flac, wav = (recorded(Path(REAL), f"librispeech_{k}") for k in ("test_other", "short_wav"))
    at = flac.texts.index(wav.texts[0])
    assert torch.equal(flac.sound(at), wav.sound(0))


# --- word pieces ----------------------------------------------------------------------------


def spec(pieces) -> Spec:
    return Spec(len(pieces.names), pieces=pieces.names)


def test_the_commonest_pairs_become_pieces():
    pieces = learn(("aba aba", "aba aba", "cab cab"), 32)
    assert pieces.names[END] == "<end>"
    assert set(pieces.names[1:29]) == {*ALPHABET, "▁"}
    # "ab" six times; then "▁" before "ab", and "a" after it, four times each.
    assert pieces.names[29:] == ("ab", "aba", "▁aba") or pieces.names[29:] == ("ab", "▁ab", "▁aba")
    assert len(pieces.encode("aba aba")) == 3


def test_encoding_and_spelling_are_inverse():
    text = public_text("sentences", None)
    pieces = learn(text, 256)
    for sentence in (*text[:200], "words never seen, all't'same".replace(",", ""), "z"):
        labels = pieces.encode(sentence)
        assert labels.dtype == torch.int64
        assert labels[-1] == END
        assert (labels[:-1] != END).all()
        assert spec(pieces).spell(labels.tolist()) == sentence


def test_spelling_stops_at_the_end_and_passes_over_what_is_no_label():
    pieces = learn(public_text("sentences", None), 64)
    labels = pieces.encode("the mill").tolist()
    assert spec(pieces).spell([-100, 9999, *labels, *pieces.encode("more")]) == "the mill"
    assert spec(pieces).spell([]) == ""
    with pytest.raises(ValueError, match="no text"):
        Spec(3).spell([1])


def test_pieces_are_the_same_in_every_process():
    text = public_text("sentences", None)
    code = """
from fedsim.tasks.transcripts import public_text
from fedsim.tasks.wordpieces import learn
print(*learn(public_text("sentences", None), 300).names)
"""
    assert elsewhere(code).split(" ") == list(learn(text, 300).names)
    assert learn(text, 300) is learn(text, 300)


def test_frequencies_are_those_of_the_text():
    text = public_text("sentences", None)[:200]
    pieces = learn(text, 100)
    counts = torch.bincount(torch.cat([pieces.encode(one) for one in text]), minlength=100)
    torch.testing.assert_close(pieces.frequencies, counts / counts.sum())


def test_more_pieces_than_the_text_has_are_refused():
    with pytest.raises(DataError, match=r"vocabulary = 5000, and the text gives \d+ word pieces"):
        learn(public_text("sentences", None), 5000)


@real
def test_sixteen_thousand_pieces_of_real_text():
    text = public_text("gutenberg_novels", Path(REAL))
    assert len(text) > 50_000
    pieces = learn(text, 16_384)
    assert len(set(pieces.names)) == 16_384
    assert spec(pieces).spell(pieces.encode("call me ishmael")) == "call me ishmael"
    assert len(pieces.encode("the captain of the ship")) == 6
    found = load("voices", Path(REAL), "gutenberg_novels", Limits(40, 1, longest=50, per_length=2))
    assert max(map(len, found.texts)) <= 50
    assert len(found.sound(0)) > RATE // 4
