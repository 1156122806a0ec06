"""The images task: model, loss, evaluation, guesses and pictures."""

import dataclasses
import io
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from support.image_sets import toy, written
from support.processes import fresh_python

from fedsim.errors import DataError, ScenarioError
from fedsim.plugin import make
from fedsim.records import Candidates, Reconstruction, Truth
from fedsim.tasks.images import Images

# --- settings --------------------------------------------------------------------------------


def test_a_head_can_be_wider_than_the_labels():
    task = Images(seed=7, clients=2, classes=1000)
    assert task.spec.classes == 1000
    assert task.module().get_submodule(task.head).out_features == 1000
    truth = task.truth([0], 0, batch_size=50, steps=1)
    guess = task.guess(truth, torch.Generator().manual_seed(0), informed=False)
    assert int(truth.labels.max()) < 10 < int(guess.labels.max())
    assert task.evaluate(task.module())["num_examples"] == len(task.tested)


def test_a_head_narrower_than_the_labels_is_refused():
    with pytest.raises(DataError, match=r"task\.classes = 4, and data 'digits' has 10 labels"):
        Images(classes=4).spec  # noqa: B018


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": "cn"}, DataError, "Did you mean 'cnn'"),
        ({"partition": {"kind": "iidd"}}, DataError, "Did you mean 'iid'"),
        ({"composition": "even"}, ScenarioError, "composition"),
        ({"siz": 3}, ScenarioError, "Did you mean 'size'"),
        ({"auxiliary_fraction": 1.0}, ScenarioError, "auxiliary_fraction"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, error, message):
    with pytest.raises(error, match=message):
        make("tasks", "images", settings)


# --- model, loss, evaluation ----------------------------------------------------------------


def test_the_loss_takes_hard_and_soft_labels(digits):
    module, batch = digits.module(), digits.batches(0, 0, batch_size=6, steps=1)[0]
    hard = digits.loss(module, batch.inputs, batch.labels)
    soft = torch.nn.functional.one_hot(batch.labels, 10).float()
    torch.testing.assert_close(digits.loss(module, batch.inputs, soft), hard)
    with pytest.raises(ValueError, match="no point 'embedding'"):
        digits.loss(module, batch.inputs, batch.labels, at="embedding")


def test_a_victims_model_leads_nobody_to_the_data(digits):
    victim = digits.victim(digits.arrays(digits.module()))
    assert not hasattr(victim._loss, "__self__")
    assert b"images" not in pickle.dumps(victim._loss).replace(b"fedsim.tasks.images", b"")
    assert victim.head == "head"
    assert victim.module.training


def test_the_same_model_is_built_everywhere(digits):
    torch.manual_seed(5)
    first = digits.module()
    second = Images(seed=7, clients=3).module()
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name))


def test_evaluation_agrees_with_the_examples_and_leaves_the_modes(monkeypatch, digits):
    task = Images(seed=7, clients=20, model="resnet20", test_examples=50)
    module = task.module().train()
    module.norm.eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    whole = task.evaluate(module)
    monkeypatch.setattr("fedsim.tasks.classification.EVALUATED_AT_ONCE", 7)
    parts = task.evaluate(module)
    assert whole == pytest.approx(parts, rel=1e-5)
    assert module.training
    assert not module.norm.training
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    module.eval()
    logits = module(task.examples.inputs(task.tested)).detach()
    labels = task.examples.labels[task.tested]
    assert whole["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert whole["loss"] == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5
    )


def test_a_client_is_judged_on_its_own_examples(digits):
    module = digits.module()
    assert digits.evaluate(module, client=3)["num_examples"] == digits.num_examples(3)
    assert digits.evaluate(module)["num_examples"] == len(digits.tested)


def test_training_on_digits_learns_them():
    task = Images(clients=1, model="lenet")
    module = task.module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for batch in task.batches(0, 0, batch_size=64, steps=200):
        optimizer.zero_grad()
        task.loss(module, batch.inputs, batch.labels).backward()
        optimizer.step()
    assert task.evaluate(module)["accuracy"] > 0.85


def test_settings_survive_a_copy_and_a_pickle_but_nothing_worked_out_from_them(digits):
    digits.num_examples(0)
    again = pickle.loads(pickle.dumps(digits))  # noqa: S301
    assert again == digits
    assert len(pickle.dumps(digits)) < 2000
    assert "images" not in again.__dict__
    other = digits.model_copy(update={"seed": 8})
    assert not torch.equal(other.shares[0], digits.shares[0])
    assert Images(**digits.model_dump()) == digits


def test_importing_the_task_loads_nothing_heavy():
    heavy = "{'flwr', 'ray', 'datasets', 'flwr_datasets', 'transformers', 'sklearn', 'PIL'}"
    script = f"import sys, fedsim.tasks.images; print({heavy} & set(sys.modules))"
    assert fresh_python(script) == "set()"


# --- guesses and pictures -------------------------------------------------------------------


