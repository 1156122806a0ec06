"""The text task's texts: who holds them, what a batch of them holds, and the truth."""

import pytest
import torch
from support.processes import elsewhere
from support.small_text import SMALL, TASK, model, small

from fedsim.errors import DataError
from fedsim.tasks.text.examples import normalised as alike


@pytest.fixture(scope="module")
def task():
    return small()


@pytest.fixture(scope="module")
def masked():
    return small(task="masked-lm")


def parts(batch):
    return (batch.inputs, batch.labels, batch.lengths)


def gathered(batches):
    return [tensor.tolist() for batch in batches for tensor in parts(batch)]


def test_every_text_is_tested_public_or_with_one_client(task):
    tested, free, rest = (part.tolist() for part in task.used)
    assert sorted([*tested, *free, *rest]) == list(range(160))
    assert sorted(torch.cat(task.shares).tolist()) == rest
    assert (len(tested), len(free)) == (32, 12)
    assert len(task.auxiliary()) == 12
    assert small(auxiliary_fraction=0.0).auxiliary() is None


def test_a_sender_is_whole_with_one_client_on_request():
    task = small(clients=3, partition="sender")
    held = [{task.texts.senders[i] for i in share.tolist()} for share in task.shares]
    assert sum(map(len, held)) == len(set().union(*held)) == 8
    with pytest.raises(DataError, match=r"every client needs a sender of its own.* 8"):
        small(clients=9, partition="sender").num_examples(0)


def write(folder, texts, name="mine"):
    lines = [f"{text}\t{at % 2}" for at, text in enumerate(texts)]
    (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]), encoding="utf-8")
    return {"data": name, "folder": folder, "public": "messages", "clients": 1}


def test_public_and_auxiliary_text_is_nobodys(tmp_path):
    """Of texts that occur several times, none is both with a client and public."""
    texts = [f"the pin is {at % 7}" for at in range(60)]
    task = small(**write(tmp_path, texts), auxiliary_fraction=0.4)
    held = {alike(task.texts.texts[i]) for i in task.used[2].tolist()}
    free = {alike(task.texts.texts[i]) for i in task.used[1].tolist()}
    assert held
    assert not held & free
    (tmp_path / "lm.txt").write_text("THE  pin is 3\nnobody wrote this\n")
    own = small(**{**write(tmp_path, texts), "public": "lm"})
    assert "the pin is 3" in {alike(own.texts.texts[i]) for i in own.used[2].tolist()}
    assert own.prior() == ("nobody wrote this",)


def test_public_texts_are_the_auxiliary_ones_where_none_are_named(tmp_path):
    texts = [f"the pin is {at}" for at in range(40)]
    task = small(**{**write(tmp_path, texts), "public": None})
    assert set(task.prior()) == {task.texts.texts[i] for i in task.used[1].tolist()}
    assert small().prior()[0] != task.prior()[0]
    assert small(**{**write(tmp_path, texts), "public": None}, auxiliary_fraction=0).prior() is None


def test_no_text_is_cut_longer_ones_are_left_out_on_request(tmp_path, task):
    most = 20
    limited = small(longest=most)
    kept = torch.cat(limited.used).tolist()
    assert kept
    assert {i for i, ids in task.encoded.items() if len(ids) <= most} == set(kept)
    long = ["my pin is 5", "we meet at noon", "the bank " * 40 + "is", "a card", "I see"]
    narrow = model(settings={**SMALL, "max_position_embeddings": 24})
    with pytest.raises(DataError, match=r"text 2 has 83 tokens, and the model takes 24.*longest"):
        small(**write(tmp_path, long), model=narrow).num_examples(0)
    assert small(**write(tmp_path, long), model=narrow, longest=24).num_examples(0) > 0
    with pytest.raises(DataError, match=r"longest = 25, and the model takes 24"):
        small(**write(tmp_path, long), model=narrow, longest=25).num_examples(0)
    with pytest.raises(DataError, match=r"longest = 2 leaves 0 test and 0 training"):
        small(longest=2).num_examples(0)


def test_a_text_of_unknown_words_is_refused_and_one_among_others_is_not(tmp_path):
    known = ["my pin is 5", "we meet at noon", "the bank \u4e2d", "a card", "I see"]
    task = small(**write(tmp_path, known))
    assert task.num_examples(0) > 0
    with pytest.raises(DataError, match=r"knows no word of text 2 \('\u4e2d\u6587'\)"):
        small(**write(tmp_path, [*known[:2], "\u4e2d\u6587", *known[3:]])).num_examples(0)


