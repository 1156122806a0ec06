"""Folders of images: hidden files, and splits with other names."""

import numpy as np
import pytest
from PIL import Image

from fedsim.errors import DataError
from fedsim.tasks.images.data import load


def write(folder, number=6):
    folder.mkdir(parents=True)
    for i in range(number):
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(folder / f"{i}.png")


def read(folder):
    return load("own", folder, size=None, test_fraction=0.5, seed=0)


def test_hidden_folders_and_files_are_no_labels_and_no_images(tmp_path):
    for label in ("a", "b", ".ipynb_checkpoints"):
        write(tmp_path / "own" / label)
    (tmp_path / "own" / "a" / "._1.png").write_bytes(b"of macOS")
    found = read(tmp_path)
    assert found.label_names == ("a", "b")
    assert len(found.labels) == 12


def test_splits_with_other_names_are_not_taken_for_labels(tmp_path):
    for split in ("train", "val"):
        for label in ("a", "b"):
            write(tmp_path / "own" / split / label)
    with pytest.raises(DataError, match=r"holds train, val, .* call the other split test"):
        read(tmp_path)


def test_train_may_be_a_label(tmp_path):
    for label in ("bus", "train"):
        write(tmp_path / "own" / label)
    assert read(tmp_path).label_names == ("bus", "train")
