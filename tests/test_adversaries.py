"""Every registered adversary keeps its contract, beats chance on an easy case, and finds nothing
in noise; then what each is known to answer."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adversaries import DLG, IDLG, LLG, BiasSigns, MinColumn
from fedsim import testing
from fedsim.adversary import Adversary, Job
from fedsim.errors import AttackTimeout, Cancelled, NotGranted, PluginError
from fedsim.gradients import to_gradient
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS, baselines
from fedsim.plugin import find, make, names
from fedsim.records import Observation, Reconstruction, Spec, Truth, Update
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel


@dataclass(frozen=True)
class Easy:
    """A case on which an adversary must beat chance: its metric, batch size and settings.

    plugin: its name, where a plugin has several cases.
    """

    metric: str
    size: int = 1
    plugin: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    victims: int = 8
    noise: int = 60
    noise_settings: dict[str, Any] = field(default_factory=dict)
    model: Callable[[int], VictimModel] = testing.network


def perceptron(seed: int) -> VictimModel:
    """Linear layers and ReLUs alone, for `testing.SPEC`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = as_architecture({"name": "mlp", "hidden": [20]}).build((1, 6, 6), 10)
    return VictimModel(module, head="head", loss=cross_entropy)


EASY = {
    "dlg": Easy("mse", victims=2, noise=8, noise_settings={"iterations": 3, "restarts": 0}),
    "first-linear": Easy("mse", model=perceptron),
    "idlg": Easy("label_exact"),
    "inverting-gradients": Easy(
        "mse",
        victims=2,
        settings={"iterations": 150, "restarts": 0},
        noise=8,
        noise_settings={"iterations": 3, "restarts": 0},
    ),
    "llg": Easy("asr", size=6),
    "llg*": Easy("asr", 6, "llg", {"variant": "llg*"}, noise_settings={"variant": "llg*"}),
    "llg+": Easy("asr", 6, "llg", {"variant": "llg+"}, noise_settings={"variant": "llg+"}),
    "min-column": Easy("label_f1", size=4),
    "bias-signs": Easy("asr", size=4),
    "bias-signs of weights": Easy("asr", 4, "bias-signs", {"of": "weight"}),
}
"""By the plugin's name, or a name of the case."""

CHANCE = {"random"}
"""Is chance itself."""

BUILT_IN = [n for n in names("adversaries") if find("adversaries", n).__module__[:4] == "adve"]


def guess(truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
    labels = torch.randint(testing.SPEC.classes, (len(truth.labels),), generator=rng)
    inputs = [torch.rand(one.shape, generator=rng) for one in truth.inputs]
    return Reconstruction(
        labels=labels,
        label_counts=Counter(labels.tolist()),
        label_set=frozenset(labels.tolist()),
        inputs=inputs,
    )


def scores(name: str, size: int, victims: int, given: dict[str, Any], noise: bool) -> list[float]:
    """Pairs of a score and a random guess's, differences with better above 0."""
    metric = METRICS[EASY[name].metric]
    found = []
    for seed in range(victims):
        model = EASY[name].model(seed)
        seen, examples = testing.example(size, seed, model), testing.batch(size, seed)
        if noise:
            rng = torch.Generator().manual_seed(1000 + seed)
            static = {k: torch.randn(v.shape, generator=rng) for k, v in seen.gradient.items()}
            seen = dataclasses.replace(seen, gradient=static)
        truth = Truth(inputs=list(examples.inputs), labels=examples.labels)
        attack = make("adversaries", EASY[name].plugin or name, given)
        claimed = attack.reconstruct(seen, testing.job(seed=seed))
        value = metric.score(claimed, truth, testing.SPEC)
        chance, _ = baselines(metric, truth, testing.SPEC, guess, seed)
        found.append((value - chance) * (1 if metric.higher_is_better else -1))
    return found


def test_every_built_in_adversary_has_an_easy_case():
    covered = {case.plugin or name for name, case in EASY.items()}
    assert set(BUILT_IN) - CHANCE <= covered, "add a row to EASY for the new adversary"


@pytest.mark.parametrize("name", names("adversaries"))
def test_keeps_its_contract(name):
    sample = testing.example(model=EASY[name].model(0)) if name in EASY else None
    assert testing.conformance(find("adversaries", name), sample) == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_cites_its_paper(name):
    assert find("adversaries", name).cites


@pytest.mark.parametrize("name", EASY)
def test_beats_chance_on_an_easy_case(name):
    easy = EASY[name]
    gains = scores(name, easy.size, easy.victims, easy.settings, noise=False)
    assert sum(gains) / len(gains) > 0.1


@pytest.mark.parametrize("name", EASY)
def test_finds_nothing_in_noise(name):
    # One example a batch: a guess that merely spreads its labels gains nothing there.
    easy = EASY[name]
    gains = torch.tensor(scores(name, 1, easy.noise, easy.noise_settings, noise=True))
    error = float(gains.std()) / len(gains) ** 0.5
    assert float(gains.mean()) < 3 * error + 1e-9


@pytest.mark.parametrize("name", EASY)
def test_leaves_the_model_as_it_was(name):
    seen = testing.example(model=EASY[name].model(0))
    before = {k: v.clone() for k, v in seen.model.module.state_dict().items()}
    easy = EASY[name]
    attack = make("adversaries", easy.plugin or name, easy.settings)
    attack.reconstruct(seen, testing.job(budget=3))
    after = seen.model.module.state_dict()
    assert all(torch.equal(after[k], v) and after[k].dtype == v.dtype for k, v in before.items())
    assert all(p.grad is None for p in seen.model.module.parameters())


@pytest.mark.parametrize("attack", [LLG(), IDLG(), MinColumn(), BiasSigns()])
@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        ({"head.weight": torch.zeros(4, 3)}, "zero"),
        ({"head.weight": torch.full((4, 3), float("nan"))}, "NaN"),
        ({"out.weight": torch.ones(4, 3)}, "head.weight"),
        ({"head.weight": torch.ones(5, 3)}, "shape"),
    ],
)
def test_label_attacks_refuse_a_gradient_that_says_nothing(attack, gradient, message):
    seen = testing.observation(gradient=gradient, classes=4, num_examples=2)
    with pytest.raises(ValueError, match=message):
        attack.reconstruct(seen, testing.job())


