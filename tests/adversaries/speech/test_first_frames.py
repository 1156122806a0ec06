"""first-frames gives utterances back exactly, tells their lengths, and says when it cannot."""

import pytest
import torch
from support import recognised
from support.recognised import CLASSES, CONTEXT, FEATURES, SPEC, batch, gradient_of, voice
from support.tiny import rows

from adversaries import FirstFrames
from adversaries.speech.first_frames.overlapping import Chain
from fedsim import testing
from fedsim.engine.simulate import simulate
from fedsim.gradients import to_gradient
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS, applicable, baselines
from fedsim.records import Reconstruction, Spec, Truth, Update
from fedsim.scenario import Scenario
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.voices import speak


def recogniser(hidden: int = 96, **changes):
    return recognised.recogniser(hidden, **{"recurrent": 20, **changes})


def attacked(gradient, spec=SPEC, **settings):
    seen = testing.observation(gradient=gradient, spec=spec)
    return FirstFrames(**settings).reconstruct(seen, testing.job())


def error(claimed, *utterances) -> float:
    return METRICS["mae"].score(claimed, Truth(inputs=list(utterances)), SPEC)


@pytest.mark.parametrize("changes", [{}, {"dropout": 0.3}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("frames", [4, 9, 20])
def test_one_utterance_comes_back_exactly_without_a_model(changes, frames):
    heard = voice(frames, frames)
    assert len(heard) == frames
    claimed = attacked(gradient_of(recogniser(96, **changes), heard))
    assert [one.shape for one in claimed.inputs] == [heard.shape]
    assert claimed.inputs[0].dtype == torch.float32
    assert float((claimed.inputs[0] - heard).abs().max()) < 1e-4
    assert claimed.diagnostics["rank"] == frames
    assert claimed.diagnostics["gap"] > 1e3
    assert claimed.diagnostics["layer"] == "dense.0"


def test_it_asks_for_the_gradient_alone():
    seen = testing.observation(gradient=gradient_of(recogniser(), voice(0, 9)), spec=SPEC)
    assert seen.granted == Knowledge.GRADIENT | Knowledge.HEAD_GRADIENT
    assert FirstFrames().requires() == Knowledge.GRADIENT


def test_utterances_of_different_lengths_come_back_each_by_itself():
    heard = [voice(0, 13), voice(1, 6), voice(2, 9)]
    claimed = attacked(gradient_of(recogniser(), *heard))
    assert claimed.diagnostics["lengths"] == [6, 9, 13]
    assert claimed.diagnostics["frames left over"] == 0
    assert error(claimed, *heard) < 1e-4


@pytest.mark.parametrize("count", [2, 3])
def test_utterances_of_the_same_length_are_told_apart_by_being_normalised(count):
    heard = [voice(number, 8) for number in range(count)]
    gradient = gradient_of(recogniser(), *heard, voice(9, 6))
    claimed = attacked(gradient)
    assert claimed.diagnostics["lengths"] == [6, *[8] * count]
    assert claimed.diagnostics["not told apart"] == 0
    assert error(claimed, *heard, voice(9, 6)) < 1e-3

    mixed = attacked(gradient, normalised=False)
    assert mixed.diagnostics["not told apart"] == count - 1
    assert error(mixed, *heard, voice(9, 6)) > 0.1


@pytest.mark.parametrize("kind", ["mfcc", "log-mel"])
def test_utterances_of_the_same_length_that_are_not_normalised_stay_mixed(kind):
    features = Features(kind=kind, size=FEATURES, normalised=False)
    heard = [features.of(torch.from_numpy(speak("borrows", k)[: 320 * 7 + 160])) for k in range(2)]
    claimed = attacked(gradient_of(recogniser(), *heard))
    assert claimed.diagnostics["lengths"] == [8, 8]
    assert claimed.diagnostics["not told apart"] == 1
    assert torch.equal(*claimed.inputs)


def test_several_local_steps_leave_the_space_as_it_is():
    model, heard = recogniser(), [voice(0, 9), voice(1, 6)]
    before = {name: p.detach().clone() for name, p in model.parameters().items()}
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.05, momentum=0.5)
    for _ in range(3):
        for one in heard:
            inputs, target, lengths = batch(one)
            optimizer.zero_grad()
            model.loss(inputs, target, lengths=lengths).backward()
            optimizer.step()
    after = {name: p.detach().clone() for name, p in model.parameters().items()}
    gradient, exact = to_gradient(Update(after, "weights", steps=6, num_examples=6), before)
    assert not exact
    assert error(attacked(gradient), *heard) < 1e-3


@pytest.mark.parametrize(("said", "count"), [([0], 3), ([0, 1], 4)])
def test_an_utterance_of_several_steps_is_claimed_as_often_as_it_was_used(said, count):
    model, voices = recogniser(), [voice(0, 9), voice(1, 6)]
    heard = [voices[index] for index in said]
    gradients = [gradient_of(model, one) for one in heard * (count // len(heard))]
    mean = {name: sum(one[name] for one in gradients) / count for name in gradients[0]}
    for known, claims in ((count, count), (None, len(heard))):
        seen = testing.observation(gradient=mean, spec=SPEC, num_examples=known)
        claimed = FirstFrames().reconstruct(seen, testing.job())
        assert len(claimed.inputs) == claims
        assert claimed.diagnostics["claimed again"] == claims - len(heard)
        assert error(claimed, *(heard * (claims // len(heard)))) < 1e-3


def test_some_noise_blurs_and_much_of_it_is_refused():
    heard, errors = voice(0, 12), []
    exact = gradient_of(recogniser(), heard)
    rng = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(value.shape, generator=rng) for name, value in exact.items()}
    size = float(exact["dense.0.weight"].square().mean().sqrt())
    for level in (1e-4, 1e-3, 1e-2):
        noisy = {name: value + level * size * noise[name] for name, value in exact.items()}
        errors.append(error(attacked(noisy), heard))
    assert errors == sorted(errors)
    assert errors[0] < 0.01
    assert errors[-1] < 0.5 * float(heard.abs().mean())
    with pytest.raises(ValueError, match=r"do not fall by a factor of 2|no number of frames fits"):
        attacked(noise)


@pytest.mark.parametrize(
    ("heard", "share", "closer"),
    [([voice(0, 12)], 0.03, 0.2), ([voice(0, 7), voice(1, 11)], 0.01, 0.8)],
    ids=["one", "two"],
)
def test_a_search_under_noise_comes_closer_than_the_space_alone(heard, share, closer):
    exact = gradient_of(recogniser(), *heard)
    rng = torch.Generator().manual_seed(0)
    level = share * float(exact["dense.0.weight"].square().mean().sqrt())
    noisy = {
        name: value + level * torch.randn(value.shape, generator=rng)
        for name, value in exact.items()
    }
    alone, searched = attacked(noisy, steps=0), attacked(noisy)
    assert [len(one) for one in searched.inputs] == [len(one) for one in heard]
    assert error(searched, *heard) < closer * error(alone, *heard)
    assert searched.diagnostics["noise"] == pytest.approx(level, rel=0.1)
    assert "noise" not in alone.diagnostics
    assert "noise" not in attacked(exact).diagnostics


def test_what_was_found_of_a_batch_is_not_bent_to_explain_what_was_not():
    heard = [voice(0, 7), voice(1, 11)]
    exact = gradient_of(recogniser(), *heard)
    level = 0.013 * float(exact["dense.0.weight"].square().mean().sqrt())
    parts = 0
    for seed in (3, 4, 7, 9):
        rng = torch.Generator().manual_seed(seed)
        noise = {name: torch.randn(value.shape, generator=rng) for name, value in exact.items()}
        noisy = {name: value + level * noise[name] for name, value in exact.items()}
        alone, searched = attacked(noisy, steps=0), attacked(noisy)
        if alone.diagnostics["frames left over"]:
            parts += 1
            assert "noise" not in searched.diagnostics
            assert torch.equal(torch.cat(searched.inputs), torch.cat(alone.inputs))
    assert parts


def test_of_one_utterance_the_rank_tells_its_frames_where_others_fit_as_well():
    told, misfits = {"layer": "dense.0", "rank": 9, "gap": 5.0}, torch.full((10,), 0.9)
    misfits[6], misfits[8] = 0.4, 0.45
    assert FirstFrames()._lengths(misfits, told, alone=True) == [9]
    with pytest.raises(ValueError, match="no number of frames fits: 7 are best"):
        FirstFrames()._lengths(misfits, told, alone=False)
    misfits[8] = 0.6
    with pytest.raises(ValueError, match="no number of frames fits"):
        FirstFrames()._lengths(misfits, told, alone=True)


def test_misfits_tell_the_number_of_frames():
    heard = voice(3, 10)
    padded = torch.nn.functional.pad(heard.double(), (0, 0, CONTEXT, CONTEXT))
    windows = torch.stack([padded[t : t + 2 * CONTEXT + 1].flatten() for t in range(10)])
    basis = torch.linalg.qr(torch.cat([windows, torch.ones(10, 1)], dim=1).T).Q
    chain = Chain(torch.eye(41).double() - basis @ basis.T, FEATURES, CONTEXT, 14)
    assert int(chain.misfits.argmin()) == 9
    assert float(chain.misfits[9]) < 1e-5
    assert float(chain.misfits.topk(2, largest=False).values[1]) > 0.1
    fit = chain.fit(10)
    assert torch.allclose(fit.frames, heard.double(), atol=1e-8)
    assert len(fit.free) == 0

    # Against the same problem solved at once: the windows' misfits, linear in all frames.
    def away(frames):
        padded = torch.nn.functional.pad(frames.view(11, -1), (0, 0, CONTEXT, CONTEXT))
        rows = torch.stack([padded[t : t + 2 * CONTEXT + 1].flatten() for t in range(11)])
        rows = torch.cat([rows, torch.ones(11, 1)], dim=1)
        return (rows - rows @ basis @ basis.T).flatten()

    zero = torch.zeros(88, dtype=torch.float64)
    slope = torch.func.jacrev(away)(zero)
    best = torch.linalg.lstsq(slope, -away(zero)).solution
    assert torch.allclose(chain.fit(11).frames.flatten(), best, atol=1e-6)
    share = float(away(best).norm() / away(zero).norm())
    assert float(chain.misfits[10]) == pytest.approx(share, rel=1e-6)


def without(gradient, *names):
    return {name: value for name, value in gradient.items() if name not in names}


@pytest.fixture(scope="module")
def gradient():
    return gradient_of(recogniser(), voice(0, 9))


@pytest.mark.parametrize(
    ("change", "settings", "spec", "message"),
    [
        (lambda g: g, {}, Spec(CLASSES), "expected a task with speech"),
        (lambda g: without(g, "dense.0.bias"), {}, SPEC, r"no layer is .* odd number of frames"),
        (lambda g: g, {"layer": "dense.3"}, SPEC, r"'dense.3' is .*dense.0 \(40 inputs\)"),
        (lambda g: {k: 0 * v for k, v in g.items()}, {}, SPEC, "is zero"),
        (lambda g: {k: v / 0 for k, v in g.items()}, {}, SPEC, "NaN or Inf"),
    ],
)
def test_refuses_what_gives_no_frames(gradient, change, settings, spec, message):
    with pytest.raises(ValueError, match=message):
        attacked(change(gradient), spec, **settings)


def test_refuses_more_frames_than_it_can_tell():
    with pytest.raises(ValueError, match=r"after \d+ of 12|no number of frames fits"):
        attacked(gradient_of(recogniser(hidden=12), voice(0, 20)))
    with pytest.raises(ValueError, match=r"rank 33 of 41: with 33 frames of 8 values or more"):
        attacked(gradient_of(recogniser(), voice(0, 15), voice(1, 18)))


# --- the metric -----------------------------------------------------------------------------


def test_frames_are_matched_and_lengths_made_equal():
    one, two = torch.ones(3, 2), 2 * torch.ones(2, 2)
    truth = Truth(inputs=[one, two])

    def mae(*claims):
        return METRICS["mae"].score(Reconstruction(inputs=list(claims)), truth, SPEC)

    assert mae(one, two) == mae(two, one) == mae(two, one, one) == 0
    assert mae(one, torch.cat([two, two])) == 0
    assert mae(one[:1], two) == pytest.approx((2 / 3) / 2)
    assert mae(one) == 1
    assert mae() == mae(torch.full((3, 2), torch.nan), two[:, :1]) == 1.5

    def guess(truth, rng, *, informed):
        raise NotImplementedError

    assert baselines(METRICS["mae"], truth, SPEC, guess, 0) == (1.5, None)
    assert [m.name for m in applicable({"inputs"}, SPEC)] == ["mae", "mae_ends", "mae_middle"]
    assert "mae" not in [m.name for m in applicable({"inputs"}, Spec(3, (1, 6, 6)))]


def test_frames_at_the_ends_and_in_the_middle_are_told_apart():
    one, short = torch.ones(9, 2), torch.ones(2, 2)
    found = one.clone()
    found[:2] = 0
    truth = Truth(inputs=[one, short])

    def scores(*claims):
        claimed = Reconstruction(inputs=list(claims))
        return [METRICS[f"mae_{part}"].score(claimed, truth, SPEC) for part in ("ends", "middle")]

    assert scores(found, short) == scores(short, found) == [0.25, 0]
    assert scores(one[:2], short) == [0.25, 0.5]
    assert scores(one, short[:1]) == [0.25, 0.25]  # two frames: there is no middle
    assert scores() == [1, 1]


def test_a_federation_leaks_every_utterance(tmp_path):
    run = Scenario.parse(
        {
            "name": "frames",
            "seed": 3,
            "task": {"name": "speech", "speakers": 3, "utterances": 4, "longest": 12,
                     "test_examples": 1, "model": {"name": "deepspeech", "hidden": 200,
                                                   "recurrent": 8}},
            "training": {"algorithm": "fedsgd", "rounds": 1, "clients": 3, "clients_per_round": 1,
                         "batch_size": 1, "lr": 0.1},
            "threat": {"grants": ["GRADIENT"]},
            "adversaries": [{"name": "first-frames"}],
            "engine": {"workers": 1},
        }
    )  # fmt: skip
    simulate(run, tmp_path / "run")
    (found,) = [row for row in rows(tmp_path / "run") if row["metric"] == "mae"]
    assert found["status"] == "ok"
    assert float(found["value"]) < 1e-4
    assert float(found["baseline"]) > 0.5


@pytest.mark.parametrize("frames", [28, 30, 31])
def test_almost_as_many_frames_as_a_window_has_values_are_one_utterance(frames):
    # A window has 5 x 8 values and the bias; up to 32 frames leave a frame's 8 of them free.
    heard = voice(3, frames)
    claimed = attacked(gradient_of(recogniser(96), heard))
    assert claimed.diagnostics["lengths"] == [frames]
    assert error(claimed, heard) < 1e-3


def test_rounding_does_not_grow_along_an_utterance():
    rng = torch.Generator().manual_seed(0)
    context, features, frames = 9, 4, 60
    heard = torch.randn(frames, features, generator=rng, dtype=torch.float64)
    padded = torch.nn.functional.pad(heard, (0, 0, context, context))
    seen = padded.unfold(0, 2 * context + 1, 1).transpose(1, 2).flatten(1)
    rows = torch.cat([seen, torch.ones(frames, 1, dtype=torch.float64)], dim=1)
    # As noisy as float32 is; positive, as a projector is, but for rounding.
    rows = (torch.randn(200, frames, generator=rng, dtype=torch.float64) @ rows).float().double()
    right = torch.linalg.svd(rows, full_matrices=False).Vh[:frames]
    away = torch.eye(rows.shape[1], dtype=torch.float64) - right.T @ right
    chain = Chain(away, features, context, frames + 1)
    assert int(chain.misfits.argmin()) + 1 == frames
    assert float((chain.fit(frames).frames - heard).abs().max()) < 1e-2
