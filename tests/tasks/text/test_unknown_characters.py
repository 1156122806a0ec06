"""Texts with characters that a learned tokenizer does not know, and labels that are scores."""

import csv

import pytest

from fedsim.errors import DataError
from fedsim.tasks.text import Text

TEXTS = ["see you at noon", "line one\nline two", "my cat\tand dog", "in Zürich at noon"] * 5


def task(folder, texts=TEXTS, labels="ab"):
    rows = [(text, labels[at % len(labels)]) for at, text in enumerate(texts)]
    with (folder / "own.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return Text(data="own", folder=folder, clients=2, partition="iid", auxiliary_fraction=0.0)


def spelled(one):
    return {one.tokens.spell(ids) for ids in one.encoded.values()}


def test_tabs_and_line_ends_part_words(tmp_path):
    assert {"line one line two", "my cat and dog"} <= spelled(task(tmp_path))


def test_texts_with_unknown_characters_are_counted(tmp_path):
    (said,) = [one for one in task(tmp_path).cautions() if "does not know" in one]
    assert "data 'own': 5 of 20 texts have characters" in said
    assert "in Zürich at noon" in said
    known = [text for text in TEXTS if "ü" not in text]
    assert not [one for one in task(tmp_path, known).cautions() if "does not know" in one]


def test_scores_are_no_classes(tmp_path):
    with pytest.raises(DataError, match=r"text 2 has the label 0\.5; expected an integer from 0"):
        _ = task(tmp_path, labels=["0", "0.5"]).texts
