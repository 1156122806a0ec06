"""ctc-matching of several victims in shared passes: what it finds, and who shares."""

import pytest
import torch
from support.recognised import SPEC, observed, recogniser, voice
from torch import nn

from adversaries import CTCMatching
from adversaries.speech import ctc_matching, utterance_attack
from adversaries.speech.candidates import Candidate
from adversaries.speech.ctc_matching import dummy_frames, frame_search
from adversaries.speech.ctc_matching.dummy_frames import SharedFrames
from fedsim import Knowledge, testing
from fedsim.gradients import Match
from fedsim.metrics import METRICS
from fedsim.records import Truth
from fedsim.tasks.speech.recognisers.ctc import mean_ctc_loss
from fedsim.victim import VictimModel

SHARED = CTCMatching(shared_passes=True)
FEW = CTCMatching(shared_passes=True, iterations=3, meetings=0)


def error(claimed, *utterances) -> float:
    return METRICS["mae"].score(claimed, Truth(inputs=list(utterances)), SPEC)


def of_three(*lengths, hidden: int = 256, seed: int = 0, **settings):
    """Victims of one model, and a job for each."""
    model = recogniser(hidden, seed)
    seen = [observed(model, voice(at, frames)) for at, frames in enumerate(lengths)]
    return seen, lambda: [testing.job(seed=at, **settings) for at in range(len(seen))]


def test_victims_of_a_round_share_passes_and_end_where_they_end_alone(monkeypatch):
    lengths = (5, 6, 9)
    passes, whole = [], dummy_frames.head_passes

    def counted(*given):
        passes.append(len(given[1]))
        return whole(*given)

    monkeypatch.setattr(dummy_frames, "head_passes", counted)
    seen, jobs = of_three(*lengths)
    together = SHARED.reconstruct_many(seen, jobs())
    shared = len(passes)
    assert passes[0] == 24
    alone = [CTCMatching().reconstruct(one, job) for one, job in zip(seen, jobs(), strict=True)]
    assert shared < 0.7 * (len(passes) - shared)
    for at, (ours, theirs) in enumerate(zip(together, alone, strict=True)):
        assert error(ours, voice(at, lengths[at])) < 1e-3
        assert error(theirs, voice(at, lengths[at])) < 1e-3
        assert ours.inputs[0].shape == theirs.inputs[0].shape
        assert "matched" in ours.outcomes


def test_the_shared_objective_is_that_of_each_with_its_derivative():
    seen, jobs = of_three(5, 9, 7, device="cpu")
    attack = CTCMatching(smoothness=0.1)
    each = []
    for one, job in zip(seen, jobs(), strict=True):
        candidate = attack.candidates(one, job).tried[0]
        model = one.know(Knowledge.MODEL).copy()
        model.module.eval()
        said = torch.tensor([[2, 3, 4], [5, 6], [7, 7, 2, 9]][len(each)])
        candidate = Candidate([said], candidate.lengths)
        each.append(attack._search_for(candidate, one, job, model).frames)
    victims = torch.tensor([1, 0, 2, 2, 1])
    points = 2 * torch.rand(5, 9 * 8, generator=torch.Generator().manual_seed(0)) - 1
    points.requires_grad_()
    ours = SharedFrames(each)(points, victims)
    (slope,) = torch.autograd.grad(ours.sum(), points)
    for row, victim in enumerate(victims.tolist()):
        size = 8 * (5, 9, 7)[victim]
        own = points[row : row + 1, :size].detach().requires_grad_()
        value = each[victim](own, victims)
        (expected,) = torch.autograd.grad(value.sum(), own)
        torch.testing.assert_close(ours[row], value[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(slope[row, :size], expected[0], rtol=1e-3, atol=1e-5)
        assert not slope[row, size:].any()


class SeesPadding(nn.Module):
    """A mean over time, padding included, which maps silence to silence."""

    blank = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 64, bias=False)
        self.head = nn.Linear(64, 29)

    def forward(self, inputs, lengths=None):
        hidden = self.layer(inputs)
        return self.head((hidden + hidden.mean(dim=1, keepdim=True)).tanh())


def test_a_model_that_sees_padding_has_victims_of_one_length_together(monkeypatch):
    sizes, plain = [], ctc_matching.from_starts

    def seen_sizes(searches, *given):
        sizes.append([one.size // 8 for one in searches])
        plain(searches, *given)

    monkeypatch.setattr(ctc_matching, "from_starts", seen_sizes)
    model = VictimModel(SeesPadding().train(), head="head", loss=mean_ctc_loss)
    seen = [observed(model, voice(at, frames)) for at, frames in enumerate((5, 6, 5))]
    FEW.reconstruct_many(seen, [testing.job(seed=at) for at in range(3)])
    assert sorted(sizes) == [[5, 5], [6]]


def test_what_cannot_share_passes_is_attacked_alone():
    seen, jobs = of_three(5, 6, hidden=64)
    pair = observed(recogniser(64), voice(0, 5), voice(1, 6))
    mixed = FEW.reconstruct_many([*seen, pair], [*jobs(), testing.job(seed=2)])
    assert [len(one.inputs) for one in mixed] == [1, 1, 2]
    (alone,) = FEW.reconstruct(pair, testing.job(seed=2)).inputs[:1]
    assert torch.equal(mixed[2].inputs[0], alone)
    apart = FEW.model_copy(update={"shared_passes": False})
    for ours, one, job in zip(apart.reconstruct_many(seen, jobs()), seen, jobs(), strict=True):
        assert torch.equal(ours.inputs[0], apart.reconstruct(one, job).inputs[0])


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, 8),
        ({"transcripts": ["abc"], "frames": [5]}, 8),
        ({"shared_passes": False}, 1),
        ({"layers": "all"}, 1),
        ({"masks": 4}, 1),
        ({"transcripts": ["its", "abc"]}, 1),
        ({"frames": [5, 6]}, 1),
    ],
)
def test_groups_are_formed_where_passes_are_shared(settings, size):
    assert CTCMatching(**{"shared_passes": True, **settings}).together() == size


