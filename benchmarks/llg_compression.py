"""LLG+ against compression as the paper describes it, and as the authors' code does it.

    python benchmarks/llg_compression.py [--ratio 0.8] [--repetitions 100] [--data DIR]

LLG's figure 7 (c): MNIST, the CNN, one batch of FedSGD on an untrained network, unbalanced labels.
The paper holds back the smallest entries of every tensor. The authors' code compares one number a
class, the magnitude of the head's row sum, and where that of class j is among the smallest, it sets
the j-th tensor of the gradient to zero, whatever that tensor is. The head's weight, which LLG
reads, is the seventh of this network's eight tensors: it is zero whenever class 6 is among the
smallest. fedsim's attack refuses a gradient of zeros, while the authors' goes on with it and names
as many labels as ever. So that it is made here too, the zeros are 1e-30.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from pydantic import Field
from scipy.stats import sem

import fedsim
from fedsim.defense import ClientState, Defense
from fedsim.records import Update
from fedsim.scenario import Scenario

SIZES = [1, 2, 4, 8, 16, 32, 64, 128]


class TensorCompression(Defense):
    """Empties those tensors whose place is that of a class with a small row sum."""

    name = "tensor-compression"

    ratio: float = Field(default=0.8, gt=0, lt=1)
    """Share of the classes whose tensors are emptied."""

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Empty the tensors; the head's weight is the last but one."""
        tensors = [*update.tensors.items()]
        sums = tensors[-2][1].sum(1).abs()
        small = sums.argsort(stable=True)[: int(self.ratio * len(sums))].tolist()
        empty = {k: torch.full_like(v, 1e-30) for j, (k, v) in enumerate(tensors) if j in small}
        return update.replace(tensors={**update.tensors, **empty})


def main() -> None:
    """Print a row for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ratio", type=float, default=0.8)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    chosen = parser.parse_args()
    paper = f'{{name="deep-gradient-compression", ratio={chosen.ratio}, momentum=0.0}}'
    authors = f'{{name="llg_compression:TensorCompression", ratio={chosen.ratio}}}'
    seeds = [*range(7, 7 + chosen.repetitions)]
    shipped = Path(__file__).parent.parent / "scenarios" / "papers" / "llg" / "fig7c.toml"
    changes = [f"sweep.defenses=[[{paper}], [{authors}]]", f"sweep.seed={seeds}"]
    scenario = Scenario.load(shipped, changes, data=chosen.data, trust=True)
    with tempfile.TemporaryDirectory() as folder:
        fedsim.simulate(scenario, Path(folder) / "run")
        rows = fedsim.load(Path(folder) / "run", trust=True).findings
    rows = rows[rows["metric"] == "asr"]
    assert len(rows) == 2 * len(SIZES) * chosen.repetitions
    assert set(rows["status"]) == {"ok"}
    print("| Batch | Entries held back | Tensors held back | Random guess |")
    print("| --- | --- | --- | --- |")
    for size in SIZES:
        here = rows[rows["point"].str.contains(f"batch_size={size},")]
        ours = here["point"].str.contains("deep-gradient-compression")
        shares = [here.loc[which, "value"].to_numpy(float) for which in (ours, ~ours)]
        cells = [f"{one.mean():.1%} ± {1.96 * sem(one):.1%}" for one in shares]
        guess = here["baseline"].to_numpy(float).mean()
        print(f"| {size} | {' | '.join(cells)} | {guess:.1%} |")


if __name__ == "__main__":
    main()
