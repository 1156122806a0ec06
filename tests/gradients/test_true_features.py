"""The features that metrics compare claims with are those that the client's model computed."""

import torch
from torch import nn

from fedsim.gradients import head_calls
from fedsim.gradients.true_features import candidates, true_features
from fedsim.plugin import make
from fedsim.records import Truth
from fedsim.tasks.text import Text

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2}


def drawn(task, size=3):
    """A model, the truth of one step, and the batch that the client trains on."""
    truth = task.truth([0], 1, batch_size=size, steps=1)
    model = task.victim(task.arrays(task.module()))
    (batch,) = task.batches(0, 1, batch_size=size, steps=1)
    return model, truth, batch


def trained_on(model, batch):
    """The inputs of the head in a training step."""
    with head_calls(model) as calls:
        model.gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    ((features, _),) = calls
    return features.detach()[batch.labels >= 0]


def test_features_of_images():
    model, truth, batch = drawn(make("tasks", "images", {"clients": 2, "model": "convnet"}))
    torch.testing.assert_close(true_features(model, truth), trained_on(model, batch))


def test_features_of_texts_of_different_lengths():
    task = Text(clients=2, model={"name": "transformers", "config": "gpt2", "settings": TINY})
    model, truth, batch = drawn(task)
    assert len(set(truth.lengths)) > 1
    torch.testing.assert_close(true_features(model, truth), trained_on(model, batch))


def test_features_of_masked_tokens_have_a_row_for_each_label():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 16}  # fmt: skip
    task = Text(
        clients=2,
        task="masked-lm",
        model={"name": "transformers", "config": "bert", "settings": sizes},
    )
    model, truth, batch = drawn(task)
    features = true_features(model, truth)
    assert len(features) == len(truth.labels) >= 3
    torch.testing.assert_close(features, trained_on(model, batch))
    assert candidates(model, truth, task.auxiliary()) is None, "tokens are no examples"


def test_features_of_a_transcript_have_a_row_for_each_label():
    model, truth, batch = drawn(make("tasks", "speech", {"clients": 2, "model": "las"}), size=2)
    features = true_features(model, truth)
    assert len(features) == len(truth.labels)
    torch.testing.assert_close(features, trained_on(model, batch))


def test_frames_under_ctc_and_dropped_units_have_no_known_features():
    model, truth, _ = drawn(make("tasks", "speech", {"clients": 2, "model": "deepspeech"}), size=1)
    assert true_features(model, truth) is None
    model, truth, _ = drawn(make("tasks", "images", {"clients": 2}))
    model.module.add_module("drop", nn.Dropout(0.5))
    assert true_features(model.to("cpu"), truth) is None


def test_candidates_are_public_examples_and_then_the_victims_in_one_batch():
    task = make("tasks", "images", {"clients": 2, "model": "convnet"})
    model, truth, batch = drawn(task)
    public = task.auxiliary()
    pool = candidates(model, truth, public)
    with torch.no_grad(), head_calls(model) as calls:
        model.module(torch.cat([public.inputs, batch.inputs]))
    torch.testing.assert_close(pool.features, calls[0][0])
    assert torch.equal(torch.stack(list(pool.public)), public.inputs)


def test_candidates_of_texts_are_free_of_padding():
    task = Text(clients=2, model={"name": "transformers", "config": "gpt2", "settings": TINY})
    model, truth, _ = drawn(task)
    pool = candidates(model, truth, task.auxiliary())
    torch.testing.assert_close(pool.features[-3:], true_features(model, truth))
    assert len({len(one) for one in pool.public}) > 1


def test_without_public_examples_or_inputs_there_are_no_candidates():
    task = make("tasks", "images", {"clients": 2})
    model, truth, _ = drawn(task)
    assert candidates(model, truth, None) is None
    assert candidates(model, Truth(labels=truth.labels), task.auxiliary()) is None
