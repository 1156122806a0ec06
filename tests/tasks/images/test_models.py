"""Every image classifier that a scenario can name."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsim.errors import DataError, ScenarioError
from fedsim.tasks.models import MODELS, as_architecture
from fedsim.tasks.models.architecture import Architecture

TINY = {
    "resnet": {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8},
    "vit": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "patch_size": 4,
    },
}
CASES = {
    "cnn": "cnn",
    "convnet": "convnet",
    "convnet of sigmoids": {
        "name": "convnet",
        "widths": [4, 6],
        "activation": "sigmoid",
        "batch_norm": False,
    },
    "lenet": "lenet",
    "lenet-sigmoid": "lenet-sigmoid",
    "lenet-sigmoid of 24 channels": {"name": "lenet-sigmoid", "channels": 24},
    "mlp": "mlp",
    "mlp of sigmoids": {"name": "mlp", "hidden": [24, 12], "activation": "sigmoid"},
    "resnet20": "resnet20",
    "resnet20 as in DLG": {"name": "resnet20", "activation": "sigmoid", "strides": False},
    "resnet56": "resnet56",
    "transformers resnet": {
        "name": "transformers",
        "config": "resnet",
        "settings": TINY["resnet"],
    },
    "transformers vit": {"name": "transformers", "config": "vit", "settings": TINY["vit"]},
}
SMOOTH = (
    "cnn",
    "convnet of sigmoids",
    "lenet-sigmoid",
    "lenet-sigmoid of 24 channels",
    "mlp of sigmoids",
    "resnet20 as in DLG",
    "transformers vit",
)


def built(case, shape=(1, 16, 16), classes=7):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return as_architecture(CASES[case]).build(shape, classes)


def test_the_cases_cover_every_registered_model():
    named = {case if isinstance(case, str) else case["name"] for case in CASES.values()}
    assert named == set(MODELS)


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        (case, shape)
        for case in CASES
        for shape in [(1, 8, 8), (3, 32, 32), (1, 28, 20)]
        if case != "transformers vit" or shape[1] == shape[2]  # its patches are squares
    ],
)
def test_returns_logits_for_any_image(case, shape):
    module = built(case, shape).eval()
    with torch.no_grad():
        logits = module(torch.rand(2, *shape))
    assert logits.shape == (2, 7)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("case", CASES)
def test_the_head_is_the_layer_that_makes_the_logits(case):
    module = built(case)
    name = Given(name=case).find_head(module, (1, 16, 16), 7)
    head = module.get_submodule(name)
    assert isinstance(head, nn.Linear)
    assert head.out_features == 7
    assert f"{name}.weight" in dict(module.named_parameters())
    assert module.training == built(case).training


@pytest.mark.parametrize("case", CASES)
def test_one_small_step_lowers_the_loss(case):
    module = built(case).train()
    inputs = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(8) % 7
    before = functional.cross_entropy(module(inputs), labels)
    before.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 1e-3 * parameter.grad
    assert functional.cross_entropy(module(inputs), labels) < before


@pytest.mark.parametrize("case", SMOOTH)
def test_gradients_can_be_differentiated_by_the_image(case):
    module = built(case).train()
    image = torch.rand(1, 1, 16, 16, requires_grad=True)
    loss = functional.cross_entropy(module(image), torch.tensor([3]))
    gradient = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
    total = sum(part.square().sum() for part in gradient)
    (second,) = torch.autograd.grad(total, image)
    assert second.isfinite().all()
    assert second.abs().sum() > 0


def test_the_two_sigmoid_networks_differ_only_in_how_biases_start():
    llg, dlg = built("cnn"), built("lenet-sigmoid")
    assert {k: p.shape for k, p in llg.named_parameters()} == {
        k: p.shape for k, p in dlg.named_parameters()
    }
    for name, parameter in [*llg.named_parameters(), *dlg.named_parameters()]:
        assert parameter.abs().max() <= 0.5, name
    # torch's own bound for this bias is 1 / sqrt(12 * 25) = 0.058
    assert llg.get_parameter("features.2.bias").abs().max() < 0.06
    assert dlg.get_parameter("features.2.bias").abs().max() > 0.2


def test_the_sigmoid_networks_have_the_channels_they_were_asked_for():
    wide, usual = built("lenet-sigmoid of 24 channels"), built("lenet-sigmoid")
    widths = [
        [layer.out_channels for layer in model.features if isinstance(layer, nn.Conv2d)]
        for model in (wide, usual)
    ]
    assert widths == [[24] * 3, [12] * 3]
    assert wide.head.in_features == 2 * usual.head.in_features


def test_weights_come_from_the_global_generator_alone():
    first, second = built("resnet20"), built("resnet20")
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name))


def test_resnets_have_the_depth_of_their_name():
    for name, depth in (("resnet20", 20), ("resnet56", 56)):
        layers = [m for m in built(name).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        assert len(layers) == depth


def test_an_mlp_has_the_hidden_layers_it_was_asked_for():
    layers = [m for m in built("mlp of sigmoids").modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(256, 24), (24, 12), (12, 7)]


def test_without_strides_a_resnet_keeps_height_and_width():
    sizes = {}
    for case in ("resnet20", "resnet20 as in DLG"):
        module = built(case)
        module.stages.register_forward_hook(
            lambda _m, _i, out, case=case: sizes.__setitem__(case, tuple(out.shape[2:]))
        )
        module(torch.rand(1, 1, 16, 16))
    assert sizes == {"resnet20": (4, 4), "resnet20 as in DLG": (16, 16)}


def test_a_grey_image_fits_a_model_for_colour():
    table = copy.deepcopy(CASES["transformers resnet"])
    table["settings"]["num_channels"] = 3
    module = as_architecture(table).build((1, 16, 16), 7)
    assert module(torch.rand(2, 1, 16, 16)).shape == (2, 7)


def test_a_local_folder_gives_its_weights_and_needs_no_network(tmp_path):
    original = built("transformers resnet")
    original.model.save_pretrained(tmp_path)
    table = {"name": "transformers", "config": str(tmp_path)}
    again = as_architecture(table).build((1, 16, 16), 7)
    for name, parameter in original.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    torch.manual_seed(1)  # another one than in `built`
    random = as_architecture({**table, "pretrained": False}).build((1, 16, 16), 7)
    name = Given(name="saved").find_head(original, (1, 16, 16), 7) + ".weight"
    assert not torch.equal(original.get_parameter(name), random.get_parameter(name))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("resnet21", DataError, "Did you mean 'resnet20'"),
        (7, DataError, "expected a name, or a table"),
        ({"activation": "relu"}, DataError, "expected a name, or a table"),
        ({"name": "resnet20", "activaton": "relu"}, ScenarioError, "Did you mean 'activation'"),
        ({"name": "resnet20", "activation": "tanh"}, ScenarioError, "model.activation"),
        ({"name": "mlp", "hidden": []}, ScenarioError, "model.hidden"),
        ({"name": "mlp", "hidden": [0]}, ScenarioError, "model.hidden"),
        ({"name": "cnn", "strides": False}, ScenarioError, "model.strides: unknown key"),
        ("transformers", ScenarioError, "with a config"),
        ({"name": "hub:a/b", "config": "resnet"}, ScenarioError, "either 'hub:NAME'"),
        ("hub:", ScenarioError, "model.name"),
    ],
)
def test_a_wrong_model_is_one_clear_error(value, error, message):
    with pytest.raises(error, match=message):
        as_architecture(value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"config": "resnett"}, "Did you mean 'resnet'"),
        ({"config": "bert"}, "cannot be built"),
        ({"config": "resnet", "settings": {"depth": [1]}}, "Did you mean 'depths'"),
        (
            {"config": "resnet", "settings": {"depths": "deep"}},
            "refuses its settings|cannot be built",
        ),
    ],
)
def test_a_wrong_configuration_is_one_clear_error(table, message):
    with pytest.raises(DataError, match=message):
        as_architecture({"name": "transformers", **table}).build((1, 16, 16), 7)


def test_a_model_by_name_without_network_names_the_ways_out(tmp_path):
    script = """
