"""The images task: data, batches, evaluation, guesses and pictures."""

import hashlib
import io
import os
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from processes import elsewhere

from fedsim.errors import DataError, ScenarioError
from fedsim.plugin import make
from fedsim.records import Reconstruction, Truth
from fedsim.tasks.images import Images

REAL = os.environ.get("FEDSIM_DATA")
real = pytest.mark.skipif(not REAL, reason="FEDSIM_DATA names no folder of real data sets")


@pytest.fixture(scope="module")
def digits():
    return Images(seed=7, clients=20)


def written(folder, name="toy", **arrays):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)
    return folder


def toy(n=60, shape=(6, 5), classes=3):
    rng = np.random.default_rng(0)
    return {
        "x": rng.integers(0, 256, (n, *shape), dtype=np.uint8),
        "y": (np.arange(n) % classes).astype(np.uint8),
    }


def digest(batches):
    value = hashlib.sha256()
    for batch in batches:
        value.update(batch.inputs.numpy().tobytes() + batch.labels.numpy().tobytes())
    return value.hexdigest()


# --- data -----------------------------------------------------------------------------------


def test_digits_are_small_grey_images_in_the_unit_range(digits):
    assert digits.spec.classes == 10
    assert digits.spec.input_shape == (1, 8, 8)
    inputs = digits.batches(0, 0, batch_size=16, steps=1)[0].inputs
    assert inputs.dtype == torch.float32
    assert inputs.min() == 0
    assert 0.9 < inputs.max() <= 1


def test_clients_auxiliary_and_test_examples_share_nothing_and_cover_everything(digits):
    held, (auxiliary, rest) = torch.cat(digits.shares), digits.held_out
    assert sorted(held.tolist()) == rest.tolist()
    everything = torch.cat([held, auxiliary, digits.tested])
    assert everything.unique().numel() == everything.numel() == 1797
    assert len(auxiliary) == int(0.1 * (1797 - len(digits.tested)))
    assert sum(digits.num_examples(client) for client in range(20)) == len(rest)


def test_examples_can_be_limited():
    task = Images(clients=4, train_examples=100, test_examples=30, auxiliary_fraction=0.2)
    assert sum(map(len, task.shares)) == 80
    assert len(task.auxiliary()) == 20
    assert task.evaluate(task.module())["num_examples"] == 30


def test_size_resizes_bilinearly(digits):
    larger = Images(seed=7, clients=20, size=16)
    small = digits.batches(2, 1, batch_size=4, steps=1)[0]
    large = larger.batches(2, 1, batch_size=4, steps=1)[0]
    assert large.inputs.shape == (4, 1, 16, 16)
    assert torch.equal(small.labels, large.labels)
    # Between four pixels of the original, weights 9, 3, 3, 1 of 16.
    corner = (small.inputs[:, 0, :2, :2] * torch.tensor([[9, 3], [3, 1]]) / 16).sum(dim=(1, 2))
    torch.testing.assert_close(large.inputs[:, 0, 1, 1], corner)
    smaller = Images(seed=7, clients=20, size=4).batches(2, 1, batch_size=4, steps=1)[0].inputs
    assert smaller.min() >= 0
    torch.testing.assert_close(smaller.mean(), small.inputs.mean(), atol=0.02, rtol=0)


def test_an_npz_of_either_layout_is_found_by_name(tmp_path):
    parts = toy()
    split = {f"{key}_{part}": value for key, value in parts.items() for part in ("train", "test")}
    written(tmp_path / "images", "both", **split, label_names=np.array(["a", "b", "c"]))
    task = Images(data="both", folder=tmp_path, clients=2)
    assert task.spec.input_shape == (1, 6, 5)
    assert task.images.label_names == ("a", "b", "c")
    assert len(task.images.train) == len(task.images.test) == 60
    whole = Images(data="whole", folder=written(tmp_path, "whole", **parts), clients=2)
    assert len(whole.images.test) == 12
    inputs = whole.images.inputs(torch.arange(60))
    np.testing.assert_allclose(inputs[:, 0], parts["x"] / np.float32(255), rtol=1e-6)


def test_colour_images_become_channels_first(tmp_path):
    arrays = toy(shape=(6, 5, 3))
    task = Images(data="toy", folder=written(tmp_path, **arrays), clients=2)
    assert task.spec.input_shape == (3, 6, 5)
    inputs = task.images.inputs(torch.arange(60))
    np.testing.assert_allclose(inputs[:, 2], arrays["x"][..., 2] / np.float32(255), rtol=1e-6)


