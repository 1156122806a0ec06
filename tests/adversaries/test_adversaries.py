"""Every registered adversary keeps its contract, beats chance on an easy case, and finds nothing
in noise; then what each is known to answer."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adversaries import IDLG, LLG, BiasSigns, MinColumn
from fedsim import testing
from fedsim.adversary import Adversary, Job
from fedsim.errors import AttackTimeout, Cancelled, NotGranted
from fedsim.gradients import to_gradient
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS, baselines
from fedsim.plugin import find, make, names
from fedsim.records import Reconstruction, Truth, Update
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel


@dataclass(frozen=True)
class Easy:
    """A case on which an adversary must beat chance: its metric, batch size and settings.

    plugin: its name, where a plugin has several cases.
    refuses: whether it refuses noise with an error instead of claiming something.
    """

    metric: str
    size: int = 1
    plugin: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    victims: int = 8
    noise: int = 60
    noise_settings: dict[str, Any] = field(default_factory=dict)
    model: Callable[[int], VictimModel] = testing.network
    refuses: bool = False


def perceptron(seed: int, units: int = 20) -> VictimModel:
    """Linear layers and ReLUs alone, for `testing.SPEC`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = as_architecture({"name": "mlp", "hidden": [units]}).build((1, 6, 6), 10)
    return VictimModel(module, head="head", loss=cross_entropy)


QUICK_DLG = {"name": "dlg", "iterations": 3, "restarts": 0}

EASY = {
    "accumulate": Easy("mse", victims=2, noise=8, noise_settings={"claims_from": QUICK_DLG}),
    "dlg": Easy("mse", victims=2, noise=8, noise_settings={"iterations": 3, "restarts": 0}),
    "exact-batch": Easy("mse", size=4, model=perceptron, refuses=True),
    "feature-separation": Easy("label_exact", size=4, refuses=True),
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
    "repeated-gradients": Easy(
        "mse", victims=2, noise=8, noise_settings={"iterations": 3, "restarts": 0}
    ),
    "r-gap": Easy("mse", refuses=True),
    "spear": Easy("mse", size=4, model=partial(perceptron, units=64), refuses=True),
    "rlg": Easy("label_f1", size=4),
    "rlg by margin": Easy("label_f1", 4, "rlg", {"accept": "margin"}),
    "rlg of the authors": Easy("label_f1", 4, "rlg", {"accept": "authors"}),
    "bias-signs of weights": Easy("asr", 4, "bias-signs", {"of": "weight"}),
}
"""By the plugin's name, or a name of the case."""

CHANCE = {"random"}
"""Is chance itself."""

ELSEWHERE = {
    *("dager", "dlg-text", "first-frames", "gm-bow", "hfgm", "lamp", "span-decoding"),
    *("ctc-matching", "speaker-inference"),
    *("tag", "token-leak"),
}
"""For sequence models and text: their easy cases are in test files of their own."""

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
        if noise and EASY[name].refuses:
            with pytest.raises(ValueError, match=r"fit|noise hides them"):
                attack.reconstruct(seen, testing.job(seed=seed))
            found.append(0.0)
            continue
        claimed = attack.reconstruct(seen, testing.job(seed=seed))
        value = metric.score(claimed, truth, testing.SPEC)
        chance, _ = baselines(metric, truth, testing.SPEC, guess, seed)
        found.append((value - chance) * (1 if metric.higher_is_better else -1))
    return found


def test_every_built_in_adversary_has_an_easy_case():
    covered = {case.plugin or name for name, case in EASY.items()}
    assert set(BUILT_IN) - CHANCE - ELSEWHERE <= covered, "add a row to EASY for the new adversary"


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
    after = seen.model.copy().to("cpu").module.state_dict()
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


# Job


def test_a_job_counts_stops_and_reports():
    reported = []
    job = testing.job(budget=3, on_progress=lambda *what: reported.append(what))
    for step in job.steps(10):
        job.progress(step, 1.0)
    assert reported == job.trace == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert list(job.steps(10)) == []
    job.progress(3, torch.tensor(2.0, requires_grad=True) * 2)
    assert job.trace[-1] == (3, 4.0)
    assert type(job.trace[-1][1]) is float
    with pytest.raises(Cancelled, match="stopped"):
        testing.job(cancelled=lambda: True).progress(0, 0.0)
    with pytest.raises(AttackTimeout, match="limit"):
        Job(torch.Generator(), deadline=-1.0).progress(0, 0.0)


# Conformance itself
