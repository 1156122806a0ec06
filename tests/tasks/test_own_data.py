"""Data of the user's own: what a function returns, folders, paths, tables, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from support.own_code import beside, fresh
from support.pictures import images, pictures

from fedsim.engine.preflight import preflight
from fedsim.errors import DataError
from fedsim.references import look_in
from fedsim.scenario import Scenario
from fedsim.tasks.images import Images
from fedsim.tasks.speech.data import Limits
from fedsim.tasks.speech.data import load as load_speech
from fedsim.tasks.speech.local import _sampled
from fedsim.tasks.tabular import Tabular
from fedsim.tasks.text.data import load as load_texts

LOADERS = """
import numpy as np
import torch

rng = np.random.default_rng(0)
pictures = rng.random((30, 6, 6), dtype=np.float32)
classes = np.arange(30) % 3
calls = []


def pair():
    calls.append(1)
    return pictures, classes


def tensors():
    return torch.from_numpy(pictures)[:, None], torch.from_numpy(classes)


def lists():
    return [picture.tolist() for picture in pictures], classes.tolist()


def split():
    return {"x_train": pictures[:20], "y_train": classes[:20], "x_test": pictures[20:],
            "y_test": classes[20:], "label_names": ["a", "b", "c"]}


def ragged():
    return [[[0.0]], [[0.0, 1.0]]], [0, 1]


def shorter():
    return pictures, classes[:-1]


def holes():
    return np.where(pictures > 0.5, np.nan, pictures), classes


def floats():
    return pictures, classes / 2


def nothing():
    pass


def text():
    return "images"


def raises():
    raise FileNotFoundError("my.npz")


def texts():
    return [f"this is text {n}" for n in range(9)], [n % 2 for n in range(9)]


def rows():
    return [{"message": f"text {n}", "topic": "ab"[n % 2], "sender": "me"} for n in range(9)]


def no_rows():
    return []


def one_name_twice():
    import pandas as pd

    return pd.DataFrame([[1.0, 2.0]] * 9, columns=["a", "a"])


def short_labels():
    return ["one text", "another text", "a third"], [0, 1]


def missing_text():
    return ["one text", None, "a third"], [0, 1, 0]


def table():
    return {"size": range(12), "shop": ["north", "south"] * 6, "label": list("aabb") * 3}


def uneven():
    return {"size": [1, 2, 3], "label": ["a", "b"]}


def sounds():
    return [(np.sin(np.arange(4000) / 5), 8000, "hello there", f"s{n % 2}") for n in range(6)]


def bad_sound():
    return [(np.array([np.nan, 1.0]), 8000, "hello", "s")]


def bad_rows():
    return [(np.zeros(8000), "hello")]
"""


@pytest.fixture
def own(tmp_path):
    """The module of loaders, found in the scenario's folder."""
    module = fresh()
    (tmp_path / f"{module}.py").write_text(LOADERS)
    look_in([tmp_path])
    return module


def texts(name, folder=None):
    return load_texts(name, folder, test_fraction=0.2, seed=0)


# --- functions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pair", "tensors", "lists"])
def test_images_and_labels_come_from_a_function(own, name):
    found = images(f"{own}:{name}")
    assert (found.shape, found.classes, len(found.labels)) == ((1, 6, 6), 3, 30)
    assert found.fingerprint() == images(f"{own}:pair").fingerprint()


def test_a_function_is_called_once_in_a_process_and_may_bring_a_split(own):
    from fedsim.references import resolve

    images(f"{own}:pair")
    images(f"{own}:pair")
    assert resolve(f"{own}:calls") == [1]
    found = images(f"{own}:split")
    assert (len(found.train), len(found.test), found.label_names) == (20, 10, ("a", "b", "c"))


def test_texts_come_from_a_function_as_two_lists_or_rows(own):
    pair, rows = texts(f"{own}:texts"), texts(f"{own}:rows")
    assert (len(pair), pair.names) == (9, ("0", "1"))
    assert (rows.names, rows.senders) == (("a", "b"), ("me",) * 9)


