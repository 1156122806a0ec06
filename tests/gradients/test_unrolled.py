"""Unrolled local steps are those of a real client, and can be differentiated."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim import testing
from fedsim.defense import MeanGradient, Training
from fedsim.gradients import to_gradient, unrolled_gradient
from fedsim.records import Batch
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.training.local import train_locally
from fedsim.victim import VictimModel


def model_of(name: str, seed: int = 0) -> VictimModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = as_architecture(name).build((1, 6, 6), 10).double()
    return VictimModel(module, head="head", loss=cross_entropy)


def examples(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    batch = testing.batch(count, seed)
    return batch.inputs.double(), batch.labels


def sent(model: VictimModel, inputs: Tensor, labels: Tensor, lr: float, steps: int, **more: float):
    """What fedsim's client sends after real local steps, as an adversary reads it."""

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(module(batch.inputs), batch.labels)

    module, trained = model.copy().module, frozenset(model.parameters())
    training = Training(
        module=module,
        batches=tuple(
            Batch(*pair)
            for pair in zip(inputs.tensor_split(steps), labels.tensor_split(steps), strict=True)
        ),
        loss=loss,
        gradient=MeanGradient(loss, trained),
        algorithm="fedavg",
        lr=lr,
        momentum=more.get("momentum", 0.0),
        weight_decay=more.get("weight_decay", 0.0),
        rng=torch.Generator(),
    )
    before = {name: p.detach().clone() for name, p in model.parameters().items()}
    update, _ = train_locally(training, before, trained=trained)
    return to_gradient(update, before, lr=lr, steps=steps)[0]


def apart(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    gap = sum(float((ours[k].detach() - theirs[k]).square().sum()) for k in ours)
    return (gap / sum(float(v.detach().square().sum()) for v in theirs.values())) ** 0.5


@pytest.mark.parametrize("name", ["lenet-sigmoid", "lenet", "mlp", "resnet20"])
@pytest.mark.parametrize(("count", "steps"), [(4, 4), (6, 2), (5, 2), (3, 1)])
def test_agrees_with_a_real_client(name, count, steps):
    model, (inputs, labels) = model_of(name), examples(count)
    theirs = sent(model, inputs, labels, 0.1, steps)
    ours = unrolled_gradient(model, inputs, labels, lr=0.1, steps=steps)
    assert apart(ours, theirs) < 1e-10
    soft = functional.one_hot(labels, 10).double()
    assert apart(unrolled_gradient(model, inputs, soft, lr=0.1, steps=steps), theirs) < 1e-10


def test_one_batch_at_the_first_weights_is_something_else():
    model, (inputs, labels) = model_of("lenet"), examples(8)
    theirs = sent(model, inputs, labels, 0.5, 8)
    assert apart(dict(model.gradient(inputs, labels)), theirs) > 0.01


@pytest.mark.parametrize("more", [{"momentum": 0.5}, {"weight_decay": 0.1}])
def test_momentum_and_weight_decay_are_left_out(more):
    model, (inputs, labels) = model_of("lenet"), examples(4)
    theirs = sent(model, inputs, labels, 0.1, 4, **more)
    ours = unrolled_gradient(model, inputs, labels, lr=0.1, steps=4)
    assert 1e-4 < apart(ours, theirs) < 0.3


def test_its_derivatives_are_those_of_finite_differences():
    model, (inputs, labels) = model_of("lenet-sigmoid"), examples(4)
    logits = functional.one_hot(labels, 10).double()
    weights = {k: torch.randn_like(p) for k, p in model.parameters().items()}

    def scalar(inputs: Tensor, logits: Tensor) -> Tensor:
        found = unrolled_gradient(model, inputs, logits.softmax(dim=1), lr=0.5, steps=2)
        return torch.stack([(found[k] * weights[k]).sum() for k in found]).sum()

    leaves = (inputs.requires_grad_(), logits.requires_grad_())
    assert torch.autograd.gradcheck(scalar, leaves, fast_mode=True)
    through_first_only = torch.autograd.grad(scalar(*leaves), inputs)[0][:2]
    assert through_first_only.abs().sum() > 0


def test_the_first_examples_matter_through_later_steps_too():
    # With the head alone asked for, step 2's gradient depends on step 1's examples by the weights.
    model, (inputs, labels) = model_of("lenet-sigmoid"), examples(2)
    moved = torch.cat([1 - inputs[:1], inputs[1:]])
    first = [unrolled_gradient(model, x, labels, lr=0.5, steps=2) for x in (inputs, moved)]
    alone = [model.gradient(x[:1], labels[:1]) for x in (inputs, moved)]
    name = "head.weight"
    change = 2 * (first[1][name] - first[0][name])
    assert not torch.allclose(change, alone[1][name] - alone[0][name], atol=1e-6)


def test_leaves_weights_and_running_statistics_alone():
    model, (inputs, labels) = model_of("resnet20"), examples(4)
    before = {k: v.clone() for k, v in model.module.state_dict().items()}
    unrolled_gradient(model, inputs, labels, lr=0.1, steps=2)
    assert all(torch.equal(v, before[k]) for k, v in model.module.state_dict().items())
    assert all(p.grad is None for p in model.module.parameters())


def test_gives_the_parameters_that_were_asked_for_and_trains_all():
    model, (inputs, labels) = model_of("lenet"), examples(4)
    whole = unrolled_gradient(model, inputs, labels, lr=0.5, steps=4)
    part = unrolled_gradient(model, inputs, labels, lr=0.5, steps=4, names=["head.bias"])
    assert list(part) == ["head.bias"]
    assert torch.equal(part["head.bias"], whole["head.bias"])


@pytest.mark.parametrize("steps", [0, 5])
def test_refuses_more_steps_than_examples(steps):
    with pytest.raises(ValueError, match=f"4 examples cannot be cut into {steps}"):
        unrolled_gradient(model_of("mlp"), *examples(4), lr=0.1, steps=steps)
