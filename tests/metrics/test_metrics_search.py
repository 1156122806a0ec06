"""LPIPS where its networks are, silence where they are not; and how an attack's search went."""

import math
import sys
import types

import pytest
import torch
import torchmetrics.image.lpip  # noqa: F401 - before there is another torchvision
from torch import nn

from fedsim.metrics import METRICS, applicable, images
from fedsim.records import Reconstruction, Spec, Truth

SPEC = Spec(classes=10, input_shape=(1, 16, 16), input_range=(0.0, 1.0))


def scored(name: str, claimed: Reconstruction, truth: Truth | None = None) -> float:
    return METRICS[name].score(claimed, truth or Truth(), SPEC)


# How the search went


@pytest.mark.parametrize(
    ("outcomes", "share"),
    [
        (("matched",), 0),
        (("diverged", "diverged"), 1),
        (("diverged", "stalled", "steps", "matched"), 0.25),
        ((), None),
    ],
)
def test_divergence_is_the_share_of_starts(outcomes, share):
    value = scored("divergence", Reconstruction(outcomes=outcomes))
    assert math.isnan(value) if share is None else value == share


@pytest.mark.parametrize("objective", [0.0, 2.5e-7, 3.0])
def test_the_gradient_distance_is_the_attacks_own(objective):
    assert scored("gradient_distance", Reconstruction(objective=objective)) == objective


@pytest.mark.parametrize("objective", [math.inf, math.nan])
def test_a_distance_that_never_was_finite_is_no_number(objective):
    assert math.isnan(scored("gradient_distance", Reconstruction(objective=objective)))


def test_they_apply_to_attacks_that_report_them_on_every_task():
    fields = {"objective", "outcomes"}
    assert [m.name for m in applicable(fields, Spec(2))] == ["divergence", "gradient_distance"]
    assert applicable({"text"}, SPEC) == []


# LPIPS


@pytest.fixture
def networks(monkeypatch, tmp_path):
    """A hub folder of its own; `install` puts a torchvision there, `store` a file of weights."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for name in ("torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, name, None)
    images._distance.cache_clear()
    loaded = []

    def alexnet(weights):
        """AlexNet's features by its published shapes; random, seeded weights."""
        loaded.append(weights)
        text = (tmp_path / "checkpoints" / "alexnet.pth").read_text()
        if text == "torn":
            raise RuntimeError("PytorchStreamReader failed")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            features = nn.Sequential(
                *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
                *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
                *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
                *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
                *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()),
            )
        return types.SimpleNamespace(features=features)

    def install():
        weights = types.SimpleNamespace(
            DEFAULT=types.SimpleNamespace(url="https://host.invalid/models/alexnet.pth")
        )
        models = types.ModuleType("torchvision.models")
        models.AlexNet_Weights, models.alexnet = weights, alexnet
        package = types.ModuleType("torchvision")
        package.models = models
        monkeypatch.setitem(sys.modules, "torchvision", package)
        monkeypatch.setitem(sys.modules, "torchvision.models", models)
        for module in ("torchmetrics.image.lpip", "torchmetrics.functional.image.lpips"):
            monkeypatch.setattr(f"{module}._TORCHVISION_AVAILABLE", True)

    def store(text="whole"):
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "alexnet.pth").write_text(text)

    yield types.SimpleNamespace(install=install, store=store, loaded=loaded)
    images._distance.cache_clear()


def applies() -> bool:
    return "lpips" in [metric.name for metric in applicable({"inputs"}, SPEC)]


def test_lpips_is_absent_without_torchvision(networks):
    assert not applies()
    with pytest.raises(ValueError, match="torchvision"):
        scored("lpips", Reconstruction(inputs=[]), Truth(inputs=[torch.zeros(1, 16, 16)]))


def test_lpips_never_asks_for_weights_that_are_not_stored(networks):
    networks.install()
    assert not applies()
    assert networks.loaded == []


def test_lpips_is_absent_where_the_weights_are_damaged(networks):
    networks.install()
    networks.store("torn")
    assert not applies()
    assert len(networks.loaded) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("channels", [1, 3])
def test_lpips_tells_a_copy_from_another_image_of_any_size(networks, channels):
    networks.install()
    networks.store()
    assert applies()
    rng = torch.Generator().manual_seed(0)
    images = list(torch.rand(3, channels, 16, 16, generator=rng))
    truth = Truth(inputs=images)
    copies = Reconstruction(inputs=[images[i] for i in (2, 0, 1)])
    near = Reconstruction(inputs=[0.9 * image for image in images])
    far = Reconstruction(inputs=list(torch.rand(3, channels, 16, 16, generator=rng)))
    assert scored("lpips", copies, truth) == pytest.approx(0, abs=1e-7)
    assert 0 < scored("lpips", near, truth) < scored("lpips", far, truth)
    assert len(networks.loaded) == 1


def test_lpips_sees_colour_and_at_least_64_pixels():
    seen = images._seen(torch.full((2, 1, 16, 32), 0.25, dtype=torch.float64))
    assert seen.shape == (2, 3, 64, 128)
    assert seen.dtype == torch.float32
    assert torch.allclose(seen, torch.tensor(0.25))
    large = torch.rand(1, 3, 70, 80)
    assert torch.equal(images._seen(large), large)
