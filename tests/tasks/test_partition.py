"""How labelled examples are cut among clients."""

import itertools
import random

import numpy as np
import pytest
from support.processes import elsewhere

from fedsim.errors import DataError, ScenarioError
from fedsim.tasks.partition import PARTITIONS, Partition, as_partition

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 40))

COMPLETE = {
    "continuous": {},
    "dirichlet": {"alpha": 0.5},
    "exponential": {},
    "iid": {},
    "inner-dirichlet": {"alpha": 1.0},
    "linear": {},
    "pathological": {"class_assignment_mode": "deterministic"},
    "shard": {"num_shards_per_partition": 2},
    "size": {"partition_sizes": [100, 50, 150, 60, 40]},
    "square": {},
    "distribution": {"distribution_array": [[1.0, 2.0]] * 10},
}
CLIENTS = dict.fromkeys(COMPLETE, 5) | {"distribution": 10, "pathological": 10}


def cut(kind, seed=0, **changes):
    return as_partition({"kind": kind, **COMPLETE[kind], **changes}).cut(
        LABELS, CLIENTS[kind], seed
    )


def test_every_kind_is_tested():
    assert {*COMPLETE, "resample"} == set(PARTITIONS)


@pytest.mark.parametrize("kind", COMPLETE)
def test_shares_are_disjoint_and_cover_every_example(kind):
    shares = cut(kind)
    assert len(shares) == CLIENTS[kind]
    assert all(share.dtype == np.int64 for share in shares)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(LABELS)))


def test_resampled_clients_outnumber_examples_and_are_drawn_on_demand():
    partition = as_partition({"kind": "resample", "size": 30})
    shares = partition.cut(LABELS, 10**6, 0)
    assert len(shares) == 10**6
    assert all(len({*shares[client].tolist()}) == 30 for client in (0, 5, 10**6 - 1))
    assert shares[5].dtype == np.int64
    assert 0 <= shares[5].min() <= shares[5].max() < len(LABELS)
    assert np.array_equal(shares[5], partition.cut(LABELS, 10, 0)[5])
    assert not np.array_equal(shares[5], shares[6])
    assert not np.array_equal(shares[5], partition.cut(LABELS, 10, 1)[5])


def test_a_resampled_client_cannot_have_more_examples_than_there_are():
    with pytest.raises(DataError, match="401 examples for each client, and there are 400"):
        as_partition({"kind": "resample", "size": 401}).cut(LABELS, 3, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 0.3, "min_partition_size": 0},
        {"alpha": 1.0},
        {"alpha": 2, "min_partition_size": 25},
    ],
)
def test_dirichlet_shares_are_those_of_the_library(settings):
    partition = as_partition({"kind": "dirichlet", **settings})
    for clients, seed in itertools.product((3, 8), range(4)):
        ours = partition.cut(LABELS, clients, seed)
        theirs = Partition._cut(partition, LABELS, clients, seed)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", COMPLETE)
def test_the_same_seed_gives_the_same_shares_whatever_was_drawn_before(kind):
    first = cut(kind)
    random.seed(9)
    np.random.seed(9)
    before = (random.getstate(), np.random.get_state()[1].tolist())
    second = cut(kind)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert before == (random.getstate(), np.random.get_state()[1].tolist())
    other = cut(kind, seed=1)
    assert any(set(a.tolist()) != set(b.tolist()) for a, b in zip(first, other, strict=True))


def counts(share):
    return np.bincount(LABELS[share], minlength=10)


def test_iid_shares_are_equal_to_one():
    sizes = [len(share) for share in as_partition("iid").cut(LABELS, 7, 0)]
    assert max(sizes) - min(sizes) <= 1


def test_a_small_alpha_is_more_uneven():
    def spread(alpha):
        return np.mean(
            [counts(share).std() / len(share) for share in cut("dirichlet", alpha=alpha)]
        )

    assert spread(0.1) > 2 * spread(100.0)


def test_pathological_clients_hold_so_many_labels():
    for share in cut("pathological", num_classes_per_partition=3):
        assert (counts(share) > 0).sum() == 3


def test_sizes_are_as_asked():
    assert [len(share) for share in cut("size")] == COMPLETE["size"]["partition_sizes"]


def test_linear_square_and_exponential_grow_ever_faster():
    last = [len(cut(kind)[-1]) for kind in ("iid", "linear", "square", "exponential")]
    assert last == sorted(last)
    assert len(set(last)) == 4


def test_labels_need_not_run_from_zero():
    shares = as_partition("inner-dirichlet").cut(LABELS * 3 + 5, 5, 0)
    assert sum(map(len, shares)) == len(LABELS)


def test_a_shards_size_may_be_given_instead_of_their_number():
    shares = as_partition({"kind": "shard", "shard_size": 20}).cut(LABELS, 5, 0)
    assert [len(share) for share in shares] == [80] * 5


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("dirichle", DataError, "Did you mean 'dirichlet'"),
        (3, DataError, "expected a kind, or a table"),
        ({"alpha": 1.0}, DataError, "expected a kind, or a table"),
        ({"kind": "dirichlet", "alfa": 1.0}, ScenarioError, "Did you mean 'alpha'"),
        ({"kind": "dirichlet", "alpha": 0.0}, ScenarioError, "partition.alpha"),
        ({"kind": "iid", "alpha": 1.0}, ScenarioError, "partition.alpha: unknown key"),
        ({"kind": "size"}, ScenarioError, "partition_sizes"),
    ],
)
def test_wrong_settings_are_one_clear_error(value, error, message):
    with pytest.raises(error, match=message):
        as_partition(value)


@pytest.mark.parametrize(
    ("value", "clients", "message"),
    [
        ("iid", 500, "500 clients and 400 examples"),
        ({"kind": "size", "partition_sizes": [10, 10]}, 3, "makes 2 partitions"),
        ({"kind": "dirichlet", "alpha": 0.01}, 100, "number of attempts"),
        (
            {"kind": "dirichlet", "alpha": 0.01, "min_partition_size": 0},
            50,
            r"without an example \(client .*larger alpha",
        ),
        ({"kind": "pathological", "num_classes_per_partition": 11}, 5, "unique classes"),
        ({"kind": "dirichlet", "alpha": [1.0, 2.0]}, 3, "length"),
        (
            {"kind": "distribution", "distribution_array": [[1.0], [1.0, 2.0]]},
            10,
            "inhomogeneous",
        ),
    ],
)
def test_a_cut_that_cannot_be_made_is_one_clear_error(value, clients, message):
    with pytest.raises(DataError, match=message):
        as_partition(value).cut(LABELS, clients, 0)


def test_another_process_cuts_alike():
    script = """
import numpy as np
from fedsim.tasks.partition import as_partition
shares = as_partition({"kind": "dirichlet", "alpha": 0.5}).cut(np.arange(400) % 10, 5, 3)
print([share.tolist() for share in shares])
"""
    shares = as_partition({"kind": "dirichlet", "alpha": 0.5}).cut(np.arange(400) % 10, 5, 3)
    assert elsewhere(script) == f"{[share.tolist() for share in shares]}"
