"""gm-bow, and the problem that it solves."""

import dataclasses

import pytest
import torch
from support.spellers import PIECES, generator, recogniser, utterance
from torch import Tensor

from adversaries import GMBoW
from fedsim import plugin, testing
from fedsim.adversary import Adversary
from fedsim.errors import NotGranted, ScenarioError
from fedsim.gradients import (
    Adam,
    Comparison,
    LabelBag,
    Restarts,
    Rules,
    SequenceProblem,
    minimise,
    rank_of,
)
from fedsim.knowledge import Knowledge
from fedsim.plugin import find, make
from fedsim.records import END, Reconstruction
from fedsim.victim import VictimModel

DECODER = {"*head.*": 1.0, "*projection.*": 1.0}


def fed(model: VictimModel, target: Tensor, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Context vectors, and the gradient of a decoder that is fed them."""
    shape = (1, target.shape[1], model.module.context_size)
    contexts = torch.randn(shape, generator=generator(seed))
    gradient = model.gradient(contexts, target, at="context")
    return contexts, {name: value.detach() for name, value in gradient.items()}


def problem(
    model: VictimModel,
    gradient: dict[str, Tensor],
    bag: list[int],
    length: int,
    parameters=DECODER,
    **given,
):
    return SequenceProblem(
        model,
        gradient,
        model.head,
        bag=LabelBag(torch.tensor(bag), length, END),
        rng=generator(),
        comparison=Comparison(parameters=parameters),
        **given,
    )


class FromBiases(Adversary):
    """Stands in for rlg: labels whose bias the gradient pulls up, and the head's rank."""

    name = "rlg"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"label_set", "num_labels"})

    def reconstruct(self, seen, job):
        head = seen.know(Knowledge.HEAD_GRADIENT)
        found = frozenset((head[f"{seen.head}.bias"] < 0).nonzero().flatten().tolist())
        rank = rank_of(head[f"{seen.head}.weight"], sums=False)
        return Reconstruction(label_set=found, num_labels=rank)


class Mute(FromBiases):
    """Claims nothing."""

    def reconstruct(self, seen, job):
        return Reconstruction()


@pytest.fixture
def standing_in(monkeypatch):
    """`rlg` is the stand-in, and `mute` says nothing."""
    stand_ins = {"rlg": FromBiases, "mute": Mute}
    monkeypatch.setattr(plugin, "find", lambda kind, n: stand_ins.get(n) or find(kind, n))


# The attack


@pytest.mark.parametrize("said", [[3, 17, 8, 25], [4, 11, 4, 29]], ids=["distinct", "repeated"])
def test_a_transcript_is_recovered_in_order(standing_in, said):
    seen = utterance(said, seed=1)
    claimed = GMBoW().reconstruct(seen, testing.job())
    assert claimed.sequences[0].tolist() == claimed.labels.tolist() == [*said, END]
    assert claimed.num_labels == 5
    assert claimed.label_counts == {k: [*said, END].count(k) for k in {*said, END}}
    assert claimed.objective < 1e-8
    assert "matched" in claimed.outcomes
    bag = len({*said, END})
    assert claimed.diagnostics["variables"] == 5 * (5 + bag), "S coefficients, and the bag, a step"


def test_without_a_claimed_length_it_is_the_rank_and_other_attacks_will_do():
    seen = utterance([3, 17, 8])
    claimed = GMBoW(labels_from="bias-signs").reconstruct(seen, testing.job())
    assert claimed.diagnostics["length_from"] == "rank"
    assert claimed.sequences[0].tolist() == [3, 17, 8, END]


def test_a_head_gradient_of_full_rank_still_has_a_label_and_says_so():
    seen = utterance([3, 17, 8])
    noise = torch.randn(seen.gradient[f"{seen.head}.weight"].shape, generator=generator(3))
    filled = dataclasses.replace(
        seen, gradient={**seen.gradient, f"{seen.head}.weight": noise.double()}
    )
    attack = GMBoW(labels_from="bias-signs")
    assert attack.bag(seen, testing.job())[1:] == (4, "rank")
    assert attack.bag(filled, testing.job())[1:] == (1, "full rank")


def test_given_labels_are_used_as_a_bag_alone():
    seen = utterance([3, 17, 8])
    turned = dataclasses.replace(seen, labels=torch.tensor([[8, 3, END, 17, -100]]))
    attack = GMBoW(labels_from="given")
    one, other = (attack.reconstruct(x, testing.job()) for x in (seen, turned))
    assert torch.equal(one.labels, other.labels)
    assert one.num_labels == 4
    with pytest.raises(NotGranted, match="LABELS"):
        attack.reconstruct(
            dataclasses.replace(seen, granted=Knowledge.GRADIENT | Knowledge.MODEL), testing.job()
        )


