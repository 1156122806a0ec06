"""How much of ROUGE-2 words in random order have, as baseline of LAMP's table 1.

    python benchmarks/lamp_order.py --data DIR [--sentences 20] [--draws 100]

Takes the sentences that `lamp/table1` attacks (the first 20; more of CoLA with `--sentences`), and
puts their pieces in random order between [CLS] and [SEP]. A share of them is replaced by pieces of
other sentences, so that ROUGE-1 is that of an attack: 100 %, ours of TAG on MiniLM-L6 (92 %), and
the published one of TAG on BERT base (79 %). An attack that finds words but no order is as good.
"""

import argparse
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

from fedsim.metrics.text_pairs import rouge
from fedsim.scenario import Scenario
from fedsim.scenario.built import build
from fedsim.spec import TextSpec, Tokens

SCENARIO = Path(__file__).parents[1] / "scenarios/papers/lamp/table1.toml"
WORDS = {"all words": 1.0, "words of TAG here": 0.923, "words of TAG, published": 0.789}
"""ROUGE-1 with special tokens counted, in `lamp/table1` and in the paper's table 1."""


def sentences(data: Path, number: int) -> tuple[list[list[int]], Tokens]:
    """The pieces of the clients' sentences, and the tokenizer."""
    overrides = [
        "sweep={}",
        'paper={id="lamp/table1",title="",measure=["rouge2"],x="round"}',
        f"training.clients={number}",
        "adversaries=[]",
    ]
    built = build(Scenario.load(str(SCENARIO), overrides, data=str(data)))
    tokens = built.task.spec.require(TextSpec).tokens
    ids = [built.batches(client, 1)[0].inputs[0].tolist() for client in range(number)]
    special = {*tokens.special.values()}
    return [[one for one in text if one not in special] for text in ids], tokens


def scores(
    texts: Sequence[Sequence[int]], tokens: Tokens, kept: float, draws: int
) -> tuple[float, float]:
    """Mean ROUGE-1 and ROUGE-2 of pieces in random order, of which a share is kept."""
    rng = random.Random(0)  # noqa: S311 - for words, not for secrets
    others = [piece for text in texts for piece in text]
    found: list[tuple[float, float, float]] = []
    for text in texts:
        original = f"[CLS] {tokens.spell(text)} [SEP]"
        for _ in range(draws):
            mixed = [one if rng.random() < kept else rng.choice(others) for one in text]
            rng.shuffle(mixed)
            found.append(rouge(f"[CLS] {tokens.spell(mixed)} [SEP]", original))
    return statistics.mean(one[0] for one in found), statistics.mean(one[1] for one in found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with cola_train.jsonl")
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--draws", type=int, default=100)
    given = parser.parse_args()
    texts, tokens = sentences(given.data, given.sentences)
    print(f"{len(texts)} sentences of {statistics.mean(map(len, texts)):.1f} pieces on average")
    for words, target in WORDS.items():
        low, high = 0.0, 1.0
        for _ in range(12 if target < 1 else 0):  # bisection
            kept = (low + high) / 2
            above = scores(texts, tokens, kept, max(1, given.draws // 10))[0] > target
            low, high = (low, kept) if above else (kept, high)
        one, two = scores(texts, tokens, high, given.draws)
        print(f"{words:26} ROUGE-1 {one:6.1%}  ROUGE-2 {two:6.1%}")


if __name__ == "__main__":
    main()