def test_groups_are_as_many_as_memory_allows(monkeypatch):
    seen, jobs = of_three(6, 6, 6, hidden=64)
    units = sum(len(weight) for weight in seen[0].know(Knowledge.MODEL).parameters().values())
    monkeypatch.setattr(utterance_attack, "HELD", 2 * 8 * 6 * units)
    sizes, plain = [], ctc_matching.from_starts

    def seen_sizes(searches, *given):
        sizes.append(len(searches))
        plain(searches, *given)

    monkeypatch.setattr(ctc_matching, "from_starts", seen_sizes)
    FEW.reconstruct_many(seen, jobs())
    assert sizes == [2, 1]


def test_searches_restart_with_steps_and_numbers_of_starts_of_their_own(monkeypatch):
    rates, plain = [], frame_search.Adam

    def seen_rates(points, lr, schedule):
        rates.append((len(points), torch.as_tensor(lr).reshape(-1).tolist()))
        return plain(points, lr=lr, schedule=schedule)

    monkeypatch.setattr(frame_search, "Adam", seen_rates)
    seen, jobs = of_three(5, 6, 6, hidden=64, device="cpu")
    searches = []
    for at, (one, job) in enumerate(zip(seen, jobs(), strict=True)):
        model = one.know(Knowledge.MODEL).copy()
        model.module.eval()
        found = FEW._search_for(FEW.candidates(one, job).tried[0], one, job, model)
        ends = [torch.full((found.size,), float(at + 1) * step) for step in (1.0, 1.02, 1.04)]
        ends = ends[: 2 if at == 2 else 3]
        found.take(Match(ends[0], 1.0, ["steps"] * len(ends), ends, 5))
        searches.append(found)
    frame_search.from_means(searches, 1, 2, 0.6)
    apart = [float(torch.tensor([1.0, 1.02, 1.04]).std()) * scale for scale in (1, 2)]
    three, two = rates
    assert three == (6, pytest.approx(apart * 3, rel=1e-3))
    assert two[0] == 2
    assert two[1] == pytest.approx([3 * float(torch.tensor([1.0, 1.02]).std())], rel=1e-3)
    assert [one.match.evaluations for one in searches] == [5 + 6, 5 + 6, 5 + 4]


def test_a_budget_ends_one_victim_and_not_the_others():
    seen, _ = of_three(6, 6, hidden=256)
    short, long = testing.job(seed=0), testing.job(seed=1)
    short.budget = 80
    first, second = SHARED.reconstruct_many(seen, [short, long])
    assert {*first.outcomes} == {"budget"}
    assert error(second, voice(1, 6)) < 1e-3
