"""The images task's data: where they are found, how they are cut, and what is refused."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from support.image_sets import toy, written

from fedsim.errors import DataError
from fedsim.tasks.images import Images

REAL = os.environ.get("FEDSIM_DATA")
real = pytest.mark.skipif(not REAL, reason="FEDSIM_DATA names no folder of real data sets")


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


def test_auxiliary_data_can_come_from_the_test_images():
    task = Images(seed=3, clients=4, auxiliary_from="test", auxiliary_fraction=0.25)
    held, clients = task.held_out
    assert set(held.tolist()) | set(task.tested.tolist()) == set(task.examples.test.tolist())
    assert not set(held.tolist()) & set(task.tested.tolist())
    assert len(task.auxiliary()) == len(task.examples.test) // 4
    assert set(clients.tolist()) == set(task.examples.train.tolist())
    assert sum(map(task.num_examples, range(4))) == len(task.examples.train)


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
    assert task.examples.label_names == ("a", "b", "c")
    assert len(task.examples.train) == len(task.examples.test) == 60
    whole = Images(data="whole", folder=written(tmp_path, "whole", **parts), clients=2)
    assert len(whole.examples.test) == 12
    inputs = whole.examples.inputs(torch.arange(60))
    np.testing.assert_allclose(inputs[:, 0], parts["x"] / np.float32(255), rtol=1e-6)


def test_colour_images_become_channels_first(tmp_path):
    arrays = toy(shape=(6, 5, 3))
    task = Images(data="toy", folder=written(tmp_path, **arrays), clients=2)
    assert task.spec.input_shape == (3, 6, 5)
    inputs = task.examples.inputs(torch.arange(60))
    np.testing.assert_allclose(inputs[:, 2], arrays["x"][..., 2] / np.float32(255), rtol=1e-6)


def test_images_may_be_floats_in_the_unit_range(tmp_path):
    arrays = toy()
    floats = {"x": arrays["x"] / 255, "y": arrays["y"]}
    task = Images(data="toy", folder=written(tmp_path, **floats), clients=2)
    torch.testing.assert_close(
        task.examples.inputs(torch.arange(60))[:, 0], torch.from_numpy(floats["x"]).float()
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
    assert task.examples.label_names == ("cat", "dog")
    assert (len(task.examples.train), len(task.examples.test)) == (16, 8)
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
    assert (len(task.examples.train), len(task.examples.test)) == (train, test)
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
        (bad(x=np.full((60, 8, 8), np.nan)), "3840 of these floats are NaN or infinite"),
        (bad(x=np.zeros((0, 8, 8), np.uint8), y=np.zeros(0, int)), r"\(0, 8, 8\)"),
        (bad(y=np.zeros(59, np.uint8)), r"labels uint8 \(59,\)"),
        (bad(y=np.zeros(60)), r"labels float64"),
        (bad(y=np.arange(60) - 1), "labels from -1 to 58, expected 0 to 58"),
        (bad(label_names=np.array(["a", "b"])), "labels from 0 to 2, expected 0 to 1"),
        (bad(y=np.zeros(60, int)), "a single label"),
        (bad(y=np.arange(60) % 3 * 2), "labels from 0 to 4, but no example with 1, 3"),
        (bad(y=np.arange(60) * 90), "no example with 1, 2, 3, 4, 5 and others. Number"),
        (bad(x=np.array([None] * 60)), "images object"),
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
    for content in (b"PK\x03\x04 not a zip", b"\x93NUMPY", b""):
        (tmp_path / "toy.npz").write_bytes(content)
        with pytest.raises(
            DataError, match=r"toy\.npz cannot be read: it is no npz file; expected"
        ):
            Images(data="toy", folder=tmp_path).spec  # noqa: B018


def test_a_member_that_is_no_array_does_not_count(tmp_path):
    with zipfile.ZipFile(tmp_path / "toy.npz", "w") as file:
        file.writestr("x.npy", "no array")
        file.writestr("readme", "text")
    with pytest.raises(DataError, match=r"toy\.npz holds nothing; expected"):
        Images(data="toy", folder=tmp_path).spec  # noqa: B018


def test_a_pipe_and_a_header_that_claims_too_much_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DataError, match=r"pipe\.npz cannot be read: it is no regular file"):
        Images(data="pipe", folder=tmp_path).spec  # noqa: B018
    claiming(tmp_path, x=((10**11, 28, 28), 0), y=((10**11,), 0))
    with pytest.raises(
        DataError, match=r"header of x\.npy claims 78400000000000 bytes, and 0 foll"
    ):
        Images(data="claims", folder=tmp_path).spec  # noqa: B018


def claiming(folder, **arrays):
    """An npz of arrays, or of headers that claim a shape of bytes of which so many follow.

    In the archive's directory, these are as long as is stated, and in the file they are empty:
    reading them ends in an error.
    """
    with zipfile.ZipFile(folder / "claims.npz", "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w") as member:
                if isinstance(array, np.ndarray):
                    np.lib.format.write_array(member, array, allow_pickle=True)
                    continue
                head = {"descr": "|u1", "fortran_order": False, "shape": array[0]}
                np.lib.format.write_array_header_1_0(member, head)
            if not isinstance(array, np.ndarray):
                file.getinfo(f"{name}.npy").file_size += array[1]


HUGE = 3 * 2**30
THOUSANDS = {"x": ((3 * 2**20, 32, 32), HUGE)}
"""Images of 3 GiB."""


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({**THOUSANDS, "y": np.zeros(9, int)}, r"labels int64 \(9,\); expected"),
        ({**THOUSANDS, "y": ((HUGE // 4,), HUGE // 4)}, r"labels uint8 \(805306368,\); expected"),
        ({**THOUSANDS, "y": np.zeros(3 * 2**20, np.uint8)}, "a single label"),
        ({**THOUSANDS, "y": np.array([{}] * 9)}, r"labels object \(9,\); expected"),
        ({"x": ((3 * 2**20, 1024), HUGE), "y": np.zeros(9, int)}, r"uint8 \(3145728, 1024\)"),
        ({"x_train": ((6, 2**15, 2**14), HUGE), "y_train": np.arange(6),
          "x_test": np.zeros((1, 8, 8), np.uint8), "y_test": np.arange(1)},
         r"differ in shape or type: uint8 \(6, 1, 32768, 16384\) and uint8 \(1, 1, 8, 8\)"),
        ({**THOUSANDS, "y": np.arange(3 * 2**20) % 3, "names": np.array(3.0)}, r"names has shape"),
        ({**THOUSANDS, "y": np.arange(3 * 2**20) % 3, "names": ((HUGE,), HUGE)}, "names has 3221"),
        ({"x": ((3, 2**24, 2**24), 3 * 2**48), "y": np.arange(3)}, "images need 1,572,864 GiB"),
    ],
)  # fmt: skip
def test_what_headers_and_labels_refuse_is_refused_before_images_are_read(
    arrays, message, tmp_path
):
    claiming(tmp_path, **arrays)
    with pytest.raises(DataError, match=message):
        Images(data="claims", folder=tmp_path).spec  # noqa: B018


def test_a_broken_or_an_encrypted_archive_is_one_clear_error(tmp_path):
    np.savez_compressed(tmp_path / "toy.npz", **toy())
    content = bytearray((tmp_path / "toy.npz").read_bytes())
    content[200:300] = b"\xff" * 100
    (tmp_path / "toy.npz").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "locked.npz", "w") as file:
        file.writestr("x.npy", b"")
        file.getinfo("x.npy").flag_bits |= 1
    for name in ("toy", "locked"):
        with pytest.raises(DataError, match=rf"{name}\.npz cannot be read"):
            Images(data=name, folder=tmp_path).spec  # noqa: B018


def test_unknown_data_names_the_nearest(tmp_path):
    with pytest.raises(DataError, match=r"Did you mean 'toy'\? Known: digits, toy"):
        Images(data="toi", folder=written(tmp_path, **toy())).spec  # noqa: B018


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


def test_the_digits_are_those_of_scikit_learn(digits):
    expected, held = load_digits(), torch.cat(digits.shares)
    batch = digits.batch(held)
    assert torch.equal(batch.inputs[:, 0] * 16, torch.tensor(expected.images)[held].float())
    assert batch.labels.tolist() == expected.target[held.numpy()].tolist()
