"""By epochs, a client goes through its examples in shuffled orders, and truth follows."""

from itertools import chain

import pytest
import torch
from support import small_speech, small_text, tiny

from fedsim.errors import ScenarioError
from fedsim.scenario import Scenario
from fedsim.tasks.composition import in_epochs
from fedsim.testing.tasks import task_complaints

EPOCHS = {"training": {"algorithm": "fedavg", "batching": "epochs"}}
RUNS = {
    "images": tiny.scenario(**EPOCHS),
    "text": small_text.scenario(**EPOCHS),
    "masked text": small_text.scenario(task={"task": "masked-lm"}, **EPOCHS),
    "speech": small_speech.scenario(**EPOCHS),
    "tabular": Scenario.parse({"task": {"name": "tabular"}, **EPOCHS}),
}


def taken(task, client, rounds, size, steps):
    """The indices of the examples of each batch, over all rounds."""
    return [
        batch.tolist()
        for round in range(1, rounds + 1)
        for batch in task.drawn(client, round, size, steps)
    ]


def test_an_epoch_takes_every_example_once_and_its_last_batch_is_the_rest():
    epochs = torch.stack([torch.cat(in_epochs(10, 4, range(n, n + 3), 7, 1)) for n in (0, 3, 6)])
    assert [len(batch) for batch in in_epochs(10, 4, range(6), 7, 1)] == [4, 4, 2] * 2
    assert torch.equal(epochs.sort(dim=1).values, torch.arange(10).expand(3, 10))
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


def test_where_an_epoch_is_after_some_steps_does_not_depend_on_how_they_are_counted():
    whole = in_epochs(10, 4, range(12), 7, 1)
    for first in range(12):
        (one,) = in_epochs(10, 4, [first], 7, 1)
        assert torch.equal(one, whole[first])
    assert not torch.equal(in_epochs(10, 4, [0], 7, 2)[0], whole[0])
    assert not torch.equal(in_epochs(10, 4, [0], 8, 1)[0], whole[0])


@pytest.mark.parametrize("name", RUNS)
def test_the_rounds_of_a_task_continue_each_other_and_examples_recur(name):
    task = RUNS[name].build_task()
    held = sorted(task.share(1).tolist())
    steps = -(-len(held) // 3)  # of one epoch
    batches = taken(task, 1, 2, 3, steps)
    first, second = ([*chain(*batches[i : i + steps])] for i in (0, steps))
    assert sorted(first) == sorted(second) == held
    assert first != second
    assert taken(task, 1, 2 * steps, 3, 1) == batches


@pytest.mark.parametrize("name", RUNS)
def test_the_truth_is_that_of_the_batches_and_the_task_still_conforms(name):
    task = RUNS[name].build_task()
    steps = -(-task.num_examples(0) // 3)
    batches = task.batches(0, 2, batch_size=3, steps=steps)
    truth = task.truth([0], 2, batch_size=3, steps=steps)
    labels = torch.cat([batch.labels[batch.labels >= 0] for batch in batches])
    assert truth.num_examples == sum(map(len, batches)) == task.num_examples(0)
    assert sorted(truth.labels.tolist()) == sorted(labels.tolist())
    if name == "images":
        assert task_complaints(task) == []


def test_by_default_batches_are_drawn_as_ever():
    for run in (tiny.scenario(), tiny.scenario(training={"batching": "draw"})):
        task = run.build_task()
        rounds = [torch.cat(task.drawn(1, round, 4, 2)).tolist() for round in (1, 2, 3)]
        assert len({*map(tuple, rounds)}) == 3
        assert task == tiny.scenario().build_task()


def test_batches_of_chosen_labels_follow_no_epochs():
    with pytest.raises(ScenarioError, match=r'composition = "balanced" draws every batch by its'):
        tiny.scenario(task={"composition": "balanced"}, **EPOCHS)


def test_the_run_sets_it_and_not_the_task():
    with pytest.raises(ScenarioError, match=r"task\.batching: unknown key"):
        tiny.scenario(task={"batching": "epochs"})


def test_a_task_that_composes_its_batches_itself_follows_if_it_has_the_field(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = """
import torch
from fedsim.tasks.images import Images
from fedsim.task import Task

Own = type("Own", (Images,), {"__module__": __name__, "name": "own"})
Bare = type("Bare", (Task,), {"__module__": __name__, "name": "bare"})
"""
    (tmp_path / "epoch_tasks.py").write_text(source)
    run = {"task": {"name": "epoch_tasks:Own"}, **EPOCHS}
    assert Scenario.parse(run).build_task().batching == "epochs"
    with pytest.raises(ScenarioError, match="task 'epoch_tasks:Bare' composes its batches itself"):
        Scenario.parse({**run, "task": {"name": "epoch_tasks:Bare"}})
