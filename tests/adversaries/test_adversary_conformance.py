"""Conformance names what an adversary does wrong."""

from typing import ClassVar

import pytest
import torch

from fedsim import testing
from fedsim.adversary import Adversary
from fedsim.knowledge import Knowledge
from fedsim.records import Reconstruction
from fedsim.spec import TextSpec


class Careless(Adversary):
    """Does everything wrong that can be told from outside."""

    name = "Careless One"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"lables"})
    limit: int = 3

    def reconstruct(self, seen, job):
        return Reconstruction()


class Leaky(Adversary):
    """Breaks the rules at run time."""

    name = "leaky"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"num_labels", "labels"})

    def reconstruct(self, seen, job):
        seen.know(Knowledge.HEAD_GRADIENT)["head.weight"].zero_()
        return Reconstruction(num_labels=int(torch.randint(1000, ())))


class Greedy(Adversary):
    """Asks for more than it declares."""

    name = "greedy"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"labels"})

    def reconstruct(self, seen, job):
        return Reconstruction(labels=seen.know(Knowledge.LABELS))


class Boastful(Adversary):
    """Says that it fills what it does not, and leaves out what it does."""

    name = "boastful"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"labels"})

    def fills(self):
        return frozenset({"inputs", "sequencez"})

    def reconstruct(self, seen, job):
        return Reconstruction(labels=torch.tensor([0]) * len(seen.know(Knowledge.HEAD_GRADIENT)))


class Shortsighted(Greedy):
    """Claims examples of earlier rounds that it does not ask for."""

    name = "shortsighted"
    over_history: ClassVar[bool] = True


class Elsewhere(Greedy):
    """Does not say in classes what it attacks."""

    name = "elsewhere"
    suits = ("images",)


class Silent(Greedy):
    """Cannot say what it fills."""

    name = "silent"

    def fills(self):
        raise KeyError("inputs_from")


class Fickle(Adversary):
    """Claims a field once, and the next time not."""

    name = "fickle"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"labels"})
    asked: ClassVar[int] = 0

    def reconstruct(self, seen, job):
        seen.know(Knowledge.HEAD_GRADIENT)
        type(self).asked += 1
        more = {} if self.asked > 1 else {"text": ["a"], "label_counts": {0: 1}}
        return Reconstruction(labels=torch.tensor([0]) if more else None, **more)


class Spent(Fickle):
    """Claims something once, and the next time nothing."""

    name = "spent"
    asked: ClassVar[int] = 0

    def reconstruct(self, seen, job):
        claimed = super().reconstruct(seen, job)
        return claimed if self.asked == 1 else None


class OneHot(Greedy):
    """Claims a row of scores for each example."""

    def reconstruct(self, seen, job):
        seen.know(Knowledge.HEAD_GRADIENT)
        return Reconstruction(labels=torch.eye(10)[:2])


class Beyond(Greedy):
    """Claims a class that the head does not have."""

    def reconstruct(self, seen, job):
        seen.know(Knowledge.HEAD_GRADIENT)
        return Reconstruction(labels=torch.tensor([99]))


class Listed(Greedy):
    """Claims a list where a tensor is expected."""

    def reconstruct(self, seen, job):
        seen.know(Knowledge.HEAD_GRADIENT)
        return Reconstruction(labels=[1])


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (int, ["neither"]),
        (Elsewhere, ["suits is ('images',): name classes of specs"]),
        (Silent, ["fills() raises KeyError"]),
        (Boastful, ["sequencez", "leaves out ['labels']", "fills() names 'inputs', but"]),
        (Careless, ["name is", "'limit' has no description", "unbounded", "lables"]),
        (Leaky, ["changes the observation", "global generator of torch", "same seed", "empty"]),
        (Shortsighted, ["over_history is set, and HISTORY is not needed"]),
        (Fickle, ["the same seed gives another answer"]),
        (OneHot, ["labels has shape (2, 10), expected (N,)"]),
        (Beyond, ["it claims label 99, and the head has outputs 0 to"]),
        (Listed, ["labels holds list, expected a tensor"]),
        (Spent, ["reconstruct returns NoneType"]),
        (Greedy, ["more than it declares"]),
    ],
)
def test_conformance_says_what_is_wrong(cls, words):
    complaints = testing.conformance(cls)
    for word in words:
        assert any(word in complaint for complaint in complaints), (word, complaints)


def test_a_sample_of_another_modality_is_no_trial():
    blind = type("Blind", (Greedy,), {"__doc__": "Reads texts.", "suits": (TextSpec,)})
    assert testing.conformance(blind) == []
    (said,) = testing.conformance(blind, testing.example())
    assert said == "suits leaves out ImageSpec, which the sample has: add it"