def test_without_the_bag_all_labels_are_searched():
    seen = utterance([3, 17])
    attack = GMBoW(labels_from="given", restrict=False, starts=1)
    claimed = attack.reconstruct(seen, testing.job(budget=3))
    assert claimed.diagnostics["bag"] == PIECES
    assert claimed.diagnostics["variables"] == 3 * (3 + PIECES)


@pytest.mark.parametrize("normalise", ["all", "set"])
def test_the_papers_variant_descends_from_free_context_vectors(normalise):
    seen = utterance([3, 17, 8])
    attack = GMBoW(variant="paper", labels_from="given", normalise=normalise, starts=2, spread=0.1)
    claimed = attack.reconstruct(seen, testing.job(budget=160))
    assert claimed.diagnostics["variables"] == 4 * (16 + 4)
    # With "set" the gradient is another one than the client's: some distance is left.
    assert claimed.objective < {"all": 0.1, "set": 0.25}[normalise] * claimed.trace[0][1]
    # What it claims is chosen by the distance alone, however much the penalty counts on the way.
    strict = attack.model_copy(update={"penalty": 1e4})
    punished = strict.reconstruct(seen, testing.job(budget=160))
    assert punished.trace[0][1] > 1e4 > 1e3 * punished.objective


def test_the_papers_variant_matches_the_whole_decoder_and_ours_what_is_behind_the_attention():
    seen, whole = utterance([3, 17]), {"speller.*": 1.0}

    def found(variant, parameters):
        attack = GMBoW(variant=variant, labels_from="given", starts=1, parameters=parameters)
        return attack.reconstruct(seen, testing.job(budget=20)).objective

    assert found("paper", None) == found("paper", whole) != found("paper", DECODER)
    assert found("span", None) == found("span", DECODER) != found("span", whole)


def test_the_papers_variant_ends_when_its_transcript_stays():
    attack = GMBoW(variant="paper", labels_from="given", starts=2, unchanged=5, lr=1e-6)
    job = testing.job()
    claimed = attack.reconstruct(utterance([3, 17]), job)
    assert claimed.outcomes == ("stalled", "stalled")
    assert job.iterations == 2 * 6


def test_it_keeps_to_its_budget_and_more_starts_are_never_worse():
    seen = utterance([3, 17, 8])
    job = testing.job(budget=10)
    claimed = GMBoW(labels_from="given").reconstruct(seen, job)
    assert job.iterations <= 10 + 5
    assert set(claimed.outcomes) == {"budget"}
    values = [
        GMBoW(labels_from="given", starts=starts, iterations=8)
        .reconstruct(seen, testing.job())
        .objective
        for starts in (1, 4)
    ]
    assert values[1] <= values[0] * (1 + 1e-9)


def test_nothing_is_recovered_from_noise():
    seen = utterance([3, 17, 8, 21])
    rng = generator(5)
    static = {k: torch.randn(v.shape, generator=rng) for k, v in seen.gradient.items()}
    attack = GMBoW(labels_from="given", starts=1, iterations=40)
    claimed = attack.reconstruct(dataclasses.replace(seen, gradient=static), testing.job())
    assert claimed.objective > 0.1
    assert "matched" not in claimed.outcomes


def test_it_keeps_its_contract(standing_in):
    assert testing.conformance(GMBoW, utterance([3, 17])) == []


def test_it_leaves_the_model_as_it_was():
    seen = utterance([3, 17])
    before = {k: v.clone() for k, v in seen.model.module.state_dict().items()}
    for normalise in ("all", "set"):
        attack = GMBoW(labels_from="given", normalise=normalise)
        attack.reconstruct(seen, testing.job(budget=3))
    after = seen.model.module.state_dict()
    assert all(torch.equal(after[k], v) and after[k].dtype == v.dtype for k, v in before.items())
    assert all(p.grad is None for p in seen.model.module.parameters())


