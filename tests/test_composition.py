"""A client's skewed batches: LLG's 50 / 25 / 25 %, of the same two labels in every step."""

from collections import Counter

from tiny import scenario


def task(composition: str):
    return scenario(
        task={"composition": composition}, training={"clients": 2, "clients_per_round": 2}
    ).build_task()


def often(composition: str, client: int, round: int, steps: int = 6) -> list[list[int]]:
    """The two most frequent labels of each of a client's batches of 16."""
    batches = task(composition).batches(client, round, batch_size=16, steps=steps)
    return [[label for label, _ in Counter(b.labels.tolist()).most_common(2)] for b in batches]


def test_a_clients_two_labels_stay_over_steps_and_rounds():
    first = often("skewed", 0, 1) + often("skewed", 0, 2)
    assert len({tuple(labels) for labels in first}) == 1
    assert often("skewed", 1, 1)[0] != first[0]
    assert len({tuple(labels) for labels in often("unbalanced", 0, 1)}) > 1


def test_half_of_a_batch_is_of_the_one_label_and_a_quarter_of_the_other():
    for batch in task("skewed").batches(0, 1, batch_size=16, steps=4):
        (_, most), (_, second) = Counter(batch.labels.tolist()).most_common(2)
        assert most >= 8
        assert second >= 4


def test_the_first_batches_do_not_depend_on_how_many_are_asked_for():
    few = task("skewed").batches(0, 3, batch_size=8, steps=2)
    many = task("skewed").batches(0, 3, batch_size=8, steps=5)
    assert all(a.labels.equal(b.labels) for a, b in zip(few, many, strict=False))
