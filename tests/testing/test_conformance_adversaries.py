"""What the conformance check says of adversaries."""

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
