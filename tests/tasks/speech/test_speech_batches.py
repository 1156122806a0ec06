"""The speech task's utterances: who holds them, what a batch of them holds, and the truth."""

import hashlib
import itertools

import pytest
import torch
from support.processes import elsewhere
from support.small_speech import TASK

from fedsim.errors import DataError
from fedsim.tasks.speech import Speech


@pytest.fixture(scope="module")
def task():
    return Speech(seed=3, clients=4, **TASK)


def digest(batches):
    value = hashlib.sha256()
    for batch in batches:
        for part in (batch.inputs, batch.labels, batch.lengths):
            value.update(part.numpy().tobytes())
    return value.hexdigest()


def test_every_utterance_is_tested_public_or_with_one_client(task):
    tested, auxiliary, rest = (part.tolist() for part in task.splits)
    assert sorted(torch.cat(task.shares).tolist()) == rest
    assert sorted([*tested, *auxiliary, *rest]) == list(range(32))
    assert (len(tested), len(auxiliary)) == (6, 2)
    assert sum(map(task.num_examples, range(4))) == len(rest)
    assert len(task.auxiliary()) == 2
    assert Speech(clients=4, **TASK, auxiliary_fraction=0.0).auxiliary() is None


@pytest.mark.parametrize("clients", [1, 3, 4])
def test_by_default_a_speaker_is_whole_with_one_client(clients):
    task = Speech(seed=3, clients=clients, **TASK)
    held = [{task.recordings.speakers[i] for i in share.tolist()} for share in task.shares]
    assert sum(map(len, held)) == len(set().union(*held)) == 4
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_other_partitions_mix_speakers():
    task = Speech(seed=3, clients=8, **TASK, partition="iid")
    assert max(map(len, task.shares)) - min(map(len, task.shares)) <= 1
    assert len({task.recordings.speakers[i] for i in task.shares[0].tolist()}) > 1
    with pytest.raises(DataError, match=r"8 clients: every client needs a speaker of its own.* 4"):
        Speech(clients=8, **TASK).num_examples(0)


def test_neighbours_in_length_go_to_one_client():
    def spread(task):
        sizes = [[len(task.recordings[i].sound()) for i in own.tolist()] for own in task.shares]
        return [(min(own), max(own)) for own in sizes]

    task = Speech(seed=3, clients=4, **TASK, partition="length")
    assert sorted(torch.cat(task.shares).tolist()) == sorted(task.splits[2].tolist())
    ranges = sorted(spread(task))
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(ranges))
    assert spread(task) != ranges  # who has the short ones is drawn

    task = Speech(seed=3, clients=4, **TASK, partition={"kind": "length", "each": 2})
    assert [len(own) for own in task.shares] == [2] * 4
    assert len({i for own in task.shares for i in own.tolist()}) == 8
    with pytest.raises(DataError, match=r"'length' cannot cut.* there are \d times 9 of them"):
        Speech(clients=4, **TASK, partition={"kind": "length", "each": 9}).num_examples(0)


@pytest.mark.parametrize("client", [-1, 4])
def test_a_client_that_does_not_exist(task, client):
    with pytest.raises(DataError, match="clients run from 0 to 3"):
        task.batches(client, 0, batch_size=1, steps=1)


def test_a_batch_pads_frames_with_zeros_and_word_pieces_with_minus_100(task):
    (batch,) = task.batches(1, 0, batch_size=3, steps=1)
    assert batch.inputs.dtype == torch.float32
    assert batch.labels.dtype == batch.lengths.dtype == torch.int64
    assert batch.inputs.shape == (3, int(batch.lengths.max()), 26)
    assert len(batch.lengths.unique()) > 1
    for frames, labels, length in zip(batch.inputs, batch.labels, batch.lengths, strict=True):
        assert not frames[length:].any()
        assert frames[:length].any(dim=1).all()
        said = labels[labels != -100]
        assert (labels[len(said) :] == -100).all()
        assert said[-1] == 0
        assert (said[:-1] > 0).all()
        assert task.spec.spell(said) in task.recordings.texts


DRAW = f"""
import hashlib
import itertools
from fedsim.tasks.speech import Speech
task = Speech(seed=3, clients=4, **{TASK!r})
value = hashlib.sha256()
for batch in task.batches(2, 5, batch_size=2, steps=2):
    for part in (batch.inputs, batch.labels, batch.lengths):
        value.update(part.numpy().tobytes())
print(value.hexdigest())
"""


def test_a_batch_is_the_same_in_another_process(task):
    ours = digest(task.batches(2, 5, batch_size=2, steps=2))
    assert elsewhere(DRAW) == ours


def test_batches_depend_on_seed_client_and_round_alone(task):
    def drawn(task, client, round, steps=2):
        return digest(task.batches(client, round, batch_size=2, steps=steps)[:2])

    assert drawn(task, 1, 1, steps=5) == drawn(task, 1, 1)
    others = [drawn(task, 1, 2), drawn(task, 2, 1)]
    others.append(drawn(task.model_copy(update={"seed": 8}), 1, 1))
    assert drawn(task, 1, 1) not in others


def test_truth_is_what_was_said_in_the_batches(task):
    batches = [b for c in (0, 2) for b in task.batches(c, 4, batch_size=2, steps=2)]
    truth = task.truth([0, 2], 4, batch_size=2, steps=2)
    assert truth.num_examples == 8
    targets = [row[row != -100] for batch in batches for row in batch.labels]
    assert all(torch.equal(a, b) for a, b in zip(truth.sequences, targets, strict=True))
    assert torch.equal(truth.labels, torch.cat(targets))
    assert truth.lengths == [int(n) for batch in batches for n in batch.lengths]
    heard = [row[:n] for b in batches for row, n in zip(b.inputs, b.lengths, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(truth.inputs, heard, strict=True))
    assert truth.text == [task.spec.spell(one) for one in truth.sequences]
    assert len(set(truth.attributes["speaker"])) == 2


def test_nobody_can_change_what_later_batches_hold(task):
    before = digest(task.batches(0, 0, batch_size=2, steps=1))
    truth, (batch,) = (f(0, 0) for f in (
        lambda c, r: task.truth([c], r, batch_size=2, steps=1),
        lambda c, r: task.batches(c, r, batch_size=2, steps=1),
    ))  # fmt: skip
    truth.inputs[0].zero_()
    batch.inputs.zero_()
    task.auxiliary().inputs.zero_()
    assert digest(task.batches(0, 0, batch_size=2, steps=1)) == before
