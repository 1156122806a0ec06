"""Adversaries that mean harm find nothing and change no other row."""

import secrets
from pathlib import Path

import numpy as np
import pytest
from support import redteam, redteam_damage
from support.tiny import rows

from fedsim.engine.simulate import simulate
from fedsim.isolation import process
from fedsim.scenario import Scenario

pytestmark = pytest.mark.skipif(
    "files" not in process.server().walls, reason="this system has no Landlock"
)

SLOW = {"native-loop", "for-ever"}
"""Tricks that end by the time limit."""

ENDED = {
    "exit-quietly": ("failed", "ended without a claim (exit status 0)"),
    "base-exception": ("failed", "Worse: not an Exception"),
    "interrupt": ("failed", "KeyboardInterrupt"),
    "two-hundred-megabytes": ("failed", "it sent"),
    "many-labels": ("failed", "adds up to more than"),
    "native-loop": ("timeout", "over its limit of 2 s"),
    "for-ever": ("timeout", "over its limit of 2 s"),
    "forged-frames": ("failed", "its claim cannot be read"),
    "endless-frame": ("failed", "it sent 4611686018427387904 bytes"),
    "leave-the-socket": ("failed", "ended without a claim (signal 9)"),
    "long-progress": ("failed", "it sent 33554432 bytes, at most 262144"),
    "nameless-error": ("failed", "its error cannot be read"),
    "claims-denial": ("failed", "<script>"),
}
"""How tricks end that break something: status and a part of the error."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set that is generated here, and the red team's file beside the scenario."""
    folder = tmp_path_factory.mktemp("red")
    rng = np.random.default_rng(secrets.randbits(60))
    images = rng.random((200, 8, 8), dtype=np.float32)
    images[:, 0, 0] = redteam.CANARY
    labels = rng.integers(0, 10, 200)
    (folder / "secret").mkdir()
    np.savez(folder / "secret/set.npz", x=images, y=labels)
    for module in (redteam, redteam_damage):
        file = Path(module.__file__)
        (folder / file.name).write_text(file.read_text())
    places = f"DATA = {str(folder / 'secret/set.npz')!r}\nRUN = {str(folder / 'run')!r}\n"
    (folder / "places.py").write_text(places)
    return folder


def scenario(folder, adversaries, seed):
    return Scenario.parse(
        {
            "name": "red",
            "seed": seed,
            "task": {"name": "images", "data": str(folder / "secret/set.npz"), "model": "mlp"},
            "training": {"clients": 2, "rounds": 1, "batch_size": 4},
            "threat": {"grants": "white-box", "memory_mb": 1024, "victims": [0]},
            "adversaries": adversaries,
            "engine": {"workers": 1},
            "search_dirs": [str(folder)],
        }
    )


def values(run, label):
    return {row["metric"]: row["value"] for row in rows(run) if row["label"] == label}


def test_none_finds_the_truth_and_none_changes_another_row(folder):
    seed = secrets.randbits(63)
    honest = [{"name": "llg"}, {"name": "dlg", "iterations": 3, "restarts": 0}]
    red = [
        {
            "name": "redteam:RedTeam",
            "trick": name,
            "label": name,
            "timeout": 2.0 if name in SLOW else 60.0,
        }
        for name in redteam.TRICKS
    ]
    assert len(red) >= 20
    simulate(scenario(folder, honest, seed), folder / "quiet")
    simulate(scenario(folder, [honest[0], *red, honest[1]], seed), folder / "run")
    for label in ("llg", "dlg"):
        assert values(folder / "run", label) == values(folder / "quiet", label)
    found = {row["label"]: row for row in rows(folder / "run") if row["label"] in redteam.TRICKS}
    assert {*found} == {*redteam.TRICKS}
    log = (folder / "run/log.jsonl").read_text().splitlines()
    loot = [line for line in log if '"found"' in line]
    assert not loot, loot
    for label, row in found.items():
        status, error = ENDED.get(label, ("ok", ""))
        assert (row["status"], error in row["error"]) == (status, True), (label, row)
        assert row["value"] is None or row["value"] <= row["baseline"], (label, row)
    assert "<script>red" not in (folder / "run/report.html").read_text()
