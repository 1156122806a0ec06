"""An attack that matches the gradient and recovers nothing: which side is wrong is said at once."""

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from support.tiny import rows
from torch import nn

from adversaries import DLG, LLG, TokenLeak
from fedsim import HonestButCurious, reveal, watch
from fedsim.engine.inline import InlineGrid

pytestmark = pytest.mark.usefixtures("unreported")


class Net(nn.Module):
    """A network without normalisation of its inputs."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.out(torch.sigmoid(self.hidden(x.flatten(1))))


class Normalised(Net):
    """The same, with a normalisation inside, which the server does not know of."""

    def forward(self, x):
        return super().forward(2 * x - 1)


class Pooled(Net):
    """A network that sees no more than the means of two by two pixels."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(16, 32)

    def forward(self, x):
        return super().forward(nn.functional.avg_pool2d(x, 2))


def by_hand(net):
    """A step of SGD that is no optimizer's."""
    with torch.no_grad():
        for one in net.parameters():
            one -= 0.1 * one.grad


def audited(folder, theirs, ours, *adversaries, step=None):
    """The rows of an audit of a client that takes one step on one digit."""
    app = ClientApp()

    @app.train(mods=[watch()])
    def train(message, context):
        net = theirs()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        digits, number = load_digits(), int(context.node_config["partition-id"])
        image = torch.tensor(digits.images[number][None, None] / 16, dtype=torch.float32)
        for x, y in reveal([(image, torch.tensor(digits.target[number])[None])]):
            nn.functional.cross_entropy(net(x), y).backward()
        (step or torch.optim.SGD(net.parameters(), lr=0.1).step)(*[net] * bool(step))
        arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": 1})
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    torch.manual_seed(5)
    HonestButCurious(
        FedAvg(fraction_evaluate=0.0),
        adversaries=adversaries,
        model=ours,
        out=folder,
        threat={"grants": "white-box", "victims": [0]},
        training={"lr": 0.1, "local_steps": 1, "optimizer": "sgd"},
    ).start(grid=InlineGrid(2, app), initial_arrays=ArrayRecord(ours().state_dict()), num_rounds=1)
    return rows(folder)


BOTH = "it matches the gradient up to rounding and recovers none of the revealed examples"


@pytest.mark.reported
def test_a_match_of_what_is_not_the_truth_is_a_contradiction(tmp_path, caplog):
    caplog.set_level("WARNING", logger="flwr")
    with pytest.warns(UserWarning, match="does not explain its update"):
        found = audited(tmp_path / "run", Normalised, Net, DLG(iterations=60))
    (said,) = {row["error"] for row in found}
    assert {(row["status"], row["metric"] == "recovered") for row in found} >= {
        ("unverified", True)
    }
    assert said.startswith(f"contradiction: {BOTH}, which do not explain the update (misfit: none")
    assert f"fedsim: r0001-c0000 dlg: {said}" in caplog.text
    assert said[:60] in (tmp_path / "run/report.html").read_text()


def test_a_match_of_another_input_is_named(tmp_path, caplog):
    caplog.set_level("WARNING", logger="flwr")
    found = audited(tmp_path / "run", Pooled, Pooled, DLG(iterations=60))
    assert {(row["status"], row["checked"]) for row in found} == {("ok", "fits")}
    (said,) = {row["error"] for row in found}
    assert said == f"another input has this gradient: {BOTH}, which explain the update"
    assert f"fedsim: r0001-c0000 dlg: {said}" in caplog.text


def test_where_the_check_is_not_made_both_are_named(tmp_path):
    found = audited(tmp_path / "run", Pooled, Pooled, DLG(iterations=60), step=by_hand)
    (said,) = {row["error"] for row in found}
    assert said.startswith(f"contradiction, or another input has this gradient: {BOTH} (not che")


def test_a_recovered_example_and_labels_alone_are_no_contradiction(tmp_path):
    found = audited(tmp_path / "run", Net, Net, DLG(iterations=60), LLG())
    assert {(row["status"], row["error"]) for row in found} == {("ok", "")}
    assert {row["value"] for row in found if row["metric"] == "recovered"} == {"1.0"}


def test_the_first_attack_that_cannot_be_made_is_said_at_once(tmp_path, caplog):
    caplog.set_level("WARNING", logger="flwr")
    audited(tmp_path / "run", Net, Net, TokenLeak())
    assert "fedsim: r0001-c0000 token-leak: denied: token-leak attacks texts" in caplog.text
