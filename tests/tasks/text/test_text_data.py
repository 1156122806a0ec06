"""Texts: the embedded messages, tables in a folder, sets of the Hub, public texts, tokenizers."""

import json
from collections import Counter

import datasets
import pytest
from support.processes import elsewhere

from fedsim.errors import DataError
from fedsim.tasks.text import data as text_data
from fedsim.tasks.text.data import load, public_texts
from fedsim.tasks.text.examples import normalised
from fedsim.tasks.text.languages.tokenizers import learn_tokenizer, load_tokenizer, special_affixes
from fedsim.tasks.text.messages import TOPICS, messages, public_messages

GIVEN = {"test_fraction": 0.25, "seed": 1}
ROWS = [{"text": f"sentence number {i}", "label": i % 2} for i in range(8)]


def table(folder, name="mine.jsonl", rows=ROWS):
    folder.mkdir(exist_ok=True)
    if name.endswith(".jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        between = "\t" if name.endswith(".tsv") else ","
        cells = [list(rows[0]), *(map(str, row.values()) for row in rows)]
        text = "".join(between.join(row) + "\n" for row in cells)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


# --- messages -------------------------------------------------------------------------------


def test_the_messages_are_eight_peoples_on_four_topics():
    found = messages()
    assert Counter((sender, topic) for sender, topic, _ in found).total() == 160
    assert set(Counter((sender, topic) for sender, topic, _ in found).values()) == {5}
    assert {topic for _, topic, _ in found} == set(TOPICS)
    assert len({text for *_, text in found}) == 160
    assert all(3 < len(text.split()) < 16 for *_, text in found)
    assert sum(any(c.isdigit() for c in text) for *_, text in found) > 80


LEARN = """
import hashlib
from fedsim.tasks.text.languages.tokenizers import learn_tokenizer
from fedsim.tasks.text.messages import public_messages
vocabulary = sorted(learn_tokenizer(public_messages(), 600, True).get_vocab().items())
print(hashlib.sha256(repr((public_messages(), vocabulary)).encode()).hexdigest())
"""


def test_public_messages_are_by_others_and_the_same_in_every_process(capsys):
    public = public_messages()
    assert len(public) == len(set(public)) == 2000
    assert not {normalised(one) for one in public} & {normalised(text) for *_, text in messages()}
    exec(LEARN, {})  # noqa: S102 - ours, here and in another process
    assert capsys.readouterr().out.strip() == elsewhere(LEARN)


def test_messages_are_labelled_by_topic_and_split_by_the_seed():
    found = load("messages", None, **GIVEN)
    assert found.names == TOPICS
    assert len(found) == 160
    assert (len(found.train), len(found.test)) == (120, 40)
    assert sorted([*found.train.tolist(), *found.test.tolist()]) == list(range(160))
    assert len(set(found.senders)) == 8
    for (_, topic, text), label, ours in zip(messages(), found.labels, found.texts, strict=True):
        assert (TOPICS[label], ours) == (topic, text)
    other = load("messages", None, test_fraction=0.25, seed=2)
    assert other.test.tolist() != found.test.tolist()
    assert other.fingerprint() == found.fingerprint()


# --- tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.csv", "mine.tsv"])
@pytest.mark.parametrize("inner", ["", "text"])
def test_a_table_is_found_by_its_stem(tmp_path, name, inner):
    table(tmp_path / inner if inner else tmp_path, name)
    found = load("mine", tmp_path, **GIVEN)
    assert found.texts == tuple(row["text"] for row in ROWS)
    assert found.labels.tolist() == [row["label"] for row in ROWS]
    assert found.names == ("0", "1")
    assert found.senders is None
    assert len(found.test) == 2


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.csv", "mine.tsv"])
def test_a_table_may_begin_with_a_byte_order_mark(tmp_path, name):
    path = table(tmp_path, name) / name
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load("mine", tmp_path, **GIVEN).texts == tuple(row["text"] for row in ROWS)


def test_a_row_with_more_cells_than_columns_is_named(tmp_path):
    (tmp_path / "own.csv").write_text("text,label\nfine,0\nwell, well,1\n")
    with pytest.raises(DataError, match="row 2 has more cells than there are columns, text, label"):
        load("own", tmp_path, test_fraction=0.5, seed=0)


def test_labels_may_be_names_and_columns_may_have_others(tmp_path):
    rows = [{"review": f"a b {i}", "class": "good" if i % 2 else "bad", "author": f"p{i % 3}",
             "split": "test" if i > 5 else "train"} for i in range(8)]  # fmt: skip
    found = load("mine", table(tmp_path, "mine.csv", rows), **GIVEN)
    assert found.names == ("bad", "good")
    assert found.labels.tolist() == [0, 1] * 4
    assert found.senders == tuple(f"p{i % 3}" for i in range(8))
    assert found.test.tolist() == [6, 7]
    rows = [{"what": f"a b {i}", "kind": i % 2} for i in range(4)]
    found = load("own", table(tmp_path, "own.jsonl", rows), columns=("what", "kind"), **GIVEN)
    assert found.texts[3] == "a b 3"


def test_another_table_can_be_the_test_split(tmp_path):
    table(tmp_path)
    table(tmp_path, "judge.jsonl", [{"text": "one two", "label": 1}])
    found = load("mine", tmp_path, test="judge", **GIVEN)
    assert found.test.tolist() == [8]
    assert found.texts[8] == "one two"
    assert found.labels[8] == 1


def test_a_tab_separated_table_has_no_quotes(tmp_path):
    (tmp_path / "mine.tsv").write_text('sentence\tlabel\n"so it goes\t0\nsaid " he\t1\na b\t1\n')
    assert load("mine", tmp_path, **GIVEN).texts == ('"so it goes', 'said " he', "a b")


def test_without_labels_only_where_none_are_needed(tmp_path):
    table(tmp_path, rows=[{"text": f"a b {i}"} for i in range(5)])
    found = load("mine", tmp_path, labelled=False, **GIVEN)
    assert found.labels.tolist() == [0] * 5
    with pytest.raises(DataError, match=r"has the columns text; expected .*labels"):
        load("mine", tmp_path, **GIVEN)


BAD = {
    "no text column": ([{"sent": "a", "label": 0}], r"columns sent, label; expected .*text_column"),
    "no rows": ([], r"no rows"),
    "one label": ([{"text": "a", "label": 0}] * 3, "single label"),
    "hidden labels": ([{"text": "a", "label": k} for k in (0, 1, -1)], r"text 3 has the label -1"),
    "a score": ([{"text": "a", "label": k} for k in (0, 1.0, 0.8)], r"text 3 has the label 0\.8"),
    "a score that is no number": ([{"text": "a", "label": k} for k in (0, 1, float("inf"))],
                                  r"text 3 has the label inf"),
    "gaps": ([{"text": "a", "label": k} for k in (0, 1, 900)], r"up to 900 on 3 texts"),
    "an empty text": ([{"text": t, "label": k} for k, t in enumerate(["a", " ", "b"])],
                      r"text 2 is empty"),
    "no label": ([{"text": "a", "label": k} for k in (0, 1, None)], r"row 3 .*a label in 'label'"),
    "an empty label": ([{"text": "a", "label": k} for k in ("x", "y", "")], r"text 3 has no label"),
    "no text": ([{"text": t, "label": 0} for t in ("a", 7)], r"row 2 .*a text in 'text'"),
    "too few": ([{"text": "a", "label": k} for k in (0, 1)], r"2 texts; expected 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_one_clear_error(tmp_path, case):
    rows, message = BAD[case]
    with pytest.raises(DataError, match=message):
        load("mine", table(tmp_path, rows=rows), **GIVEN)


def test_what_is_not_there(tmp_path):
    table(tmp_path)
    with pytest.raises(DataError, match="Did you mean 'mine'"):
        load("mien", tmp_path, **GIVEN)
    with pytest.raises(DataError, match=r'data = "messages".*--data'):
        load("mine", None, **GIVEN)
    with pytest.raises(DataError, match="not there"):
        load("mine", tmp_path / "gone", **GIVEN)
    with pytest.raises(DataError, match=r"label_column = 'lable'.*Did you mean 'label'"):
        load("mine", tmp_path, columns=(None, "lable"), **GIVEN)
    (tmp_path / "broken.jsonl").write_text('{"text": "a", "label": 1}\n{"text": a}\n')
    with pytest.raises(DataError, match="cannot be read: line 2, column 10: Expecting value"):
        load("broken", tmp_path, **GIVEN)
    (tmp_path / "old.csv").write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"old\.csv cannot be read: .*; save it as UTF-8"):
        load("old", tmp_path, **GIVEN)
    (tmp_path / "list.jsonl").write_text("[1, 2]\n")
    with pytest.raises(DataError, match="no object"):
        load("list", tmp_path, **GIVEN)


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setattr(text_data, "PACKAGES", ("tokenizers", "no_such_package"))
    with pytest.raises(DataError, match=r"no_such_package: pip install -e '\.\[text\]' in"):
        load("messages", None, **GIVEN)


# --- the Hub --------------------------------------------------------------------------------


def split(labels, names=("no", "yes")):
    features = {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=[*names])}
    rows = {"sentence": [f"text {i}" for i in range(len(labels))], "label": labels}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def test_a_set_of_the_hub_is_judged_on_labels_that_are_told(monkeypatch):
    parts = {"train": split([0, 1, 1]), "validation": split([1]), "test": split([-1, -1])}
    monkeypatch.setattr(text_data, "hub_splits", lambda name, otherwise: parts)
    found = load("hub:nyu/glue/cola", None, **GIVEN)
    assert found.names == ("no", "yes")
    assert found.labels.tolist() == [0, 1, 1, 1]
    assert found.test.tolist() == [3]
    parts["test"] = split([0, 0])
    assert load("hub:nyu/glue/cola", None, **GIVEN).labels.tolist() == [0, 1, 1, 0, 0]
    del parts["train"]
    with pytest.raises(DataError, match="expected a 'train'"):
        load("hub:nyu/glue/cola", None, **GIVEN)


def test_without_a_network_the_two_ways_out_are_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: (_ for _ in ()).throw(OSError("off")))
    with pytest.raises(DataError, match=r"load it once .*or save it under --data as a table"):
        load("hub:nyu/glue/cola", None, **GIVEN)