def test_a_table_comes_from_a_function(own):
    found = Tabular(data=f"{own}:table", clients=2).examples
    assert (found.rows.shape, found.names) == ((12, 3), ("a", "b"))
    with pytest.raises(DataError, match=r"returned no table: .*same length; expected a DataFrame"):
        Tabular(data=f"{own}:uneven", clients=2).examples  # noqa: B018 - loads it
    for name, columns in (("no_rows", "none"), ("one_name_twice", "a, a")):
        with pytest.raises(DataError, match=f"has the columns: {columns}; expected some, all diff"):
            Tabular(data=f"{own}:{name}", clients=2).examples  # noqa: B018 - loads it


def test_sound_comes_from_a_function(own):
    found = load_speech(f"{own}:sounds", None, "sentences", Limits())
    assert (len(found), found.texts[0], found.speakers[:2]) == (6, "hello there", ("s0", "s1"))
    assert found[0].sound().shape == (8000,), "resampled to 16 kHz"


def test_the_rate_of_a_recording_is_part_of_the_fingerprint_and_may_be_numpys():
    def content(rate):
        return _sampled("row 0", [0.0, 0.5, 0.25, 0.0], rate, "hello", "s0").content()

    assert content(np.int64(8000)) == content(8000) != content(16000)


@pytest.mark.parametrize(
    ("reader", "name", "said"),
    [
        (images, "ragged", "returned no arrays: .*inhomogeneous"),
        (images, "shorter", r"images float32 \(30, 6, 6\), labels int64 \(29,\); expected"),
        (images, "holes", "of these floats are NaN or infinite"),
        (images, "floats", r"labels float64 \(30,\); expected"),
        (images, "nothing", r"nothing\(\) returned nothing; expected \(images, labels\)"),
        (images, "text", r"returned str; expected \(images, labels\)"),
        (images, "raises", "raised FileNotFoundError: my.npz; expected it to return"),
        (images, "calls", "expected a function"),
        (texts, "short_labels", "All arrays must be of the same length; expected"),
        (texts, "missing_text", "row 2 has .* expected a text in 'text'"),
        (texts, "text", "returned no table"),
        (
            lambda name: load_speech(name, None, "sentences", Limits()),
            "bad_sound",
            r"samples of shape \(2,\), or not all finite; expected a list of",
        ),
        (
            lambda name: load_speech(name, None, "sentences", Limits()),
            "bad_rows",
            r"missing 2 required .*; expected a list of \(samples, rate",
        ),
    ],
)
def test_what_a_function_should_not_return_is_said(own, reader, name, said):
    with pytest.raises(DataError, match=said):
        reader(f"{own}:{name}")


def test_check_finds_a_function_beside_the_scenario(tmp_path):
    module = fresh()
    text = f'[task]\nname = "images"\ndata = "{module}:pair"\n[training]\nclients = 2'
    path = beside(tmp_path / "there", text, **{module: LOADERS})
    built, _ = preflight(Scenario.load(path, ["engine.workers=1"]))
    assert built.task.spec.input_shape == (1, 6, 6)


# --- folders, paths and tables --------------------------------------------------------------


def test_a_folder_of_images_has_a_subfolder_a_label(tmp_path):
    pictures(tmp_path / "images" / "pets")
    (tmp_path / "images" / "pets" / "notes").mkdir()
    (tmp_path / "images" / "pets" / "notes" / "read.me").touch()
    found = images("pets", tmp_path)
    assert (found.shape, found.label_names) == ((3, 5, 5), ("cat", "dog"))
    assert found.labels.tolist() == [0] * 4 + [1] * 4
    assert images(str(tmp_path / "images" / "pets")).fingerprint() == found.fingerprint()


def test_a_folder_may_hold_a_split_and_its_images_may_be_resized(tmp_path):
    pictures(tmp_path / "pets" / "train")
    pictures(tmp_path / "pets" / "test", count=1, side=7)
    with pytest.raises(DataError, match=r"differ in size; set task\.size"):
        images("pets", tmp_path)
    assert images("pets", tmp_path, size=6).shape == (3, 6, 6)
    pictures(tmp_path / "mixed", side=5)
    pictures(tmp_path / "mixed" / "more", count=1, side=7)
    with pytest.raises(DataError, match=r"differ in size; set task\.size"):
        images("mixed", tmp_path)
    assert images("mixed", tmp_path, size=6).shape == (3, 6, 6)