def test_guesses_fill_every_field_and_repeat_under_a_generator(digits):
    truth = digits.truth([0], 0, batch_size=12, steps=1)
    for informed in (False, True):
        first, second = (
            digits.guess(truth, torch.Generator().manual_seed(3), informed=informed)
            for _ in range(2)
        )
        assert torch.equal(first.labels, second.labels)
        assert first.num_labels == len(first.labels) == len(first.inputs) == 12
        assert first.label_set == set(first.labels.tolist())
        assert first.label_counts == Counter(first.labels.tolist())
        assert all(image.shape == (1, 8, 8) for image in first.inputs)
        assert 0 <= min(map(torch.min, first.inputs)) <= max(map(torch.max, first.inputs)) <= 1


def test_an_informed_guess_knows_the_auxiliary_examples_alone(tmp_path):
    arrays = toy(400)
    arrays["y"] = (np.arange(400) % 10 == 0).astype(np.uint8)
    task = Images(data="toy", folder=written(tmp_path, **arrays), auxiliary_fraction=0.5)
    truth = Truth(labels=torch.ones(2000, dtype=torch.int64))
    rng = torch.Generator().manual_seed(0)
    uniform = task.guess(truth, rng, informed=False).labels.float().mean()
    informed = task.guess(truth, rng, informed=True)
    auxiliary = task.auxiliary()
    assert uniform == pytest.approx(0.5, abs=0.05)
    assert informed.labels.float().mean() == pytest.approx(
        float(auxiliary.labels.float().mean()), abs=0.05
    )
    torch.testing.assert_close(informed.inputs[0], auxiliary.inputs.mean(dim=0))


def test_without_auxiliary_examples_there_is_no_informed_guess():
    task = Images(clients=2, auxiliary_fraction=0.0)
    truth = task.truth([0], 0, batch_size=2, steps=1)
    assert task.auxiliary() is None
    with pytest.raises(NotImplementedError):
        task.guess(truth, torch.Generator(), informed=True)


def tiles(png, count, side):
    picture = np.asarray(Image.open(io.BytesIO(png)))
    gap = (picture.shape[1] - count * side) // (count + 1)
    return [
        [
            picture[gap + row * (side + gap) :][:side, gap + column * (side + gap) :][:, :side]
            for column in range(count)
        ]
        for row in range(2)
    ]


def test_a_picture_sets_each_reconstruction_below_its_original(digits):
    truth = digits.truth([0], 0, batch_size=5, steps=1)
    claimed = Reconstruction(inputs=list(truth.inputs)[::-1])
    files = digits.render(claimed, truth)
    assert list(files) == ["reconstruction.png"]
    top, bottom = tiles(files["reconstruction.png"], 5, 96)
    for above, below, original in zip(top, bottom, truth.inputs, strict=True):
        assert np.array_equal(above, below)
        np.testing.assert_allclose(above[::12, ::12, 0] / 255, original[0], atol=0.003)


def test_a_picture_survives_any_claim(digits):
    truth = digits.truth([0], 0, batch_size=20, steps=1)
    good = truth.inputs[4]
    claimed = Reconstruction(
        inputs=[good * torch.nan, torch.rand(3, 2), good * 1e9 + torch.inf, torch.zeros(0), good]
    )
    top, bottom = tiles(digits.render(claimed, truth)["reconstruction.png"], 16, 96)
    assert len(top) == 16
    assert np.array_equal(top[4], bottom[4])
    assert (bottom[0] == 128).all()


def test_below_each_original_stands_the_public_image_with_the_nearest_features(digits):
    truth = digits.truth([0], 0, batch_size=3, steps=1)
    public = digits.auxiliary().inputs[:2]
    features = torch.tensor([[0.0, 9.0], [9.0, 0.0], [5.0, 6.0], [8.0, 1.0], [0.0, 7.0]])
    truth = dataclasses.replace(
        truth, features=features[2:], candidates=Candidates(list(public), features)
    )
    files = digits.render(Reconstruction(features=features[[4, 2]]), truth)
    top, bottom = tiles(files["reconstruction-nearest.png"], 3, 96)
    for above, original in zip(top, truth.inputs, strict=True):
        np.testing.assert_allclose(above[::12, ::12, 0] / 255, original[0], atol=0.003)
    for below, image in ((bottom[0], public[0]), (bottom[2], public[0])):
        np.testing.assert_allclose(below[::12, ::12, 0] / 255, image[0], atol=0.003)
    assert (bottom[1] == 128).all(), "nothing was claimed for it"


@pytest.mark.parametrize("inputs", [None, []])
def test_no_picture_without_reconstructed_images(digits, inputs):
    truth = digits.truth([0], 0, batch_size=1, steps=1)
    assert digits.render(Reconstruction(inputs=inputs), truth) == {}


def test_colour_pictures_are_at_least_96_pixels_a_tile(tmp_path):
    task = Images(data="toy", folder=written(tmp_path, **toy(shape=(64, 64, 3))), clients=2)
    truth = task.truth([0], 0, batch_size=1, steps=1)
    png = task.render(Reconstruction(inputs=truth.inputs), truth)["reconstruction.png"]
    assert Image.open(io.BytesIO(png)).size == (128 + 8, 2 * 128 + 12)
