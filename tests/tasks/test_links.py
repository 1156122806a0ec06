"""Links in a folder of images: within it they are followed, out of it refused."""

import pytest
from support.pictures import images, pictures

from fedsim.errors import DataError
from fedsim.tasks.local_data import inside_folder


def test_an_image_that_is_a_link_out_of_its_folder_is_refused(tmp_path):
    pictures(tmp_path / "pets")
    pictures(tmp_path / "elsewhere")
    (tmp_path / "pets" / "cat" / "9.png").symlink_to(tmp_path / "elsewhere" / "cat" / "1.png")
    with pytest.raises(DataError, match=r"'cat/9\.png' lies outside"):
        images("pets", tmp_path)


def test_a_link_within_a_folder_and_a_folder_that_is_a_link_are_fine(tmp_path):
    pictures(tmp_path / "pets")
    (tmp_path / "pets" / "cat" / "9.png").symlink_to(tmp_path / "pets" / "dog" / "1.png")
    (tmp_path / "linked").symlink_to(tmp_path / "pets")
    assert len(images("linked", tmp_path).labels) == 9
    with pytest.raises(DataError, match="lies outside"):
        inside_folder(tmp_path / "pets", "../../etc/passwd")


def test_a_split_that_is_a_link_out_of_the_folder_is_refused(tmp_path):
    for split in ("train", "test"):
        pictures(tmp_path / "elsewhere" / split)
    (tmp_path / "pets").mkdir()
    for split in ("train", "test"):
        (tmp_path / "pets" / split).symlink_to(tmp_path / "elsewhere" / split)
    with pytest.raises(DataError, match="lies outside"):
        images("pets", tmp_path)
