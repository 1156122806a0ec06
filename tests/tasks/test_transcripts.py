"""Transcripts, the texts they are drawn from, and their word pieces."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.processes import elsewhere

from fedsim.errors import DataError
from fedsim.records import END
from fedsim.spec import SpeechSpec
from fedsim.tasks.speech.data import Limits, load
from fedsim.tasks.speech.voices import RATE
from fedsim.tasks.transcripts import ALPHABET, normalise, public_text, select_by_length
from fedsim.tasks.wordpieces import learn

REAL = os.environ.get("FEDSIM_DATA")
real = pytest.mark.skipif(not REAL, reason="FEDSIM_DATA names no folder of real data sets")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("YOU DON'T MEAN THAT", "you don't mean that"),
        ("“Don’t,” she said -- twice!", "don't she said twice"),
        ("Élan, naïve ﬁsh; 24 cafés", "elan naive fish cafes"),
        ("  a ' b '' c'  ", "a b c'"),
        ("零 1984", ""),
    ],
)
def test_plain_text_is_words_of_the_alphabet(said, expected):
    assert normalise(said) == expected


@given(st.text())
def test_plain_text_stays_as_it_is(said):
    once = normalise(said)
    assert normalise(once) == once
    assert set(once) <= {*ALPHABET, " "}
    assert once.split(" ") == once.split() or once == ""


def test_the_embedded_sentences_are_plain_distinct_and_use_every_letter():
    text = public_text("sentences", None)
    assert len(set(text)) == len(text) == 3000
    assert all(normalise(sentence) == sentence for sentence in text)
    assert set("".join(text)) == {*ALPHABET, " "}


def test_text_is_found_as_a_file_or_a_folder(tmp_path):
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "novel.txt").write_text("It rained. He ran!\nIn 1812 he left; so did she\n")
    (tmp_path / "lm" / "release.txt").write_text(" = Head line = \nan <unk> word\nHe ran .\n")
    assert public_text("novel", tmp_path) == ("it rained", "he ran", "so did she")
    assert public_text("lm", tmp_path) == ("it rained", "he ran", "so did she")
    (tmp_path / "lm" / "novel.txt").write_text("Now something else\n")
    os.utime(tmp_path / "lm" / "novel.txt", ns=(1, 1))
    assert public_text("novel", tmp_path) == ("now something else",)


def test_text_that_is_not_there_is_named(tmp_path):
    (tmp_path / "novel.txt").write_text("It rained.")
    with pytest.raises(DataError, match="Did you mean 'novel'"):
        public_text("novl", tmp_path)
    with pytest.raises(DataError, match=r"--data DIR or FEDSIM_DATA"):
        public_text("novel", None)
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"odd\.txt cannot be read"):
        public_text("odd", tmp_path)
    (tmp_path / "blank.txt").write_text("one\n\n2 3\n")
    with pytest.raises(DataError, match="no sentence of two words"):
        public_text("blank", tmp_path)


def test_texts_are_chosen_by_length():
    texts = ("aa", "b", "cc", "d", "e", "ffff")
    assert select_by_length(texts, None, None) == [0, 1, 2, 3, 4, 5]
    assert select_by_length(texts, 2, None) == [0, 1, 2, 3, 4]
    assert select_by_length(texts, 2, 1) == [0, 1]
    assert select_by_length(texts, None, 2) == [0, 1, 2, 3, 5]


def spec(pieces) -> SpeechSpec:
    return SpeechSpec(len(pieces.names), features=40, sample_rate=16_000, pieces=pieces.names)


def test_the_commonest_pairs_become_pieces():
    pieces = learn(("aba aba", "aba aba", "cab cab"), 32)
    assert pieces.names[END] == "<end>"
    assert set(pieces.names[1:29]) == {*ALPHABET, "▁"}
    # "ab" six times; then "▁" before "ab", and "a" after it, four times each.
    assert pieces.names[29:] == ("ab", "aba", "▁aba") or pieces.names[29:] == ("ab", "▁ab", "▁aba")
    assert len(pieces.encode("aba aba")) == 3


def test_encoding_and_spelling_are_inverse():
    text = public_text("sentences", None)
    pieces = learn(text, 256)
    for sentence in (*text[:200], "words never seen, all't'same".replace(",", ""), "z"):
        labels = pieces.encode(sentence)
        assert labels.dtype == torch.int64
        assert labels[-1] == END
        assert (labels[:-1] != END).all()
        assert spec(pieces).spell(labels.tolist()) == sentence


def test_spelling_stops_at_the_end_and_passes_over_what_is_no_label():
    pieces = learn(public_text("sentences", None), 64)
    labels = pieces.encode("the mill").tolist()
    assert spec(pieces).spell([-100, 9999, *labels, *pieces.encode("more")]) == "the mill"
    assert spec(pieces).spell([]) == ""


def test_pieces_are_the_same_in_every_process():
    text = public_text("sentences", None)
    code = """
from fedsim.tasks.transcripts import public_text
from fedsim.tasks.wordpieces import learn
print(*learn(public_text("sentences", None), 300).names)
"""
    assert elsewhere(code).split(" ") == list(learn(text, 300).names)
    assert learn(text, 300) is learn(text, 300)


def test_frequencies_are_those_of_the_text():
    text = public_text("sentences", None)[:200]
    pieces = learn(text, 100)
    counts = torch.bincount(torch.cat([pieces.encode(one) for one in text]), minlength=100)
    torch.testing.assert_close(pieces.frequencies, counts / counts.sum())


def test_more_pieces_than_the_text_has_are_refused():
    with pytest.raises(DataError, match=r"vocabulary = 5000, and the text gives \d+ word pieces"):
        learn(public_text("sentences", None), 5000)


@real
def test_sixteen_thousand_pieces_of_real_text():
    text = public_text("gutenberg_novels", Path(REAL))
    assert len(text) > 50_000
    pieces = learn(text, 16_384)
    assert len(set(pieces.names)) == 16_384
    assert spec(pieces).spell(pieces.encode("call me ishmael")) == "call me ishmael"
    assert len(pieces.encode("the captain of the ship")) == 6
    found = load("voices", Path(REAL), "gutenberg_novels", Limits(40, 1, longest=50, per_length=2))
    assert max(map(len, found.texts)) <= 50
    assert len(found[0].sound()) > RATE // 4
