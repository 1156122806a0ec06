"""A Hugging Face model trained by the Trainer, audited; the marked lines are new.

python examples/flower_trainer.py
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from adversaries import LLG, RLG  # fedsim
from fedsim import HonestButCurious, reveal, watch  # fedsim


def make_net() -> ViTForImageClassification:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shape = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 10}
    return ViTForImageClassification(ViTConfig(num_attention_heads=2, **sizes, **shape))


def load_data(partition: int) -> list[dict]:
    """A tenth of the digits, as 8 x 8 images in [0, 1]."""
    digits = load_digits()
    images = torch.tensor(digits.images[partition::10] / 16, dtype=torch.float32)[:, None]
    labels = digits.target[partition::10].tolist()
    return [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)]


class Training(Trainer):
    def get_train_dataloader(self) -> DataLoader:
        return reveal(super().get_train_dataloader())  # fedsim


client = ClientApp()


@client.train(mods=[watch()])  # fedsim
def train(message: Message, context: Context) -> Message:
    net = make_net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    arguments = TrainingArguments(
        output_dir="trainer", max_steps=2, per_device_train_batch_size=4, learning_rate=1e-3,
        weight_decay=0.01, max_grad_norm=0.0, lr_scheduler_type="linear",
        use_cpu=True, disable_tqdm=True, report_to=[], save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    Training(
        net, arguments, train_dataset=load_data(int(context.node_config["partition-id"]))
    ).train()
    content = RecordDict(
        {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 8})}
    )
    return Message(content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    strategy = HonestButCurious(strategy, model=make_net, adversaries=[LLG(), RLG()])  # fedsim
    strategy.start(grid=grid, initial_arrays=ArrayRecord(make_net().state_dict()), num_rounds=2)


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(server_app=server, client_app=client, num_supernodes=10)