def test_an_image_of_16_bits_is_refused_and_not_clipped_to_white(tmp_path):
    from PIL import Image

    pictures(tmp_path / "scans")
    Image.fromarray(np.full((5, 5), 40_000, dtype=np.uint16)).save(tmp_path / "scans/cat/9.png")
    with pytest.raises(DataError, match=r"16 or 32 bits a pixel \(mode I;16\), expected 8"):
        images("scans", tmp_path)


def test_a_path_is_relative_to_the_scenario(tmp_path, monkeypatch):
    pictures(tmp_path / "there" / "pets")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = beside(tmp_path / "there", '[task]\ndata = "./pets"\n[training]\nclients = 2')
    task = Scenario.load(path).build_task()
    assert isinstance(task, Images)
    assert task.examples.label_names == ("cat", "dog")


def test_what_is_no_image_and_no_layout_is_said(tmp_path):
    (tmp_path / "pets" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="no images in subfolders; expected one subfolder a label"):
        images("pets", tmp_path)
    (tmp_path / "pets" / "cat" / "1.png").write_text("no image")
    with pytest.raises(DataError, match=r"1\.png cannot be read as an image"):
        images("pets", tmp_path)


def test_texts_come_from_parquet_by_name_and_from_a_table_by_path(tmp_path):
    table = pd.DataFrame(
        {"text": [f"text {n}" for n in range(9)], "label": [n % 2 for n in range(9)]}
    )
    table.to_parquet(tmp_path / "mails.parquet")
    table.to_csv(tmp_path / "mails.csv", index=False)
    found = [texts(name, tmp_path) for name in (str(tmp_path / "mails.parquet"), "mails")]
    assert found[0].fingerprint() == found[1].fingerprint()
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"broken\.parquet cannot be read"):
        texts("broken", tmp_path)


def sounds(folder, *names):
    soundfile = pytest.importorskip("soundfile")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, np.sin(np.arange(8000) / 9), 16000)


def test_a_folder_of_sounds_has_a_subfolder_a_word(tmp_path):
    sounds(tmp_path / "words", "yes/ann_1.wav", "yes/bob_1.wav", "no/ann_2.wav")
    found = load_speech("words", tmp_path, "sentences", Limits())
    assert found.texts == ("no", "yes", "yes")
    assert found.speakers == ("ann", "ann", "bob")
    assert load_speech(f"{tmp_path}/words", None, "sentences", Limits()).texts == found.texts


# --- files that an index names stay inside its folder ----------------------------------------


@pytest.mark.parametrize("way", ["../../secret.wav", "absolute", "link"])
def test_a_recording_outside_its_folder_is_refused(tmp_path, way):
    sounds(tmp_path, "secret.wav", "data/set/1.wav", "data/set/2.wav", "data/set/3.wav")
    folder = tmp_path / "data" / "set"
    (folder / "link.wav").symlink_to(tmp_path / "secret.wav")
    file = {"absolute": str(tmp_path / "secret.wav"), "link": "link.wav"}.get(way, way)
    lines = [f"{n}.wav,ann,hello" for n in (1, 2, 3)]
    index = folder / "index.csv"
    index.write_text("\n".join(["file,speaker,transcript", *lines, f"{file},ann,hello"]))
    with pytest.raises(DataError, match=r"lies outside .*read from its own folder only"):
        load_speech(str(index), None, "sentences", Limits())
    index.write_text("\n".join(["file,speaker,transcript", *lines]))
    assert len(load_speech(str(index), tmp_path, "sentences", Limits())) == 3


def test_a_list_of_librispeech_names_files_beside_it_only(tmp_path):
    sounds(tmp_path, "secret.wav", "set/s/c/s-c-0.wav")
    (tmp_path / "set/s/c/s-c.trans.txt").write_text("s-c-0 HELLO\n../../../secret HELLO\n")
    with pytest.raises(DataError, match="lies outside"):
        load_speech("set", tmp_path, "sentences", Limits())