def test_images_may_be_floats_in_the_unit_range(tmp_path):
    arrays = toy()
    floats = {"x": arrays["x"] / 255, "y": arrays["y"]}
    task = Images(data="toy", folder=written(tmp_path, **floats), clients=2)
    torch.testing.assert_close(
        task.images.inputs(torch.arange(60))[:, 0], torch.from_numpy(floats["x"]).float()
    )


def test_the_fingerprint_is_the_datas_not_the_seeds(tmp_path):
    assert Images(seed=1).fingerprint() == Images(seed=2).fingerprint()
    arrays = toy()
    first = Images(data="a", folder=written(tmp_path, "a", **arrays)).fingerprint()
    arrays["x"][0, 0, 0] ^= 1
    assert Images(data="b", folder=written(tmp_path, "b", **arrays)).fingerprint() != first


def hub(**columns):
    """A stand-in for `datasets.load_dataset`, made of 24 small images."""
    import datasets

    rng = np.random.default_rng(0)

    def table(count):
        sides = columns.get("sides", (6,))
        pictures = [
            Image.fromarray(rng.integers(0, 256, (sides[i % len(sides)], 6), dtype=np.uint8))
            for i in range(count)
        ]
        if columns.get("colour"):
            pictures[0] = pictures[0].convert("RGB")
        return datasets.Dataset.from_dict(
            {"id": list(range(count)), "picture": pictures, "fine_label": [0, 1] * (count // 2)},
            features=datasets.Features(
                {
                    "id": datasets.Value("int64"),
                    "picture": datasets.Image(),
                    "fine_label": datasets.ClassLabel(names=["cat", "dog"]),
                }
            ),
        )

    return datasets.DatasetDict({"train": table(16), "validation": table(8)})


def test_a_set_of_the_hub_is_read_by_its_features(monkeypatch):
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *a: asked.append(a) or hub())
    task = Images(data="hub:owner/set/config", clients=2)
    assert task.spec.input_shape == (1, 6, 6)
    assert task.images.label_names == ("cat", "dog")
    assert (len(task.images.train), len(task.images.test)) == (16, 8)
    assert asked == [("owner/set", "config")]


def test_hub_images_of_several_sizes_need_a_size(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *a: hub(sides=(6, 9)))
    with pytest.raises(DataError, match=r"differ in size; set task\.size"):
        Images(data="hub:owner/set", clients=2).spec  # noqa: B018
    assert Images(data="hub:owner/set", clients=2, size=8).spec.input_shape == (1, 8, 8)


def test_the_hub_without_network_names_both_ways_out(monkeypatch):
    def unreachable(*_):
        raise ConnectionError("no route\nand more")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(DataError, match=r"ConnectionError: no route\).*cached.*npz under --data"):
        Images(data="hub:mnist").spec  # noqa: B018


@real
@pytest.mark.parametrize(
    ("name", "shape", "classes", "train", "test"),
    [
        ("mnist", (1, 28, 28), 10, 12000, 10000),
        ("cifar10", (3, 32, 32), 10, 5170, 1017),
        ("cifar100", (3, 32, 32), 100, 1117, 916),
        ("tiny_imagenet_val", (3, 64, 64), 200, 1600, 400),
    ],
)
def test_real_data_sets_load_by_name(name, shape, classes, train, test):
    task = Images(data=name, folder=REAL, clients=10)
    assert task.spec.input_shape == shape
    assert task.spec.classes == classes
    assert (len(task.images.train), len(task.images.test)) == (train, test)
    batch = task.batches(9, 3, batch_size=4, steps=1)[0]
    assert 0 <= batch.inputs.min() < batch.inputs.max() <= 1
    assert task.module()(batch.inputs).shape == (4, classes)


# --- bad input ------------------------------------------------------------------------------


def bad(**changes):
    return toy() | changes


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros(3)}, "holds images; expected x_train"),
        (bad(x=np.zeros((60, 4), np.uint8)), r"images uint8 \(60, 4\).*expected"),
        (bad(x=np.zeros((60, 3, 8, 8), np.uint8)), r"images uint8 \(60, 3, 8, 8\).*1 or 3"),
        (bad(x=np.zeros((60, 8, 8), np.int32)), "images int32"),
        (bad(x=np.full((60, 8, 8), 2.0)), "floats run from 2.0 to 2.0"),
        (bad(x=np.full((60, 8, 8), np.nan)), "floats run from nan"),
        (bad(x=np.zeros((0, 8, 8), np.uint8), y=np.zeros(0, int)), r"\(0, 8, 8\)"),
        (bad(y=np.zeros(59, np.uint8)), r"labels uint8 \(59,\)"),
        (bad(y=np.zeros(60)), r"labels float64"),
        (bad(y=np.arange(60) - 1), "labels from -1 to 58, expected 0 to 58"),
        (bad(label_names=np.array(["a", "b"])), "labels from 0 to 2, expected 0 to 1"),
        (bad(y=np.zeros(60, int)), "a single label"),
        (bad(x=np.array([None] * 60)), "cannot be read"),
        (
            {
                "x_train": np.zeros((9, 8, 8), np.uint8),
                "y_train": np.arange(9),
                "x_test": np.zeros((9, 7, 7), np.uint8),
                "y_test": np.arange(9),
            },
            "differ in shape",
        ),
    ],
)
def test_an_npz_with_wrong_arrays_says_what_was_found(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        Images(data="toy", folder=written(tmp_path, **arrays)).spec  # noqa: B018


def test_a_broken_file_is_one_clear_error(tmp_path):
    (tmp_path / "toy.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(DataError, match=r"toy\.npz cannot be read"):
        Images(data="toy", folder=tmp_path).spec  # noqa: B018


def test_unknown_data_names_the_nearest(tmp_path):
    with pytest.raises(DataError, match=r"Did you mean 'toy'\? Known: digits, toy"):
        Images(data="toi", folder=written(tmp_path, **toy())).spec  # noqa: B018


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


@pytest.mark.parametrize("folder", [None, Path("no") / "such"])
def test_a_missing_folder_says_how_to_name_one(folder):
    with pytest.raises(DataError, match=r"--data DIR or FEDSIM_DATA"):
        Images(data="mnist", folder=folder).spec  # noqa: B018


def test_more_clients_than_examples():
    with pytest.raises(DataError, match="2000 clients and 1295 examples"):
        Images(clients=2000).num_examples(0)


@pytest.mark.parametrize("client", [-1, 20])
def test_a_client_that_does_not_exist(digits, client):
    with pytest.raises(DataError, match="clients run from 0 to 19"):
        digits.batches(client, 0, batch_size=1, steps=1)


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


# --- batches --------------------------------------------------------------------------------

DRAW = """
import hashlib
from fedsim.tasks.images import Images
task = Images(seed=7, clients=20, composition="unbalanced", partition="dirichlet")
value = hashlib.sha256()
for batch in task.batches(3, 5, batch_size=8, steps=4):
    value.update(batch.inputs.numpy().tobytes() + batch.labels.numpy().tobytes())
print(value.hexdigest())
"""


def test_a_batch_is_the_same_in_another_process_and_after_other_draws():
    task = Images(seed=7, clients=20, composition="unbalanced", partition="dirichlet")
    task.batches(1, 9, batch_size=3, steps=2)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    ours = digest(task.batches(3, 5, batch_size=8, steps=4))
    assert torch.equal(state, torch.random.get_rng_state())
    assert ours == digest(task.batches(3, 5, batch_size=8, steps=4))
    assert elsewhere(DRAW) == ours


@pytest.mark.parametrize("composition", ["natural", "unbalanced", "balanced"])
def test_batches_depend_on_seed_client_and_round_alone(composition):
    task = Images(seed=7, clients=5, composition=composition)

    def drawn(task, client, round, steps=3):
        return digest(task.batches(client, round, batch_size=8, steps=steps)[:2])

    reference = drawn(task, 1, 1)
    assert drawn(task, 1, 1, steps=9) == reference
    assert drawn(task, 1, 2) != reference
    assert drawn(task, 2, 1) != reference
    assert drawn(task.model_copy(update={"seed": 8}), 1, 1) != reference


def test_truth_is_what_the_client_trained_on(digits):
    batches = digits.batches(4, 2, batch_size=5, steps=3)
    truth = digits.truth([4], 2, batch_size=5, steps=3)
    assert torch.equal(truth.labels, torch.cat([batch.labels for batch in batches]))
    assert torch.equal(torch.stack(list(truth.inputs)), torch.cat([b.inputs for b in batches]))


def test_natural_batches_walk_through_a_clients_examples(digits):
    held = digits.num_examples(0)
    batches = digits.batches(0, 0, batch_size=10, steps=held // 10 + 1)
    first = torch.cat([batch.inputs for batch in batches[:-1]]).flatten(1)
    own = digits.images.inputs(digits.shares[0]).flatten(1)
    assert len({row.numpy().tobytes() for row in first}) == len(first) == held // 10 * 10
    known = {row.numpy().tobytes() for row in own}
    assert all(row.numpy().tobytes() in known for row in first)
    assert all(len(batch) == 10 for batch in batches)


@pytest.mark.parametrize("composition", ["natural", "unbalanced", "balanced"])
def test_a_batch_is_no_larger_than_what_a_client_holds(composition):
    task = Images(clients=50, composition=composition)
    held = task.num_examples(3)
    assert [len(batch) for batch in task.batches(3, 0, batch_size=999, steps=2)] == [held] * 2


@pytest.mark.parametrize("size", [2, 8, 17, 128])
def test_unbalanced_batches_hold_half_of_one_label_and_a_quarter_of_another(size):
    task = Images(clients=1, composition="unbalanced")
    for batch in task.batches(0, 0, batch_size=size, steps=5):
        assert len(batch) == size
        counts = Counter(batch.labels.tolist())
        (_, most), *others = counts.most_common()
        assert most >= size // 2
        assert max([n for _, n in others], default=0) >= size // 4 or most >= size * 3 // 4
        head = Counter(batch.labels[: size // 2].tolist())
        assert len(head) == 1
        assert len(set(batch.labels[size // 2 : size // 2 + size // 4].tolist())) <= 1
        assert len({image.numpy().tobytes() for image in batch.inputs}) == size


def test_auxiliary_data_can_come_from_the_test_images():
    task = Images(seed=3, clients=4, auxiliary_from="test", auxiliary_fraction=0.25)
    held, clients = task.held_out
    assert set(held.tolist()) | set(task.tested.tolist()) == set(task.images.test.tolist())
    assert not set(held.tolist()) & set(task.tested.tolist())
    assert len(task.auxiliary()) == len(task.images.test) // 4
    assert set(clients.tolist()) == set(task.images.train.tolist())
    assert sum(map(task.num_examples, range(4))) == len(task.images.train)


def test_the_two_frequent_labels_stay_for_all_steps_of_a_round():
    task = Images(clients=1, composition="unbalanced")
    batches = task.batches(0, 0, batch_size=8, steps=5)
    assert len({int(batch.labels[0]) for batch in batches}) == 1
    assert len({int(batch.labels[4]) for batch in batches}) == 1
    rounds = {int(task.batches(0, r, batch_size=8, steps=1)[0].labels[0]) for r in range(20)}
    assert len(rounds) > 1


def test_an_unbalanced_batch_repeats_only_what_a_client_has_too_few_of():
    task = Images(clients=130, composition="unbalanced")
    held = task.num_examples(0)
    assert held < 15
    own = Counter(task.images.labels[task.shares[0]].tolist())
    (batch,) = task.batches(0, 0, batch_size=held, steps=1)
    major = int(batch.labels[0])
    times = Counter(image.numpy().tobytes() for image in batch.inputs[: held // 2])
    assert len(times) == min(own[major], held // 2)


def test_a_client_of_one_label_can_still_be_unbalanced():
    task = Images(
        clients=10,
        composition="unbalanced",
        partition={"kind": "pathological", "num_classes_per_partition": 1},
    )
    (batch,) = task.batches(0, 0, batch_size=8, steps=1)
    assert len(batch) == 8
    assert len(set(batch.labels.tolist())) == 1


@pytest.mark.parametrize("size", [4, 10, 25])
def test_balanced_batches_hold_labels_equally_often(size):
    task = Images(clients=2, composition="balanced")
    for batch in task.batches(0, 0, batch_size=size, steps=3):
        counts = np.bincount(batch.labels.numpy(), minlength=10)
        assert counts.sum() == size
        assert counts.max() - counts.min() <= 1


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
    monkeypatch.setattr("fedsim.tasks.images.EVALUATED_AT_ONCE", 7)
    parts = task.evaluate(module)
    assert whole == pytest.approx(parts, rel=1e-5)
    assert module.training
    assert not module.norm.training
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    module.eval()
    logits = module(task.images.inputs(task.tested)).detach()
    labels = task.images.labels[task.tested]
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
    assert elsewhere(script) == "set()"


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


@pytest.mark.parametrize("inputs", [None, []])
def test_no_picture_without_reconstructed_images(digits, inputs):
    truth = digits.truth([0], 0, batch_size=1, steps=1)
    assert digits.render(Reconstruction(inputs=inputs), truth) == {}


def test_colour_pictures_are_at_least_96_pixels_a_tile(tmp_path):
    task = Images(data="toy", folder=written(tmp_path, **toy(shape=(64, 64, 3))), clients=2)
    truth = task.truth([0], 0, batch_size=1, steps=1)
    png = task.render(Reconstruction(inputs=truth.inputs), truth)["reconstruction.png"]
    assert Image.open(io.BytesIO(png)).size == (128 + 8, 2 * 128 + 12)
