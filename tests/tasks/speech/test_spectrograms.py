"""Frames that can be looked at and listened to, and that no claim breaks a run by being shown."""

import io
import time
import wave

import numpy as np
import pytest
import torch
from PIL import Image
from support.small_speech import scenario
from support.tiny import rows
from support.tiny import scenario as tiny

from fedsim.engine.simulate import simulate
from fedsim.metrics import METRICS, framed
from fedsim.records import Reconstruction, Truth
from fedsim.report import write_report
from fedsim.tasks.images import Images
from fedsim.tasks.speech import Speech
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.spectrograms import (
    SECONDS,
    estimate_level,
    griffin_lim,
    log_mel_energies,
    render_frames,
    spectrogram_png,
)
from fedsim.tasks.speech.voices import RATE, speak

pytestmark = pytest.mark.usefixtures("unreported")

MODEL = {"name": "deepspeech", "hidden": 96, "recurrent": 8, "context": 4}
TASK = {"speakers": 4, "utterances": 8, "longest": 20, "model": MODEL}
WORDS = "the kettle sings on the table"


@pytest.fixture(scope="module")
def task():
    return Speech(seed=3, clients=4, **TASK)


@pytest.fixture(scope="module")
def truth(task):
    return task.truth([0], 0, batch_size=3, steps=1)


def spoken(speaker=0, text=WORDS):
    return torch.from_numpy(speak(text, speaker))


def samples(content: bytes):
    with wave.open(io.BytesIO(content)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        return torch.from_numpy(np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768.0)


def pixels(content: bytes):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


# --- sound ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "features",
    [
        Features(kind="log-mel", normalised=False),
        Features(kind="log-mel", size=40, normalised=False),
        Features(kind="log-mel", size=64, window=1024, stride=256, normalised=False),
    ],
    ids=lambda one: f"{one.size}-{one.stride}",
)
@pytest.mark.parametrize("speaker", range(3))
def test_a_sound_has_the_log_mel_energies_it_is_made_from(features, speaker):
    frames = features.of(spoken(speaker))
    heard = griffin_lim(log_mel_energies(frames, features), features)
    assert heard.dtype == torch.float32
    again = features.of(heard)
    assert again.shape == frames.shape
    spread = float((frames - frames.mean(dim=0)).abs().mean())
    assert float((again - frames).abs().mean()) < 0.15 * spread
    assert float((features.of(0.01 * torch.randn(len(heard))) - frames).abs().mean()) > spread / 2


def test_cosine_coefficients_are_turned_back_into_bands():
    mel = Features(kind="log-mel", size=40, normalised=False)
    every, some = (Features(size=size, normalised=False) for size in (40, 26))
    bands = mel.of(spoken()).double()
    torch.testing.assert_close(
        log_mel_energies(every.of(spoken()), every), bands, atol=1e-3, rtol=0
    )
    smoothed = log_mel_energies(some.of(spoken()), some)
    assert 0.05 < float((smoothed - bands).abs().mean()) < 0.5
    again = some.of(griffin_lim(smoothed, some))
    spread = float((again - again.mean(dim=0)).abs().mean())
    assert float((again - some.of(spoken())).abs().mean()) < 0.15 * spread


def test_normalised_frames_are_heard_at_a_public_level():
    features = Features(kind="log-mel", size=40)
    frames = features.of(spoken(0))
    public = estimate_level(
        features, [spoken(who, "a golden bicycle") for who in (2, 4)], "two others"
    )
    heard = griffin_lim(log_mel_energies(public.put_back(frames), features), features)
    assert float((features.of(heard) - frames).abs().mean()) < 0.15
    raw = features.model_copy(update={"normalised": False}).of(spoken(0))
    own = estimate_level(features, [spoken(0)], "the victim")
    torch.testing.assert_close(own.put_back(frames).float(), raw, atol=1e-3, rtol=0)
    assert float((public.put_back(frames) - raw).abs().mean()) > 0.1


@pytest.mark.parametrize(("settings", "frames"), [({"stride": 480}, 50), ({}, 1)])
def test_no_sound_where_windows_hardly_overlap_or_frames_are_too_few(settings, frames):
    features = Features(kind="log-mel", normalised=False, **settings)
    logs = torch.zeros(frames, 26, dtype=torch.float64)
    assert griffin_lim(logs, features) is None
    files = render_frames([logs], [logs], features, None)
    assert sorted(files) == ["about.txt", "reconstruction-1.png"]


# --- pictures -------------------------------------------------------------------------------


def test_a_picture_has_one_scale_and_low_frequencies_at_the_bottom():
    original = torch.arange(5.0, dtype=torch.float64).repeat(20, 1)
    image = pixels(spectrogram_png(original, 100 * original[:10]))
    assert image.shape == (208, 20 * 4, 3)
    brightness = image.astype(int).sum(axis=2)
    upper, lower = brightness[:101], brightness[107:]
    assert (np.diff(upper[:, 0]) <= 0).all(), "brighter upwards"
    assert len(np.unique(upper)) == 5
    assert lower[-1, 0] == upper[-1, 0], "zero is zero on both sides"
    assert (lower[:80, :40] == upper.max()).all(), "what exceeds the scale is at its end"
    assert (image[107:, 40:] == 128).all(), "grey: not claimed"


