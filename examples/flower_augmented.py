"""BatchNorm, Adam and random augmentation, audited; the marked lines are new.

python examples/flower_augmented.py
"""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from adversaries import LLG, RLG  # fedsim
from fedsim import HonestButCurious, reveal, watch  # fedsim


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10)),
        )


class Digits(Dataset):
    """A tenth of the digits, moved by up to a pixel, with noise, and normalised."""

    def __init__(self, partition: int) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.images[partition::10], dtype=torch.float32)[:, None]
        self.labels = torch.tensor(digits.target[partition::10])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        down, right = torch.randint(-1, 2, (2,)).tolist()
        image = self.images[index].roll((down, right), dims=(1, 2))
        image = image + 0.5 * torch.randn_like(image)
        return (image - 4.9) / 6.0, self.labels[index]


client = ClientApp()


@client.train(mods=[watch()])  # fedsim
def train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = DataLoader(Digits(int(context.node_config["partition-id"])), 32, shuffle=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
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
