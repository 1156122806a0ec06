"""Flower's PyTorch quickstart, audited: a CNN with SGD and momentum; the marked lines are new.

python examples/flower_pytorch.py
"""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adversaries import LLG, RLG  # fedsim
from fedsim import HonestButCurious, reveal, watch  # fedsim


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 16, 2)
        self.fc1 = nn.Linear(16, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def load_data(partition: int) -> DataLoader:
    """A tenth of the digits, as 8 x 8 images in [0, 1]."""
    digits = load_digits()
    images = torch.tensor(digits.images[partition::10] / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target[partition::10])
    return DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)


client = ClientApp()


@client.train(mods=[watch()])  # fedsim
def train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = load_data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    net.train()
    for images, labels in reveal(loader):  # fedsim
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    strategy = HonestButCurious(strategy, model=Net, adversaries=[LLG(), RLG()])  # fedsim
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=2)


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(server_app=server, client_app=client, num_supernodes=10)