# --- public texts and tokenizers ------------------------------------------------------------


def test_public_texts_are_the_lines_of_a_file_each_once(tmp_path):
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "book.txt").write_text("One two.\n\nalone\n  One two.\nThree, four 5\n")
    assert public_texts("book", tmp_path) == ("One two.", "Three, four 5")
    assert public_texts("lm", tmp_path) == ("One two.", "Three, four 5")
    assert public_texts("messages", None) == public_messages()
    with pytest.raises(DataError, match=r"Did you mean 'book'"):
        public_texts("bok", tmp_path)
    (tmp_path / "words.txt").write_text("alone\n")
    with pytest.raises(DataError, match="no line of two words"):
        public_texts("words", tmp_path)


def test_a_learned_tokenizer_spells_what_it_read():
    tokenizer = learn_tokenizer(public_messages(), 600, True)
    assert len(tokenizer) == 600
    assert special_affixes(tokenizer) == ((2,), (3,))
    for *_, text in messages()[::7]:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == text.lower()
    assert tokenizer.unk_token_id in tokenizer("\u4e2d")["input_ids"]


def test_a_decoders_learned_tokenizer_frames_nothing_and_masks_nothing():
    tokenizer = learn_tokenizer(public_messages(), 600, False)
    assert special_affixes(tokenizer) == ((), ())
    assert tokenizer.mask_token_id is None


def test_too_little_text_for_the_vocabulary_is_told():
    with pytest.raises(DataError, match=r"task\.vocabulary = 4000, and the text gives \d+ word"):
        learn_tokenizer(("one two three",), 4000, True)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(DataError, match=r"no tokenizer in .*tokenizer = \"FOLDER\""):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "count"), [("cola_dev", 527), ("rotten_tomatoes_test", 1066), ("sst2_dev", 872)]
)
def test_the_papers_sets_are_read_as_they_lie(real_data, name, count):
    found = load(name, real_data, **GIVEN)
    assert len(found) == count
    assert found.names == ("0", "1")
