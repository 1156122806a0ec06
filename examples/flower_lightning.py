"""A Lightning module trained by its Trainer, audited; the marked lines are new.

python examples/flower_lightning.py
"""

import logging

import pytorch_lightning as lightning
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

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def load_data(partition: int) -> DataLoader:
    """A tenth of the digits, as 8 x 8 images in [0, 1]."""
    digits = load_digits()
    images = torch.tensor(digits.images[partition::10] / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target[partition::10])
    return DataLoader(TensorDataset(images, labels), batch_size=4, shuffle=True)


client = ClientApp()


@client.train(mods=[watch()])  # fedsim
def train(message: Message, context: Context) -> Message:
    model = Digits()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = load_data(int(context.node_config["partition-id"]))
    trainer = lightning.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, reveal(loader))  # fedsim
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 4})}
    )
    return Message(content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    strategy = HonestButCurious(strategy, model=Digits, adversaries=[LLG(), RLG()])  # fedsim
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Digits().state_dict()), num_rounds=2)


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(server_app=server, client_app=client, num_supernodes=10)
