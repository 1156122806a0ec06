"""What the tests of secure aggregation share: a round of it, and the sum that it should come to."""

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from support.tiny import config, initial, scenario

from fedsim.engine.inline import InlineGrid
from fedsim.federation import client
from fedsim.federation.other_grids import Through
from fedsim.federation.secure import CLIENTS_KEY
from fedsim.federation.secure.grid import SecureGrid
from fedsim.federation.secure.secaggplus import CLIPPING, quantisation

PROTOCOLS = ["masked-sum", "secagg+"]


def secure(protocol="masked-sum", **changes):
    """The tiny scenario, all six clients a round, under secure aggregation."""
    settings = {"clients_per_round": 6, "secure_aggregation": protocol}
    return scenario(**{**changes, "training": {**settings, **changes.get("training", {})}})


def unequal(protocol="masked-sum", algorithm="fedavg", model="cnn"):
    """Clients that hold different numbers of examples, and use all of them."""
    return secure(
        protocol,
        task={
            "model": model,
            "train_examples": 100,
            "partition": {"kind": "dirichlet", "alpha": 1.0},
        },
        training={"algorithm": algorithm, "batch_size": 40},
    )


class Wire(Through):
    """What travels between a Grid and its clients."""

    def __init__(self, grid):
        super().__init__(grid)
        self.replies = []

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(self._grid.send_and_receive(messages))
        self.replies += replies
        return replies


def asked(run, round=1, clients=range(6)):
    """The server's training messages of a round."""
    content = RecordDict({"arrays": initial(run), "config": config(run, **{"server-round": round})})
    return [Message(content, 1000 + number, MessageType.TRAIN) for number in clients]


def conducted(run, app=client.app, clients=range(6)):
    """Replies of the SecureGrid to one round, and what travelled."""
    settings = run.training
    wire = Wire(InlineGrid(6, app))
    most = settings.batch_size * settings.local_steps
    grid = SecureGrid(wire, settings.secure_aggregation, seed=run.seed, most=most)
    return list(grid.send_and_receive(asked(run, clients=clients))), wire


def arrays(reply):
    """The arrays in a reply, as float64."""
    (record,) = reply.content.array_records.values()
    return {name: array.numpy().astype(np.float64) for name, array in record.items()}


def plain(run, clients=range(6)):
    """Each client's update without secure aggregation, and its number of examples."""
    replies = InlineGrid(6).send_and_receive(asked(run, clients=clients))
    return [(arrays(r), r.content.metric_records["metrics"]["num-examples"]) for r in replies]


def mean(updates):
    """The mean of updates by their numbers of examples."""
    total = sum(examples for _, examples in updates)
    return {
        name: sum(update[name] * examples for update, examples in updates) / total
        for name in updates[0][0]
    }


def furthest(ours, theirs):
    """The largest difference between two sets of arrays."""
    assert ours.keys() == theirs.keys()
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)


def clients_in(reply):
    """The clients whose sum a reply is."""
    return list(reply.content.config_records[CLIENTS_KEY]["clients"])


def error_bound(clients: int, examples: int, most: int) -> float:
    """The largest error of each value of a mean that SecAgg+ computes.

    A client rounds each value to one of the two nearest levels, and its weight, examples / most, to
    the nearest level.

    Args:
        clients: The number of clients.
        examples: The number of examples of all clients.
        most: The largest number of examples of an update.
    """
    level = 2 * CLIPPING / quantisation(clients)
    return 1.5 * level * clients * most / examples
