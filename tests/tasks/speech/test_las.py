"""Listen, attend and spell: its loss, what it is fed, and that it learns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.errors import DataError, ScenarioError
from fedsim.records import END
from fedsim.seeds import isolated
from fedsim.tasks.speech.recognisers import PADDING, RECOGNISERS, as_recogniser
from fedsim.victim import VictimModel

FEATURES, PIECES = 6, 12


def small(seed: int = 0, **changes):
    """A small recogniser and its model."""
    sizes = {"encoder": 5, "attention": 4, "embedding": 3, "decoder": 7, "projection": 6}
    recogniser = as_recogniser({"name": "las", **sizes, **changes})
    with isolated(seed, "test"):
        return recogniser, recogniser.build(FEATURES, PIECES)


def utterances(seed: int = 0, lengths: tuple[int, ...] = (13, 9, 4)):
    """Random frames, padded with 0, with 5, 3 and 2 labels, the end included."""
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(len(lengths), max(lengths), FEATURES, generator=rng)
    for row, length in zip(inputs, lengths, strict=True):
        row[length:] = 0
    target = torch.full((3, 5), PADDING)
    for row, size in zip(target, (5, 3, 2), strict=True):
        row[: size - 1] = torch.randint(1, PIECES, (size - 1,), generator=rng)
        row[size - 1] = END
    return inputs, torch.tensor(lengths), target


def soft(target):
    return torch.nn.functional.one_hot(target, PIECES).float()


@pytest.mark.parametrize("changes", [{}, {"pyramid": 0}, {"decoder_layers": 2}], ids=str)
def test_the_loss_is_a_mean_over_tokens_and_padding_changes_nothing(changes):
    recogniser, module = small(**changes)
    inputs, lengths, target = utterances()
    together = recogniser.loss(module, inputs, target, lengths=lengths)
    total, tokens = 0.0, 0
    for x, length, y in zip(inputs, lengths, target, strict=True):
        own = y[y != PADDING]
        total += len(own) * recogniser.loss(module, x[None, :length], own[None]).item()
        tokens += len(own)
    assert together.item() == pytest.approx(total / tokens, rel=1e-5)


def test_hard_labels_are_soft_ones_that_are_sure():
    recogniser, module = small()
    inputs, _, target = utterances()
    hard = recogniser.loss(module, inputs[:1], target[:1])
    assert torch.allclose(hard, recogniser.loss(module, inputs[:1], soft(target[:1])))


@pytest.mark.parametrize("layers", [1, 2])
def test_fed_the_context_vectors_that_attention_gave_the_decoder_says_the_same(layers):
    recogniser, module = small(decoder_layers=layers)
    inputs, lengths, target = utterances()
    entered = []
    hook = module.speller.projection.register_forward_pre_hook(lambda _, x: entered.append(x[0]))
    loss = recogniser.loss(module, inputs, target, lengths=lengths)
    hook.remove()
    contexts = entered[0][..., -module.context_size :]
    assert contexts.shape == (3, 5, module.context_size)
    assert torch.allclose(loss, recogniser.loss(module, contexts, target, at="context"))

    # Behind the attention the gradients are the same too; before it, they are not.
    model = VictimModel(
        module,
        head=recogniser.find_head(module, 0, 0),
        loss=recogniser.loss,
        points=recogniser.points,
    )
    heard = model.gradient(inputs, target, lengths=lengths)
    fed = model.gradient(contexts.detach(), target, at="context")
    for name in heard:
        if "head" in name or "projection" in name:
            assert torch.allclose(heard[name], fed[name], atol=1e-7), name
    assert not torch.allclose(heard["query.weight"], fed["query.weight"], atol=1e-9)
    assert not fed["key.weight"].any()


def test_the_head_is_where_it_says():
    recogniser, module = small()
    assert module.get_submodule(recogniser.find_head(module, 0, 0)).weight.shape == (PIECES, 6)
    assert all(0 < p.abs().max().item() <= 0.1 for p in module.parameters())


@pytest.mark.parametrize("at", ["input", "context"])
def test_the_loss_can_be_differentiated_twice(at):
    recogniser, module = small()
    module.double()
    rng = torch.Generator().manual_seed(1)
    shape = (1, 6, FEATURES) if at == "input" else (1, 3, module.context_size)
    inputs = torch.randn(shape, generator=rng, dtype=torch.float64)
    target = torch.rand(1, 3, PIECES, generator=rng, dtype=torch.float64).softmax(dim=2)
    parameters = [p for n, p in module.named_parameters() if n.startswith("speller")]

    def size_of_gradient(inputs, target):
        loss = recogniser.loss(module, inputs, target, at=at)
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        return sum(g.square().sum() for g in grads)

    where = (inputs.requires_grad_(True), target.requires_grad_(True))
    assert torch.autograd.gradcheck(size_of_gradient, where, atol=1e-7)


def test_it_learns_what_it_is_told_and_then_says_it():
    recogniser, module = small(encoder=12, decoder=24, projection=24, embedding=8)
    inputs, lengths, target = utterances()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(120):
        optimizer.zero_grad()
        recogniser.loss(module, inputs, target, lengths=lengths).backward()
        optimizer.step()
    said = recogniser.transcribe(module, inputs, lengths, longest=9)
    assert [one.tolist() for one in said] == [y[y > END].tolist() for y in target]
    # Of utterances of one batch none sees another, and no more is said than asked for.
    alone = recogniser.transcribe(module, inputs[2:, :4], lengths[2:], longest=9)
    assert torch.equal(alone[0], said[2])
    assert [len(one) for one in recogniser.transcribe(module, inputs, lengths, 1)] == [1, 1, 1]
    assert [len(one) for one in recogniser.transcribe(module, inputs, lengths, 0)] == [0, 0, 0]


@settings(max_examples=10, deadline=None)
@given(frames=st.integers(1, 9), levels=st.integers(0, 4))
def test_any_number_of_frames_can_be_heard(frames, levels):
    recogniser, module = small(pyramid=levels)
    inputs = torch.randn(1, frames, FEATURES, generator=torch.Generator().manual_seed(frames))
    heard, keys, there = module.listen(inputs, None)
    assert heard.shape == (1, -(-frames // 2**levels), 10)
    assert keys.shape[:2] == there.shape == heard.shape[:2]
    assert there.all()
    assert recogniser.loss(module, inputs, torch.tensor([[3, END]])).isfinite()


def test_recognisers_are_built_by_name():
    assert as_recogniser("las") == as_recogniser({"name": "las"}) == RECOGNISERS["las"]()
    assert as_recogniser(as_recogniser("las")).units == "wordpieces"
    assert as_recogniser({"name": "las", "decoder": 9}).decoder == 9
    with pytest.raises(DataError, match="Did you mean 'las'"):
        as_recogniser("lass")
    with pytest.raises(DataError, match="expected a name"):
        as_recogniser(3)
    with pytest.raises(ScenarioError, match="decoders: unknown key"):
        as_recogniser({"name": "las", "decoders": 9})
