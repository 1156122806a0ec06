"""The images task's batches: the same everywhere, composed as asked, and the truth of them."""

import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from support.processes import elsewhere

from fedsim.tasks.images import Images


def digest(batches):
    value = hashlib.sha256()
    for batch in batches:
        value.update(batch.inputs.numpy().tobytes() + batch.labels.numpy().tobytes())
    return value.hexdigest()


DRAW = """
import hashlib
from fedsim.tasks.images import Images
task = Images(seed=7, clients=20, composition="unbalanced", partition="dirichlet")
value = hashlib.sha256()
for batch in task.batches(3, 5, batch_size=8, steps=4):
    value.update(batch.inputs.numpy().tobytes() + batch.labels.numpy().tobytes())
print(value.hexdigest())
"""


def test_a_batch_is_the_same_in_another_process_and_after_other_draws():
    task = Images(seed=7, clients=20, composition="unbalanced", partition="dirichlet")
    task.batches(1, 9, batch_size=3, steps=2)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    ours = digest(task.batches(3, 5, batch_size=8, steps=4))
    assert torch.equal(state, torch.random.get_rng_state())
    assert ours == digest(task.batches(3, 5, batch_size=8, steps=4))
    assert elsewhere(DRAW) == ours


@pytest.mark.parametrize("composition", ["natural", "unbalanced", "balanced"])
def test_batches_depend_on_seed_client_and_round_alone(composition):
    task = Images(seed=7, clients=5, composition=composition)

    def drawn(task, client, round, steps=3):
        return digest(task.batches(client, round, batch_size=8, steps=steps)[:2])

    reference = drawn(task, 1, 1)
    assert drawn(task, 1, 1, steps=9) == reference
    assert drawn(task, 1, 2) != reference
    assert drawn(task, 2, 1) != reference
    assert drawn(task.model_copy(update={"seed": 8}), 1, 1) != reference


def test_truth_is_what_the_client_trained_on(digits):
    batches = digits.batches(4, 2, batch_size=5, steps=3)
    truth = digits.truth([4], 2, batch_size=5, steps=3)
    assert torch.equal(truth.labels, torch.cat([batch.labels for batch in batches]))
    assert torch.equal(torch.stack(list(truth.inputs)), torch.cat([b.inputs for b in batches]))


def test_natural_batches_walk_through_a_clients_examples(digits):
    held = digits.num_examples(0)
    batches = digits.batches(0, 0, batch_size=10, steps=held // 10 + 1)
    first = torch.cat([batch.inputs for batch in batches[:-1]]).flatten(1)
    own = digits.examples.inputs(digits.shares[0]).flatten(1)
    assert len({row.numpy().tobytes() for row in first}) == len(first) == held // 10 * 10
    known = {row.numpy().tobytes() for row in own}
    assert all(row.numpy().tobytes() in known for row in first)
    assert all(len(batch) == 10 for batch in batches)


@pytest.mark.parametrize("composition", ["natural", "unbalanced", "balanced"])
def test_a_batch_is_no_larger_than_what_a_client_holds(composition):
    task = Images(clients=50, composition=composition)
    held = task.num_examples(3)
    assert [len(batch) for batch in task.batches(3, 0, batch_size=999, steps=2)] == [held] * 2


@pytest.mark.parametrize("size", [2, 8, 17, 128])
def test_unbalanced_batches_hold_half_of_one_label_and_a_quarter_of_another(size):
    task = Images(clients=1, composition="unbalanced")
    for batch in task.batches(0, 0, batch_size=size, steps=5):
        assert len(batch) == size
        counts = Counter(batch.labels.tolist())
        (_, most), *others = counts.most_common()
        assert most >= size // 2
        assert max([n for _, n in others], default=0) >= size // 4 or most >= size * 3 // 4
        head = Counter(batch.labels[: size // 2].tolist())
        assert len(head) == 1
        assert len(set(batch.labels[size // 2 : size // 2 + size // 4].tolist())) <= 1
        assert len({image.numpy().tobytes() for image in batch.inputs}) == size


def test_the_two_frequent_labels_stay_for_all_steps_of_a_round():
    task = Images(clients=1, composition="unbalanced")
    batches = task.batches(0, 0, batch_size=8, steps=5)
    assert len({int(batch.labels[0]) for batch in batches}) == 1
    assert len({int(batch.labels[4]) for batch in batches}) == 1
    rounds = {int(task.batches(0, r, batch_size=8, steps=1)[0].labels[0]) for r in range(20)}
    assert len(rounds) > 1


def test_an_unbalanced_batch_repeats_only_what_a_client_has_too_few_of():
    task = Images(clients=130, composition="unbalanced")
    held = task.num_examples(0)
    assert held < 15
    own = Counter(task.examples.labels[task.shares[0]].tolist())
    (batch,) = task.batches(0, 0, batch_size=held, steps=1)
    major = int(batch.labels[0])
    times = Counter(image.numpy().tobytes() for image in batch.inputs[: held // 2])
    assert len(times) == min(own[major], held // 2)


def test_a_client_of_one_label_can_still_be_unbalanced():
    task = Images(
        clients=10,
        composition="unbalanced",
        partition={"kind": "pathological", "num_classes_per_partition": 1},
    )
    (batch,) = task.batches(0, 0, batch_size=8, steps=1)
    assert len(batch) == 8
    assert len(set(batch.labels.tolist())) == 1


@pytest.mark.parametrize("size", [4, 10, 25])
def test_balanced_batches_hold_labels_equally_often(size):
    task = Images(clients=2, composition="balanced")
    for batch in task.batches(0, 0, batch_size=size, steps=3):
        counts = np.bincount(batch.labels.numpy(), minlength=10)
        assert counts.sum() == size
        assert counts.max() - counts.min() <= 1
