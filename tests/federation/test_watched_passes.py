"""Forward passes that no backward pass follows: none of them counts as training."""

import torch
from support.watched import audited, checks, steps
from torch import nn

from fedsim import reveal


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)


def others():
    """A batch (8, 1, 8, 8) that no client trains on."""
    return torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(9))


def validating(net, loader):
    """It validates in training mode and without `no_grad`, before each step."""
    optimizer = sgd(net)
    for x, y in reveal(loader):
        net(others())
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def validating_in_between(net, loader):
    """The same with changed inputs, between the backward pass and the step, in evaluation mode."""
    optimizer = sgd(net)
    for x, y in reveal(loader):
        net(others())
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(2 * x - 1), y).backward()
        net.eval()
        net(others())
        net.train()
        optimizer.step()
    net.eval()
    net(others())


def looking_first(net, loader):
    """It prints the loss of all batches, with other dropout masks, before it trains."""
    batches = list(reveal(loader))
    for x, _ in batches:
        net(x)
    steps(net, batches, sgd(net))


def skipping(net, loader, change=lambda x: x):
    """It leaves out the second batch, whose loss is not a number."""
    optimizer = sgd(net)
    for place, (x, y) in enumerate(reveal(loader)):
        loss = nn.functional.cross_entropy(net(change(x)), y) * (torch.nan if place == 1 else 1)
        if loss.isnan():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def skipping_changed(net, loader):
    skipping(net, loader, lambda x: 2 * x - 1)


class Record:
    """What a model returns: logits and more, in no collection."""

    def __init__(self, logits):
        self.logits, self.labels, self.more = logits, None, {"logits": logits}


def recorded(net, loader):
    net.register_forward_hook(lambda module, args, logits: Record(logits))
    optimizer = sgd(net)
    for x, y in reveal(loader):
        net(others())
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x).logits, y).backward()
        optimizer.step()


PASSES = {
    validating: 4,
    validating_in_between: 4,
    looking_first: 4,
    skipping: 3,
    skipping_changed: 3,
    recorded: 4,
}


def test_only_batches_with_a_backward_pass_count(tmp_path):
    found = audited(tmp_path, *PASSES)
    assert checks(found, *PASSES) == {one.__name__: ("ok", "revealed", "fits") for one in PASSES}
    counted = {(row["client"], row["local_steps"], row["batch_size"]) for row in found}
    assert counted == {(str(at), str(n), "8") for at, n in enumerate(PASSES.values())}