def test_data_without_senders_cannot_be_cut_by_them(tmp_path):
    given = write(tmp_path, ["my pin", "a card", "the bank", "we meet"])
    with pytest.raises(DataError, match="does not say whose a text is"):
        small(**given, partition="sender").num_examples(0)


@pytest.mark.parametrize("client", [-1, 4])
def test_a_client_that_does_not_exist(task, client):
    with pytest.raises(DataError, match="clients run from 0 to 3"):
        task.batches(client, 0, batch_size=1, steps=1)


def test_a_batch_is_padded_ids_of_different_lengths(task):
    (batch,) = task.batches(1, 0, batch_size=3, steps=1)
    assert batch.inputs.dtype == batch.labels.dtype == batch.lengths.dtype == torch.int64
    assert batch.inputs.shape == (3, int(batch.lengths.max()))
    assert len(batch.lengths.unique()) > 1
    for ids, length in zip(batch.inputs, batch.lengths.tolist(), strict=True):
        assert (ids[0], ids[length - 1]) == (2, 3)
        assert (ids[:length] != 0).all()
        assert (ids[length:] == 0).all()


DRAW = f"""
from fedsim.tasks.text import Text
task = Text(seed=3, clients=4, task="masked-lm", **{TASK!r})
print([t.tolist() for b in task.batches(2, 5, batch_size=2, steps=2)
       for t in (b.inputs, b.labels, b.lengths)])
print(sum(float(p.detach().double().sum()) for p in task.module().parameters()))
"""


def test_batches_and_weights_are_the_same_in_another_process(masked):
    ours = gathered(masked.batches(2, 5, batch_size=2, steps=2))
    weights = sum(float(p.detach().double().sum()) for p in masked.module().parameters())
    assert elsewhere(DRAW) == f"{ours}\n{weights}"


@pytest.mark.parametrize("which", ["task", "masked"])
def test_batches_depend_on_seed_client_and_round_alone(which, request):
    task = request.getfixturevalue(which)

    def drawn(task, client, round, steps=2):
        return gathered(task.batches(client, round, batch_size=2, steps=steps)[:2])

    assert drawn(task, 1, 1, steps=5) == drawn(task, 1, 1)
    others = [drawn(task, 1, 2), drawn(task, 2, 1)]
    others.append(drawn(task.model_copy(update={"seed": 8}), 1, 1))
    assert drawn(task, 1, 1) not in others


def test_truth_is_what_the_batches_hold(task):
    batches = [b for c in (0, 2) for b in task.batches(c, 4, batch_size=2, steps=2)]
    truth = task.truth([0, 2], 4, batch_size=2, steps=2)
    assert truth.num_examples == 8
    assert torch.equal(truth.labels, torch.cat([batch.labels for batch in batches]))
    fed = [row[:n] for b in batches for row, n in zip(b.inputs, b.lengths, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(truth.inputs, fed, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(truth.tokens, fed, strict=True))
    assert truth.lengths == [len(one) for one in fed]
    assert truth.sequences is None
    originals = {text.lower() for text in task.texts.texts}
    assert set(truth.text) <= originals
    assert len(truth.attributes["sender"]) == 8


def test_masked_words_are_told_by_the_labels_and_the_truth_has_them(masked):
    (batch,) = masked.batches(0, 1, batch_size=4, steps=1)
    truth = masked.truth([0], 1, batch_size=4, steps=1)
    mask = masked.spec.tokens.special["mask"]
    told = batch.labels != -100
    assert ((batch.inputs == mask) == told).all()
    for row, target, whole, n in zip(
        batch.inputs, batch.labels, truth.tokens, batch.lengths.tolist(), strict=True
    ):
        filled = torch.where(target == -100, row, target)[:n]
        assert torch.equal(filled, whole)
        words = len(masked.spec.tokens.bare(whole.tolist()))
        assert int((target != -100).sum()) == max(1, round(0.15 * words))
    assert torch.equal(truth.labels, batch.labels[told])
    assert truth.num_examples == 4
    assert masked.spec.classes == masked.spec.vocabulary == 600


def test_nobody_can_change_what_later_batches_hold(task):
    before = gathered(task.batches(0, 0, batch_size=2, steps=1))
    truth = task.truth([0], 0, batch_size=2, steps=1)
    for tensor in (*truth.tokens, *truth.inputs, task.auxiliary().inputs):
        tensor.zero_()
    assert gathered(task.batches(0, 0, batch_size=2, steps=1)) == before
