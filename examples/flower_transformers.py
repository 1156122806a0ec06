"""Flower's quickstart with Hugging Face transformers, audited; the marked lines are new.

    python examples/flower_transformers.py

A small BERT, from its configuration, learns the sentiment of sentences. Replace `make_net` and
`load_data` by a pretrained model, its tokenizer and your data.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from adversaries import RLG, TokenLeak  # fedsim
from fedsim import HonestButCurious, reveal, watch  # fedsim

GOOD = ["great", "fine", "lovely", "superb", "clever", "warm"]
BAD = ["dull", "poor", "weak", "awful", "cold", "empty"]
OTHER = ["[PAD]", "the", "film", "plot", "was", "and"]
WORDS = {word: number for number, word in enumerate([*OTHER, *GOOD, *BAD])}


def make_net() -> BertForSequenceClassification:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return BertForSequenceClassification(
        BertConfig(vocab_size=len(WORDS), num_attention_heads=2, num_labels=2, **sizes)
    )


def load_data(partition: int) -> DataLoader:
    """Sentences such as "the plot was dull and poor", padded, as a tokenizer would give them."""
    rng = torch.Generator().manual_seed(partition)
    rows = []
    for _ in range(32):
        label, noun, more = torch.randint(2, (3,), generator=rng).tolist()
        first, second = torch.randperm(6, generator=rng)[:2].tolist()
        words = ["the", ("film", "plot")[noun], "was", (BAD, GOOD)[label][first]]
        words += ["and", (BAD, GOOD)[label][second]] * more
        ids = [WORDS[word] for word in words] + [0] * (6 - len(words))
        mask = [1] * len(words) + [0] * (6 - len(words))
        rows.append({"input_ids": ids, "attention_mask": mask, "labels": label})

    def collate(batch: list[dict]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor([row[name] for row in batch]) for name in batch[0]}

    return DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate)


client = ClientApp()


@client.train(mods=[watch()])  # fedsim
def train(message: Message, context: Context) -> Message:
    net = make_net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = load_data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4)
    net.train()
    for batch in reveal(loader):  # fedsim
        net(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=0.5, fraction_evaluate=0.0)
    strategy = HonestButCurious(
        strategy, model=make_net, adversaries=[TokenLeak(), RLG()]
    )  # fedsim
    strategy.start(grid=grid, initial_arrays=ArrayRecord(make_net().state_dict()), num_rounds=2)


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(server_app=server, client_app=client, num_supernodes=10)