from fedsim.errors import DataError
from fedsim.tasks.models import as_architecture
try:
    as_architecture("hub:microsoft/resnet-50").build((3, 32, 32), 10)
except DataError as error:
    assert "could not be fetched" in str(error) and "config.json" in str(error), error
else:
    raise SystemExit("no error")
"""
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Given(Architecture):
    def build(self, shape, classes):
        return TwoHeads()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 7), nn.Linear(4, 7)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return (self.left(flat) + self.right(flat)) / 2


def test_a_head_that_cannot_be_told_lists_the_candidates():
    with pytest.raises(DataError, match=r"model\.head.*left, right"):
        Given(name="two").find_head(TwoHeads(), (1, 2, 2), 7)


def test_a_head_may_be_named():
    assert Given(name="two", head="left").find_head(TwoHeads(), (1, 2, 2), 7) == "left"
    with pytest.raises(DataError, match=r"model\.head: 'lef'.*Did you mean 'left'"):
        Given(name="two", head="lef").find_head(TwoHeads(), (1, 2, 2), 7)


def test_an_image_that_a_model_cannot_take_says_what_to_do():
    with pytest.raises(DataError, match=r"shape \(1, 3, 3\).*task.size"):
        Given(name="two").find_head(TwoHeads(), (1, 3, 3), 7)
    with pytest.raises(DataError, match=r"returns \(1, 7\).*expected \(1, 9\)"):
        Given(name="two").find_head(TwoHeads(), (1, 2, 2), 9)
