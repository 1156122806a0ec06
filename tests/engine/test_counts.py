"""What a run costs, as counts that do not depend on the machine: encodings, decodings, passes.

A count that grows is a change of cost, which a test of seconds on a busy machine would hide.
"""

import numpy as np
import pytest
import torch
from flwr.app import Array
from support.tiny import scenario

from fedsim import testing
from fedsim.engine.simulate import simulate
from fedsim.federation.arrays import TensorArray
from fedsim.plugin import make
from fedsim.seeds import isolated
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel

QUIET = {"adversaries": [], "record": {"keep": "nothing"}}


def counted(monkeypatch, tmp_path, clients, rounds):
    """Arrays encoded and decoded in a run without attacks, of so many clients a round."""
    counts = {"encoded": 0, "decoded": 0}
    encode, decode, lazy = Array.from_numpy_ndarray, Array.numpy, TensorArray.data

    def encoding(values):
        counts["encoded"] += 1
        return encode(values)

    def decoding(self):
        counts["decoded"] += 1
        return decode(self)

    with monkeypatch.context() as patch:
        patch.setattr(Array, "from_numpy_ndarray", staticmethod(encoding))
        patch.setattr(Array, "numpy", decoding)
        patch.setattr(TensorArray, "data", property(lazy.fget, lazy.fset))
        training = {"clients": clients, "clients_per_round": clients, "rounds": rounds}
        simulate(scenario(training=training, **QUIET), tmp_path / f"{clients}-{rounds}")
    return counts


def test_rounds_in_one_process_encode_and_decode_no_array_but_the_first_weights(
    monkeypatch, tmp_path
):
    few = counted(monkeypatch, tmp_path, clients=3, rounds=2)
    many = counted(monkeypatch, tmp_path, clients=12, rounds=2)
    assert many == few
    assert counted(monkeypatch, tmp_path, clients=3, rounds=4) == few
    arrays = len(scenario().build_task().arrays(scenario().build_task().module()))
    assert all(0 < count <= 5 * arrays for count in few.values()), few


@pytest.fixture
def passes(monkeypatch):
    """Counts the forward passes of a victim's model, as rows of its first layer."""
    counted = [0]

    def model():
        with isolated(0, "model"):
            net = torch.nn.Sequential(
                torch.nn.Flatten(),
                torch.nn.Linear(64, 16),
                torch.nn.Sigmoid(),
                torch.nn.Linear(16, 10),
            )
        net[1].register_forward_hook(lambda *_: counted.__setitem__(0, counted[0] + 1))
        return VictimModel(net, head="3", loss=cross_entropy)

    return model, counted


def observed(model):
    images = torch.from_numpy(np.random.default_rng(0).random((1, 1, 8, 8), dtype=np.float32))
    labels = torch.tensor([3])
    gradient = {k: v.detach() for k, v in model.gradient(images, labels).items()}
    return testing.observation(
        gradient=gradient,
        head="3",
        spec=ImageSpec(10, (1, 8, 8)),
        model=model,
        num_examples=1,
        labels=labels,
        steps=1,
    )


@pytest.mark.parametrize(
    ("name", "settings", "most"),
    [
        ("llg", {}, 0),
        ("idlg", {}, 0),
        ("first-linear", {}, 0),
        ("feature-separation", {"labels_from": "given"}, 2),
        ("dlg", {"iterations": 20, "restarts": 0}, 50),
        ("inverting-gradients", {"iterations": 20, "restarts": 1}, 25),
    ],
)
def test_an_attack_takes_no_more_forward_passes_than_it_did(name, settings, most, passes):
    make_model, counted = passes
    seen = observed(make_model())
    counted[0] = 0
    make("adversaries", name, settings).reconstruct(seen, testing.job(seed=0))
    assert most / 2 <= counted[0] <= most