def test_it_refuses_what_it_cannot_read(standing_in):
    seen = utterance([3, 17])
    with pytest.raises(ValueError, match="no point 'context'"):
        GMBoW().reconstruct(testing.example(), testing.job())
    with pytest.raises(ValueError, match="batch_size = 1"):
        GMBoW().reconstruct(dataclasses.replace(seen, num_examples=4), testing.job())
    with pytest.raises(ValueError, match=r"4 local steps .* training\.local_steps = 1"):
        GMBoW().reconstruct(dataclasses.replace(seen, steps=4), testing.job())
    with pytest.raises(ValueError, match="'mute' claims no set"):
        GMBoW(labels_from="mute").reconstruct(seen, testing.job())
    with pytest.raises(ValueError, match="fits none"):
        GMBoW(parameters={"decoder.*": 1.0}).reconstruct(seen, testing.job())
    with pytest.raises(ValueError, match="has the context vectors as its input"):
        GMBoW(parameters={"*head.*": 1.0}).reconstruct(seen, testing.job())
    with pytest.raises(ScenarioError, match="restrict = true"):
        make("adversaries", "gm-bow", {"restrict": False, "normalise": "set"})


# The problem


@pytest.mark.parametrize("normalise", ["all", "set"])
def test_the_truth_is_a_solution(normalise):
    model, target = recogniser(), torch.tensor([[4, 11, 4, END]])
    contexts, gradient = fed(model, target)
    bag = torch.tensor([END, 4, 11])
    if normalise == "set":
        # The gradient that the paper's L_BoW would have: of a softmax over three labels alone.
        hot = torch.nn.functional.one_hot(target, PIECES).float()
        leaves = model.parameters()

        def logits() -> Tensor:
            before = torch.cat([torch.eye(PIECES)[None, :1], hot[:, :-1]], dim=1)
            return model.module(contexts, before, at="context")

        loss = -(hot[..., bag] * logits()[..., bag].log_softmax(dim=2)).sum(dim=2).mean()
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        gradient = dict(zip(leaves, grads, strict=True))
    every = {"speller.*": 1.0}
    free = problem(
        model, gradient, bag.tolist(), 4, penalty=1.0, normalise=normalise, parameters=every
    )
    labels = (target[0, :, None] == bag).double()
    truth = torch.cat([contexts.double().flatten(), labels.flatten()])
    points = torch.stack([truth, free.start(generator())])
    right, wrong = free(points, torch.zeros(2, dtype=torch.int64)).tolist()
    assert right < 1e-6
    assert wrong > 0.1
    assert free.read(points)[0].tolist() == target[0].tolist()
    # What P has too much is a penalty.
    truth[-12] += 0.25
    assert free(truth[None], torch.zeros(1)).item() > 0.25


def test_the_context_vectors_lie_in_the_span():
    model, target = recogniser(), torch.tensor([[4, 11, 4, 9, END]])
    contexts, gradient = fed(model, target)
    span = problem(model, gradient, [END, 4, 9, 11], 5).basis
    assert span.shape == (5, 16)
    inside = torch.linalg.lstsq(span.mT, contexts[0].double().mT)
    left = (span.mT @ inside.solution - contexts[0].double().mT).norm()
    assert float(left) < 1e-4 * float(contexts.norm())


def test_starts_together_are_what_they_are_alone():
    model, target = recogniser(), torch.tensor([[4, 11, END]])
    one = problem(model, fed(model, target)[1], [END, 4, 11], 3)
    rng = generator(3)
    points = torch.stack([one.start(rng) for _ in range(4)]).requires_grad_(True)
    together = one(points, torch.zeros(4))
    (gradient,) = torch.autograd.grad(together.sum(), points)
    for row, value, slope in zip(points.detach(), together, gradient, strict=True):
        alone = row[None].clone().requires_grad_(True)
        own = one(alone, torch.zeros(1))
        assert own.item() == pytest.approx(value.item(), rel=1e-9)
        assert torch.allclose(torch.autograd.grad(own.sum(), alone)[0][0], slope, rtol=1e-6)


# The matching loop


def test_one_match_ends_the_other_starts():
    def value(points: Tensor, _: Tensor) -> Tensor:
        return points.square().sum(dim=1)

    drawn = iter([torch.tensor([9.0]), torch.tensor([0.02]), torch.tensor([5.0])])
    [match] = minimise(
        value,
        lambda _: next(drawn),
        [testing.job()],
        lambda starts: Adam(starts, lr=0.01, schedule=lambda _: 1.0),
        [Rules(500, evaluations=1, matched=1e-5, patience=500)],
        restarts=Restarts(2, together=True),
    )
    assert match.outcomes == ["matched"]
    assert match.evaluations <= 3 * 3