def test_bars_below_a_picture_are_the_errors_of_frames():
    logs = torch.arange(5.0, dtype=torch.float64).repeat(4, 1)
    image = pixels(spectrogram_png(logs, logs, torch.tensor([0.0, 0.5, 1.0, 9.0])))
    assert image.shape == (208 + 6 + 40, 4 * 4, 3)
    strip = np.delete(image[-40:], 20, axis=0)  # without the line that 1 reaches
    drawn = (strip != 255).any(axis=2).sum(axis=0)
    assert drawn.tolist() == [*[0] * 4, *[10] * 4, *[19] * 4, *[39] * 4]
    assert (image[-20] == 128).all()


def test_what_is_not_claimed_of_an_utterance_has_the_error_of_silence(task, truth):
    half = [one[: len(one) // 2] for one in truth.inputs]
    image = pixels(task.render(Reconstruction(inputs=half), truth)["reconstruction-1.png"])
    strip = (np.delete(image[-40:], 20, axis=0) != 255).any(axis=2)
    middle = 4 * (len(truth.inputs[0]) // 2)
    assert not strip[:, :middle].any()
    assert 10 < strip[:, middle:].sum(axis=0).mean() < 30


# --- what a run writes ----------------------------------------------------------------------


def test_claims_are_shown_beside_the_originals_they_are_matched_to(task, truth):
    claims = [one + 0.01 for one in reversed(truth.inputs)]
    files = task.render(Reconstruction(inputs=claims), truth)
    assert sorted(files) == sorted(
        ["about.txt"]
        + [f"{side}-{k}.wav" for side in ("original", "reconstruction") for k in (1, 2, 3)]
        + [f"reconstruction-{k}.png" for k in (1, 2, 3)]
    )
    for number, one in enumerate(truth.inputs, 1):
        image = pixels(files[f"reconstruction-{number}.png"]).astype(int)
        assert image.shape[1] == 4 * len(one)
        top, bottom = image[:101], image[107:208]
        assert np.abs(top - bottom).mean() < 2
        heard = [samples(files[f"{side}-{number}.wav"]) for side in ("original", "reconstruction")]
        assert len(heard[0]) == len(heard[1]) == 320 * (len(one) - 1)
        assert all(0.7 < float(each.abs().max()) <= 0.8 for each in heard)
    assert task.render(Reconstruction(inputs=claims), truth) == files
    told = files["about.txt"].decode()
    assert "those of 2 utterances that no client holds" in told
    assert "26 cosine coefficients" in told


def test_the_level_is_never_the_victims(task, truth, monkeypatch):
    heard, of = [], Features.of

    def overheard(self, sound):
        heard.append(len(sound))
        return of(self, sound)

    monkeypatch.setattr(Features, "of", overheard)
    fresh = Speech(seed=3, clients=4, **TASK)
    assert fresh.level is not None
    auxiliary = fresh.splits[1].tolist()
    assert heard == [len(fresh.recordings[i].sound()) for i in auxiliary]
    assert not set(auxiliary) & set(torch.cat(fresh.shares).tolist())
    nobody = Speech(seed=3, clients=4, **TASK, auxiliary_fraction=0.0)
    assert nobody.level.source == "16 synthetic voices"
    assert Speech(**TASK, features={"normalised": False}).level is None


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "claim",
    [
        torch.full((40, 26), NAN),
        torch.full((40, 26), INF),
        torch.zeros(0, 26),
        torch.zeros(40, 25),
        torch.zeros(40),
        torch.zeros(2, 40, 26),
        torch.tensor(3.0),
    ],
    ids=lambda one: f"{tuple(one.shape)}",
)
def test_a_claim_that_is_no_utterance_gives_no_file(task, truth, claim):
    assert task.render(Reconstruction(inputs=[claim] * 3), truth) == {}
    # Beside one that is, that one alone is shown, under the number of its original.
    files = task.render(Reconstruction(inputs=[claim, truth.inputs[1]]), truth)
    assert {name for name in files if name.endswith(".png")} == {"reconstruction-2.png"}


@pytest.mark.parametrize("value", [1e30, -1e30, 1e300, 0.0, 1.0])
def test_any_finite_claim_is_shown(task, truth, value):
    claim = torch.full((10_000, 26), value, dtype=torch.float64)
    files = task.render(Reconstruction(inputs=[claim] * 9), truth)
    assert len([name for name in files if name.startswith("reconstruction")]) == 6
    assert torch.isfinite(samples(files["reconstruction-1.wav"])).all()


def test_claims_of_whole_numbers_and_on_a_graph_are_shown(task, truth):
    claims = [torch.ones(5, 26, dtype=torch.int64), torch.ones(50, 26, requires_grad=True)]
    assert task.render(Reconstruction(inputs=claims), truth)


def test_matching_is_that_of_the_error(task, truth):
    claims = [one.clone() for one in truth.inputs[::-1]]
    claims[0] = claims[0][:9]
    found = framed(Reconstruction(inputs=claims), truth)
    assert [len(one) for one in found] == [*map(len, truth.inputs[:2]), 9]
    left = (truth.inputs[2][9:].abs().sum() / truth.inputs[2].numel()).item() / 3
    error = METRICS["mae"].score(Reconstruction(inputs=claims), truth, task.spec)
    assert error == pytest.approx(left, rel=1e-5)
    assert framed(Reconstruction(), truth) == [None] * 3
    assert framed(Reconstruction(inputs=claims), Truth()) == []


def test_many_long_utterances_cost_seconds_and_little_room():
    features = Features()
    rng = torch.Generator().manual_seed(0)
    originals = [torch.randn(2000, 26, generator=rng) for _ in range(20)]
    public = estimate_level(features, [spoken()], "one other")
    state = torch.get_rng_state()
    started = time.process_time()
    files = render_frames(originals, originals, features, public)
    assert time.process_time() - started < 30
    assert torch.equal(torch.get_rng_state(), state)
    assert len([name for name in files if name.endswith(".png")]) == 4
    heard = [samples(content) for name, content in files.items() if name.endswith(".wav")]
    assert all(len(one) <= SECONDS * RATE for one in heard)
    assert sum(map(len, files.values())) < 8 * (SECONDS * RATE * 2 + 100_000)


# --- runs and their reports -----------------------------------------------------------------


@pytest.mark.reported
def test_a_run_writes_what_its_report_plays(tmp_path):
    run = scenario(
        task={**TASK, "model": {**MODEL, "hidden": 256}}, adversaries=[{"name": "first-frames"}]
    )
    simulate(run, tmp_path / "run")
    found = [row for row in rows(tmp_path / "run") if row["metric"] == "mae"]
    assert {(row["status"], row["error"]) for row in found} == {("ok", "")}
    assert all(float(row["value"]) < 1e-3 for row in found)
    folder = tmp_path / "run" / found[0]["artifact"]
    assert (folder / "reconstruction-2.wav").is_file()
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<audio controls") == 2 * 2 * len(found)
    assert page.count("data:audio/wav;base64,") == 2 * 2 * len(found)
    assert page.count('<img src="data:image/png;base64,') == 2 * len(found)
    assert page.count("utterances that no client holds") == 1
    markdown = write_report(tmp_path / "run", "markdown").read_text()
    assert "![Reconstruction](artifacts/" in markdown
    assert "\n[Original](artifacts/" in markdown
    assert "utterances that no client holds" in markdown

    (folder / "about.txt").write_text("<script>window.hacked=1</script> [x](y)")
    page = write_report(tmp_path / "run").read_text()
    assert "&lt;script&gt;window.hacked=1" in page
    assert "<script>window.hacked" not in page
    assert "<script>" not in write_report(tmp_path / "run", "markdown").read_text()


def test_what_cannot_be_shown_is_still_scored_and_said(tmp_path, monkeypatch):
    def torn(self, claimed, truth):
        raise OSError("no room")

    monkeypatch.setattr(Images, "render", torn)
    simulate(tiny(), tmp_path / "run")
    for row in rows(tmp_path / "run"):
        assert (row["status"], row["artifact"]) == ("ok", "")
        assert row["error"] == "it cannot be shown: OSError: no room"
        assert float(row["value"]) >= 0


def test_a_browser_plays_the_sounds_without_a_network(tmp_path, task, truth, browser):
    from selenium.webdriver.support.wait import WebDriverWait

    run = scenario(task=TASK, adversaries=[{"name": "bias-signs"}])
    simulate(run, tmp_path / "run")
    folder = tmp_path / "run" / rows(tmp_path / "run")[0]["artifact"]
    files = task.render(Reconstruction(inputs=[one + 0.1 for one in truth.inputs]), truth)
    for name, content in files.items():
        (folder.parent / name).write_bytes(content)
    table = (tmp_path / "run" / "findings.csv").read_text()
    (tmp_path / "run" / "findings.csv").write_text(table.replace("/reconstruction.txt", ""))
    browser.get(write_report(tmp_path / "run").as_uri())
    heard = "return [...document.querySelectorAll('audio')].map(one => one.duration)"
    WebDriverWait(browser, 30).until(lambda page: all(page.execute_script(heard)))
    lengths = [320 * (len(one) - 1) / RATE for one in truth.inputs for _ in range(2)]
    assert browser.execute_script(heard) == pytest.approx(lengths)
    pictures = "return [...document.querySelectorAll('.sheet img')].map(one => one.naturalWidth)"
    assert browser.execute_script(pictures) == [4 * len(one) for one in truth.inputs]
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for width in (1200, 480):
        browser.set_window_size(width, 900)
        browser.refresh()
        assert browser.execute_script(wide) <= 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
