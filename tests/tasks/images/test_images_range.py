"""Images that are stored in another range than their type says."""

import numpy as np
import pytest

from fedsim.tasks.images import Images


@pytest.mark.parametrize(("highest", "said"), [(16, 1), (1, 1), (255, 0), (90, 0)])
def test_images_that_are_nearly_black_are_cautioned(tmp_path, highest, said):
    images = np.random.default_rng(0).integers(0, highest + 1, (60, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x=images, y=np.arange(60) % 3)
    found = [
        one
        for one in Images(data="own", folder=tmp_path, clients=2).cautions()
        if f"nearly black, with values up to {highest} of 255" in one
    ]
    assert len(found) == said


def test_black_images_are_cautioned(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((60, 8, 8), np.uint8), y=np.arange(60) % 3)
    (caution,) = Images(data="own", folder=tmp_path, clients=2).cautions()
    assert caution == "data 'own': images are black: nothing of them can be learned"
