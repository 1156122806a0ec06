"""A compiled objective is the objective, for any number of rows, and says what it cannot do."""

import shutil

import pytest
import torch

from fedsim import testing
from fedsim.gradients import compiling
from fedsim.gradients.compiling import Compiled, evaluated
from fedsim.plugin import make
from fedsim.seeds import torch_generator

POINTS = torch.randn(4, 3, generator=torch_generator(0, "test"), dtype=torch.float64)


def cubes(points, victims):
    return (points**3).sum(dim=1) * (1 + victims)


@pytest.fixture
def quick(monkeypatch):
    """The graph as it was recorded, without machine code."""
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")


@pytest.mark.usefixtures("quick")
def test_values_and_gradients_are_autograds_for_fewer_rows_and_more():
    graph = Compiled(cubes)
    for rows in (3, 1, 2, 4):
        points, victims = POINTS[:rows], torch.arange(rows)
        for ours, theirs in zip(
            graph.evaluate(points, victims), evaluated(cubes)(points, victims), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dlg", {"iterations": 3, "restarts": 1}),
        ("inverting-gradients", {"iterations": 5, "restarts": 1}),
        ("repeated-gradients", {"iterations": 3, "restarts": 0}),
    ],
)
def test_attacks_find_the_same_with_a_compiled_objective(name, settings):
    attack = make("adversaries", name, settings)
    seen = [testing.example(seed=seed, model=testing.network()) for seed in range(2)]
    found = []
    for how in (False, True):
        jobs = [testing.job(seed=seed, compiled=how) for seed in range(2)]
        found.append([one.objective for one in attack.reconstruct_many(seen, jobs)])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.usefixtures("quick")
def test_hooks_that_are_set_for_all_modules_do_not_matter():
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *call: None)
    try:
        values, _ = Compiled(cubes).evaluate(POINTS, torch.arange(4))
    finally:
        hook.remove()
    torch.testing.assert_close(values, cubes(POINTS, torch.arange(4)), rtol=1e-12, atol=0)


@pytest.mark.usefixtures("quick")
def test_an_objective_that_reads_values_is_refused():
    def reads(points, victims):
        return points.sum(dim=1) * float(points.detach().max())

    with pytest.raises(ValueError, match=r"reads values in Python \(__float__\).*compile = false"):
        Compiled(reads).evaluate(POINTS, torch.arange(4))


def test_a_compiler_that_fails_is_told(monkeypatch):
    def fails(graph, inputs):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compiling, "BACKEND", fails)
    with pytest.raises(ValueError, match=r"no compiler here.*engine\.compile = false"):
        Compiled(cubes).evaluate(POINTS, torch.arange(4))


@pytest.mark.skipif(not shutil.which("g++"), reason="PyTorch's compiler needs g++ on a CPU")
def test_machine_code_computes_the_same():
    points, victims = POINTS, torch.arange(4)
    ours, theirs = Compiled(cubes).evaluate(points, victims), evaluated(cubes)(points, victims)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