# LLG


def head_only(counts: dict[int, int], classes: int, features: int = 5) -> Tensor:
    """The head's gradient of an untrained head (uniform p) on features of 1, in closed form."""
    size = sum(counts.values())
    rows = torch.tensor([1 / classes - counts.get(i, 0) / size for i in range(classes)])
    return rows[:, None].expand(classes, features).clone()


def attacked(attack: Adversary, gradient: Tensor, size: int, head: str = "head") -> Reconstruction:
    seen = testing.observation(
        gradient={f"{head}.weight": gradient},
        head=head,
        granted=Knowledge.HEAD_GRADIENT | Knowledge.BATCH_SIZE,
        num_examples=size,
    )
    return attack.reconstruct(seen, testing.job())


@pytest.mark.parametrize(
    ("counts", "classes"),
    [
        ({0: 3, 1: 1, 5: 4}, 10),
        (dict.fromkeys(range(8), 1), 10),
        ({7: 16}, 10),  # one class
        ({2: 1}, 10),  # one example
        ({0: 30, 1: 30}, 10),  # more examples than classes
        ({999: 2, 3: 1}, 1000),
    ],
)
def test_llg_recovers_known_counts(counts, classes):
    claimed = attacked(LLG(), head_only(counts, classes), sum(counts.values()), head="out.proj")
    assert claimed.label_counts == counts
    assert claimed.label_set == set(counts)
    assert Counter(claimed.labels.tolist()) == counts


@given(
    counts=st.dictionaries(st.integers(0, 9), st.integers(1, 6), min_size=1, max_size=9),
    factor=st.floats(1e-3, 1e3),
)
@settings(max_examples=40, deadline=None)
def test_llg_needs_no_units_and_emits_as_many_labels_as_examples(counts, factor):
    gradient, size = head_only(counts, 10).double(), sum(counts.values())
    gradient += torch.randn(
        gradient.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).mul(0.01)
    one, other = (attacked(LLG(), gradient * f, size).label_counts for f in (1.0, factor))
    assert one == other
    assert sum(one.values()) == size


def test_llg_reads_several_local_steps_from_weights():
    # Four real local steps of two examples; the weights difference is all that is sent.
    model, steps, lr = testing.network(3), 4, 0.1
    examples = testing.batch(2 * steps, 3)
    before = {k: v.detach().clone() for k, v in model.module.state_dict().items()}
    optimizer = torch.optim.SGD(model.module.parameters(), lr=lr)
    for inputs, labels in zip(examples.inputs.split(2), examples.labels.split(2), strict=True):
        optimizer.zero_grad()
        model.loss(inputs, labels).backward()
        optimizer.step()
    after = {k: v.detach() for k, v in model.module.state_dict().items()}
    update = Update(after, "weights", lr=lr, steps=steps, num_examples=2 * steps)
    known, exact = to_gradient(update, before, lr=lr, steps=steps)
    unknown, _ = to_gradient(update, before)
    assert not exact
    claimed = attacked(LLG(), known["head.weight"], 2 * steps)
    assert claimed.label_counts == attacked(LLG(), unknown["head.weight"], 2 * steps).label_counts
    truth = Truth(labels=examples.labels)
    assert METRICS["asr"].score(claimed, truth, testing.SPEC) >= 0.75


