"""accumulate unites what another attack claims of each update, and recognises what recurs."""

import dataclasses
from typing import ClassVar

import pytest
import torch
from pydantic import ValidationError

from adversaries import Accumulate
from fedsim import testing
from fedsim.adversary import Adversary, Job
from fedsim.errors import NotGranted
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel


def perceptron() -> VictimModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = as_architecture({"name": "mlp", "hidden": [20]}).build((1, 6, 6), 10)
    return VictimModel(module, head="head", loss=cross_entropy)


def observed(*seeds: int) -> Observation:
    """The last of these random images behind a gradient, with the others as its history."""
    *earlier, last = (testing.example(1, seed, perceptron()) for seed in seeds)
    return dataclasses.replace(last, history=tuple(earlier))


def image(seed: int) -> torch.Tensor:
    return testing.batch(1, seed).inputs[0]


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-3)


class Says(Adversary):
    """Claims what it is told of the gradients of these numbers."""

    name = "says"
    needs = Knowledge(0)
    recovers = frozenset({"text"})

    claims: ClassVar[dict[int, Reconstruction]] = {}

    def reconstruct(self, seen, job):
        list(job.steps(10))
        claim = self.claims.get(int(seen.gradient["at"]))
        if claim is None:
            raise ValueError("nothing is said of it")
        return claim

    def fills(self):
        claims = self.claims.values()
        return self.recovers | frozenset(
            field.name
            for field in dataclasses.fields(Reconstruction)
            if any(getattr(claim, field.name) not in (None, {}, ()) for claim in claims)
        )


@pytest.fixture
def says(monkeypatch):
    """Sets what is claimed of each update, and returns the union."""

    def united(*claims: Reconstruction | None, job: Job | None = None, **settings):
        monkeypatch.setattr(Says, "claims", {n: c for n, c in enumerate(claims) if c is not None})
        monkeypatch.setattr(Accumulate, "parts", lambda self: {"claims_from": Says()})
        shown = [
            testing.observation(gradient={"at": torch.tensor(n)}, classes=10)
            for n in range(len(claims))
        ]
        granted = shown[-1].granted | Knowledge.HISTORY
        seen = dataclasses.replace(shown[-1], granted=granted, history=tuple(shown[:-1]))
        return Accumulate(**settings).reconstruct(seen, job or testing.job())

    return united


def test_images_of_all_rounds_come_back_and_the_one_that_recurs_comes_first():
    claimed = Accumulate(claims_from="first-linear").reconstruct(
        observed(1, 2, 3, 2), testing.job()
    )
    assert len(claimed.inputs) == 3
    assert near(claimed.inputs[0], image(2))
    assert {seed for seed in (1, 3) if any(near(one, image(seed)) for one in claimed.inputs)} == {
        1,
        3,
    }
    assert claimed.diagnostics["updates"] == 4
    assert claimed.diagnostics["claimed"] == 4


def test_without_a_history_it_claims_what_the_other_attack_does():
    seen, attack = observed(5), Accumulate(claims_from="first-linear")
    (alone,) = attack.parts()["claims_from"].reconstruct(seen, testing.job()).inputs
    (claimed,) = attack.reconstruct(seen, testing.job()).inputs
    assert torch.equal(claimed, alone)


def test_labels_follow_the_images_that_are_kept(says):
    flat = [torch.full((1, 6, 6), value) for value in (0.1, 0.5, 0.9)]
    one = Reconstruction(inputs=flat[:2], labels=torch.tensor([3, 4]), objective=0.1)
    two = Reconstruction(inputs=flat[1:], labels=torch.tensor([8, 5]), objective=0.01)
    claimed = says(one, two)
    # The image in both rounds comes first, as the attack with the lower objective claims it.
    assert claimed.labels.tolist() == [8, 5, 3]
    assert [float(each.mean()) for each in claimed.inputs] == pytest.approx([0.5, 0.9, 0.1])


