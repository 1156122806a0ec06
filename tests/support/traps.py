"""A Flower project whose clients each train in another way that audits have misread."""

import os

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

from defenses import GaussianNoise
from fedsim import defend, reveal, watch


class Net(nn.Module):
    """A network with dropout."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 10)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return self.out(self.drop(torch.sigmoid(self.hidden(x.flatten(1)))))


def drawn(number, steps, size):
    """Batches of a client's digits, in an order that nobody else knows."""
    digits, rng = load_digits(), torch.Generator().manual_seed(91 + number)
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    chosen = torch.randperm(len(images), generator=rng)[: steps * size].split(size)
    return [(images[at], torch.tensor(digits.target)[at]) for at in chosen]


def trained(  # noqa: PLR0913 - each argument is a trap
    net, number, optimizer=None, *, steps=1, size=1, before=None, loss=None, clip=None, half=False
):
    """Local training, changed in one place."""
    optimizer = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.1)))(net.parameters())
    loss = loss or nn.functional.cross_entropy
    for x, y in reveal(drawn(number, steps, size)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            value = loss(net(before(x) if before else x), y)
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()


TRAPS = {
    "other batches": {},
    "normalisation": {"before": lambda x: 2 * x - 1},
    "Adam": {"optimizer": lambda p: torch.optim.Adam(p, lr=0.01), "size": 4},
    "noise": {},
    "momentum": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "steps": 3},
    "dropout": {"size": 8, "steps": 2},
    "augmentation": {"before": lambda x: x + 0.1 * torch.randn_like(x)},
    "label smoothing": {"loss": nn.CrossEntropyLoss(label_smoothing=0.1), "size": 4},
    "gradient clipping": {"clip": 0.1, "size": 4},
    "mixed precision": {
        "half": True,
        "optimizer": lambda p: torch.optim.SGD(p, lr=3.0),
        "size": 4,
        "steps": 4,
    },
}
"""How each client trains, as arguments of `trained` that nobody states to the server."""


def noisy(message, context, call_next):
    """The client named "noise" has a defense that the server is not told of."""
    if [*TRAPS][int(context.node_config["partition-id"])] == "noise":
        return defend(GaussianNoise(sigma=0.5), seed=0)(message, context, call_next)
    return call_next(message, context)


def client_app(store):
    """The project's ClientApp, whose truth store is a folder."""
    client = ClientApp()

    def stored(message, context, call_next):
        os.environ["FEDSIM_TRUTH"] = store  # in Ray's worker, which began before the test
        return call_next(message, context)

    @client.train(mods=[stored, noisy, watch()])
    def train(message, context):
        net, number = Net().train(), int(context.node_config["partition-id"])
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        torch.manual_seed(7)  # of dropout and augmentation
        trained(net, number, **[*TRAPS.values()][number])
        arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return client
