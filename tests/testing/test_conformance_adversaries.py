"""What the conformance check says of adversaries."""

import pytest
import torch
from pydantic import Field

from fedsim import testing
from fedsim.adversary import PLANNED, Adversary
from fedsim.knowledge import Knowledge
from fedsim.records import Reconstruction
from fedsim.scenario.settings import AttackPlan


def test_an_adversary_may_wear_out_its_private_model():
    class Negating(Adversary):
        """Names the class with the largest weights, and negates them."""

        name = "negating"
        needs = Knowledge.GRADIENT | Knowledge.MODEL
        recovers = frozenset({"label_set"})

        def reconstruct(self, seen, job):
            model = seen.know(Knowledge.MODEL)
            weight = model.module.get_parameter(f"{model.head}.weight")
            found = int(weight.sum(dim=1).argmax())
            with torch.no_grad():
                weight.neg_()
            return Reconstruction(label_set=frozenset({found}))

    assert testing.conformance(Negating) == []


def test_an_adversary_that_keeps_something_on_itself_or_exits_is_told_so():
    class Keeping(Adversary):
        """Names class 0."""

        name = "keeping"
        needs = Knowledge.GRADIENT
        recovers = frozenset({"label_set"})

        def reconstruct(self, seen, job):
            self.seen = seen.know(Knowledge.GRADIENT)

    class Leaving(Keeping):
        """Ends the process."""

        def reconstruct(self, seen, job):
            raise SystemExit(seen.know(Knowledge.GRADIENT) and 3)

    (complaint,) = testing.conformance(Keeping)
    assert "seen: Instance is frozen: an adversary is frozen, so keep nothing on self" in complaint
    (complaint,) = testing.conformance(Leaving)
    assert "it raises SystemExit: 3" in complaint


def test_no_setting_has_the_name_of_a_key_of_the_scenario():
    assert {*AttackPlan.model_fields} == PLANNED

    class Late(Adversary):
        """Claims nothing, from some round on."""

        name = "late"
        needs = Knowledge.GRADIENT
        recovers = frozenset({"label_set"})
        rounds: int = Field(default=3, ge=1)
        """First round."""

        def reconstruct(self, seen, job):
            return Reconstruction(label_set=frozenset())

    assert any("setting 'rounds' cannot be set" in one for one in testing.conformance(Late))


class Guessing(Adversary):
    """Guesses a score for each class, for up to four victims at once."""

    name = "guessing"
    needs = Knowledge.GRADIENT
    recovers = frozenset({"label_scores"})
    group = 4

    def reconstruct(self, seen, job):
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(self, seen, jobs):
        for one in seen:
            one.know(Knowledge.GRADIENT)
        return [Reconstruction(label_scores=torch.rand(10, generator=job.rng)) for job in jobs]


class Mixed(Guessing):
    """Gives every victim the claim about another one."""

    def reconstruct_many(self, seen, jobs):
        return super().reconstruct_many(seen, jobs)[::-1]


class Shared(Guessing):
    """Draws for all victims from one generator."""

    def reconstruct_many(self, seen, jobs):
        return super().reconstruct_many(seen, jobs[:1] * len(jobs))


class Short(Guessing):
    """Leaves the last victim out."""

    def reconstruct_many(self, seen, jobs):
        return super().reconstruct_many(seen, jobs[: max(1, len(jobs) - 1)])


class Crowded(Guessing):
    """Fails for more than one victim."""

    def reconstruct_many(self, seen, jobs):
        (job,) = jobs
        return super().reconstruct_many(seen, [job])


class Worldly(Guessing):
    """Takes from PyTorch's own generator, and wears the gradient out, for more than one."""

    def reconstruct_many(self, seen, jobs):
        found = super().reconstruct_many(seen, jobs)
        if len(jobs) > 1:
            torch.rand(1)
            next(iter(seen[0].gradient.values())).neg_()
        return found


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Guessing, []),
        (Mixed, ["claims something else than reconstruct does"]),
        (Shared, ["claims something else than reconstruct does"]),
        (Short, ["returns [Reconstruction] for two victims"]),
        (Crowded, ["reconstruct_many raises ValueError"]),
        (Worldly, ["reconstruct_many changes an observation", "global generator of torch"]),
    ],
)
def test_a_group_must_give_each_victim_what_it_gets_alone(cls, words):
    complaints = testing.conformance(cls)
    assert len(complaints) == len(words), complaints
    for word in words:
        assert any(word in complaint for complaint in complaints), (word, complaints)