def test_the_tolerance_says_which_images_are_one(says):
    claims = [
        Reconstruction(inputs=[torch.full((1, 6, 6), value)], objective=1.0)
        for value in (0.5, 0.55)
    ]
    assert len(says(*claims).inputs) == 1
    assert len(says(*claims, tolerance=0.002).inputs) == 2


def test_an_example_of_another_update_is_the_nearest_one(says):
    first, second = (
        Reconstruction(inputs=[torch.full((1, 6, 6), v) for v in values], objective=objective)
        for objective, values in ((0.1, (0.0, 0.1)), (0.2, (0.055, 0.0)))
    )
    assert [float(one.mean()) for one in says(first, second).inputs] == pytest.approx([0.0, 0.1])


def test_texts_that_differ_in_few_words_are_one_where_asked(says):
    lines = ("the cat sat on the mat", "the cat sat on a mat", "dogs bark")
    claims = [Reconstruction(text=[line]) for line in lines]
    assert says(*claims, edits=0.2).text == [lines[0], lines[2]]
    assert says(*claims).text == list(lines)


def test_tokens_are_compared_by_edits(says):
    rows = [torch.tensor(row) for row in ([5, 6, 7], [5, 6, 7, 8], [9, 9, 9])]
    claimed = says(*(Reconstruction(tokens=[row]) for row in rows), edits=0.25)
    assert [row.tolist() for row in claimed.tokens] == [[5, 6, 7], [9, 9, 9]]


@pytest.mark.parametrize(
    ("counts", "expected"), [("most", {1: 2, 4: 1, 7: 1}), ("sum", {1: 3, 4: 1, 7: 1})]
)
def test_counts_without_examples_are_united_as_asked(says, counts, expected):
    first = Reconstruction(
        labels=torch.tensor([1, 1, 7]), label_counts={1: 2, 7: 1}, label_set=frozenset({1, 7})
    )
    second = Reconstruction(
        labels=torch.tensor([1, 4]), label_counts={1: 1, 4: 1}, label_set=frozenset({1, 4})
    )
    claimed = says(first, second, counts=counts)
    assert claimed.label_counts == expected
    assert claimed.label_set == {1, 4, 7}
    assert claimed.labels.tolist() == sorted(claimed.labels.tolist())
    assert claimed.labels.bincount()[1] == expected[1]


def test_speakers_stay_with_their_utterances(says):
    claims = [
        Reconstruction(
            inputs=[torch.full((4, 3), float(n))], attributes={"speaker": [{f"s{n}": 1.0}]}
        )
        for n in (0, 1, 0)
    ]
    claimed = says(*claims)
    assert claimed.attributes == {"speaker": [{"s0": 1.0}, {"s1": 1.0}]}


def test_an_update_on_which_the_attack_fails_is_left_out(says):
    claimed = says(Reconstruction(text=["a b"]), None, Reconstruction(text=["c d"]))
    assert claimed.text == ["a b", "c d"]
    assert claimed.diagnostics["refused"] == ["nothing is said of it"]
    with pytest.raises(ValueError, match=r"says.*fails on every update.*nothing is said"):
        says(None, None)


def test_the_budget_is_shared_by_the_updates(says):
    job = testing.job(budget=9)
    says(*(Reconstruction(text=[str(n)]) for n in range(3)), job=job)
    assert job.iterations == 9


def test_labels_of_earlier_rounds_are_never_granted():
    attack = Accumulate(claims_from={"name": "dlg", "labels_from": "given"})
    with pytest.raises(NotGranted, match=r"LABELS.*not granted of earlier rounds"):
        attack.reconstruct(observed(1, 2), testing.job())
    (caution,) = attack.cautions(testing.network())
    assert "dlg needs LABELS" in caution
    assert Accumulate().cautions(testing.network()) == []


def test_needs_and_fields_are_those_of_the_other_attack():
    attack = Accumulate(claims_from="rlg")
    assert attack.requires() == Knowledge.HISTORY | Knowledge.HEAD_GRADIENT
    assert attack.fills() == {"label_set"}
    assert attack.over_history
    with pytest.raises(ValidationError, match="no threat model grants claims"):
        Accumulate(claims_from="given")