def test_llg_emits_no_more_than_there_are_examples():
    claimed = attacked(LLG(), -torch.arange(1.0, 7.0)[:, None], 2)
    assert claimed.label_counts == {4: 1, 5: 1}


def test_llg_without_the_number_of_examples_is_denied():
    seen = testing.observation(gradient={"head.weight": torch.ones(3, 2)})
    with pytest.raises(NotGranted, match="BATCH_SIZE"):
        LLG().reconstruct(seen, testing.job())


# iDLG


@pytest.mark.parametrize("seed", range(20))
def test_idlg_is_exact_for_one_example(seed):
    seen = testing.example(1, seed)
    assert torch.equal(IDLG().reconstruct(seen, testing.job()).labels, seen.labels)


def test_idlg_says_that_it_knows_one_label_only():
    claimed = IDLG().reconstruct(testing.example(4), testing.job())
    assert len(claimed.labels) == 1
    assert "4" in claimed.diagnostics["note"]


# DLG


class Sigmoids(nn.Module):
    """DLG's LeNet: three 5x5 convolutions of 12 channels with sigmoids, weights U(-.5, .5)."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inward, 12, 5, stride=stride, padding=2)
            for inward, stride in ((1, 2), (12, 2), (12, 1))
        )
        self.head = nn.Linear(12 * (side // 4) ** 2, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        for convolution in self.convolutions:
            inputs = torch.sigmoid(convolution(inputs))
        return self.head(inputs.flatten(1))


def digits(index: int, size: int = 1, side: int = 16) -> tuple[Observation, Truth]:
    """Real handwritten digits, their gradient on a fresh LeNet, and the white-box grants."""
    from sklearn.datasets import load_digits

    data = load_digits()
    chosen = slice(index * size, (index + 1) * size)
    small = torch.tensor(data.images[chosen] / 16, dtype=torch.float32)[:, None]
    images = nn.functional.interpolate(small, (side, side), mode="bilinear", align_corners=False)
    labels = torch.tensor(data.target[chosen])
    module = Sigmoids(side)
    rng = torch.Generator().manual_seed(index)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=rng)

    def loss(module: nn.Module, inputs: Tensor, target: Tensor, **_: Any) -> Tensor:
        return nn.functional.cross_entropy(module(inputs), target)

    model = VictimModel(module, head="head", loss=loss)
    seen = testing.observation(
        gradient={k: v.detach() for k, v in model.gradient(images, labels).items()},
        granted=Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE | Knowledge.LABELS,
        spec=Spec(classes=10, input_shape=(1, side, side), input_range=(0.0, 1.0)),
        model=model,
        num_examples=size,
        labels=labels,
    )
    return seen, Truth(inputs=list(images), labels=labels)


@pytest.mark.parametrize(
    "given",
    [{}, {"line_search": "none"}, {"labels_from": "idlg"}, {"precision": "float32"}],
    ids=str,
)
def test_dlg_recovers_a_real_digit(given):
    seen, truth = digits(3)
    claimed = DLG(**given).reconstruct(seen, testing.job(seed=1))
    assert METRICS["mse"].score(claimed, truth, seen.spec) < 1e-3
    assert torch.equal(claimed.labels, truth.labels)
    assert claimed.inputs[0].dtype == torch.float32
    assert claimed.objective < 4e-6
    assert claimed.trace[-1][1] == claimed.objective


def test_dlg_goes_on_until_a_small_gradient_is_matched_too():
    # A gradient this small is nearer than 4e-6 to zero: an absolute tolerance would stop at once.
    seen, truth = digits(3)
    loss = seen.model._loss
    model = VictimModel(seen.model.module, head="head", loss=lambda *a, **k: 1e-4 * loss(*a, **k))
    small = {name: 1e-4 * value for name, value in seen.gradient.items()}
    assert sum(float(value.square().sum()) for value in small.values()) < 4e-6
    seen = dataclasses.replace(seen, gradient=small, model=model)
    claimed = DLG().reconstruct(seen, testing.job(seed=1))
    assert METRICS["mse"].score(claimed, truth, seen.spec) < 1e-3


def test_dlg_recovers_two_digits_at_once():
    seen, truth = digits(1, size=2)
    claimed = DLG(labels_from="given", restarts=2).reconstruct(seen, testing.job(seed=0))
    assert METRICS["recovered"].score(claimed, truth, seen.spec) == 1


def test_dlg_keeps_to_its_budget():
    job = testing.job(budget=2)
    claimed = DLG().reconstruct(digits(0)[0], job)
    assert job.iterations == 2
    assert claimed.outcomes == ("budget",)
    nothing = DLG().reconstruct(digits(0)[0], testing.job(budget=0))
    assert nothing.objective == float("inf")
    assert len(nothing.inputs) == 1


def test_dlg_starts_again_when_hopeless_and_keeps_the_best_start():
    seen = testing.example()
    static = {k: torch.randn_like(v) for k, v in seen.gradient.items()}
    seen = dataclasses.replace(seen, gradient=static)
    attack = DLG(iterations=12, restarts=2, diverged=1e-3)
    claimed = attack.reconstruct(seen, testing.job())
    assert claimed.outcomes == ("diverged",) * 3
    assert claimed.objective == min(value for _, value in claimed.trace)


def test_dlg_survives_an_overflow():
    seen = testing.example()
    huge = {k: torch.full_like(v, 1e25) for k, v in seen.gradient.items()}
    claimed = DLG(restarts=1, precision="float32").reconstruct(
        dataclasses.replace(seen, gradient=huge), testing.job()
    )
    assert claimed.outcomes == ("diverged", "diverged")
    assert claimed.objective == float("inf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec": Spec(classes=10)}, "fixed shape"),
        ({"gradient": {"other.weight": torch.ones(2)}}, "names none"),
        ({"gradient": {"head.weight": torch.zeros(10, 27)}}, "zero"),
        ({"gradient": {"head.weight": torch.full((10, 27), float("inf"))}}, "Inf"),
    ],
)
def test_dlg_refuses_what_it_cannot_match(changes, message):
    seen = dataclasses.replace(testing.example(), **changes)
    with pytest.raises(ValueError, match=message):
        DLG().reconstruct(seen, testing.job())


def test_dlg_inherits_the_needs_of_its_parts():
    alone = DLG().requires()
    assert Knowledge.HEAD_GRADIENT not in alone
    assert DLG(labels_from="idlg").requires() == alone | Knowledge.HEAD_GRADIENT
    assert DLG(labels_from="given").requires() == alone | Knowledge.LABELS
    with pytest.raises(PluginError, match="llg"):
        DLG(labels_from="lgl").requires()


def test_dlg_refuses_labels_that_do_not_fit_the_batch():
    with pytest.raises(ValueError, match="1 labels; the update holds 3"):
        DLG(labels_from="idlg").reconstruct(testing.example(3), testing.job())


# Job


def test_a_job_counts_stops_and_reports():
    reported = []
    job = testing.job(budget=3, on_progress=lambda *what: reported.append(what))
    for step in job.steps(10):
        job.progress(step, 1.0)
    assert reported == job.trace == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert list(job.steps(10)) == []
    with pytest.raises(Cancelled, match="stopped"):
        testing.job(cancelled=lambda: True).progress(0, 0.0)
    with pytest.raises(AttackTimeout, match="limit"):
        Job(torch.Generator(), deadline=-1.0).progress(0, 0.0)


# Conformance itself


class Careless(Adversary):
    """Does everything wrong that can be told from outside."""

    name = "Careless One"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"lables"})
    limit: int = 3

    def reconstruct(self, seen, job):
        return Reconstruction()


class Leaky(Adversary):
    """Breaks the rules at run time."""

    name = "leaky"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"num_labels", "labels"})

    def reconstruct(self, seen, job):
        seen.know(Knowledge.HEAD_GRADIENT)["head.weight"].zero_()
        return Reconstruction(num_labels=int(torch.randint(1000, ())))


class Greedy(Adversary):
    """Asks for more than it declares."""

    name = "greedy"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"labels"})

    def reconstruct(self, seen, job):
        return Reconstruction(labels=seen.know(Knowledge.LABELS))


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (int, ["neither"]),
        (Careless, ["name is", "'limit' has no description", "unbounded", "lables"]),
        (Leaky, ["changes the observation", "global generator of torch", "same seed", "empty"]),
        (Greedy, ["more than it declares"]),
    ],
)
def test_conformance_says_what_is_wrong(cls, words):
    complaints = testing.conformance(cls)
    for word in words:
        assert any(word in complaint for complaint in complaints), (word, complaints)
