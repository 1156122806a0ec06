"""Probes leave training bit-identical on all engines, and are the same on all of them."""

import json

import pytest
from support.tiny import rows, scenario, timeless

from fedsim.engine.simulate import simulate

pytestmark = pytest.mark.usefixtures("unreported")

PROBES = [{"client": 3, "updates": 2}, {"client": 1, "batch_size": 4}]
ENGINES = {
    "inline": {"name": "inline"},
    "ray": {"name": "ray", "workers": 2, "attack_workers": 1},
    "flower": {"name": "flower", "workers": 1},
}


def run(folder, engine, **threat):
    """A defended run that records everything; its findings, utility and digests of files."""
    one = scenario(
        threat={"grants": "white-box", **threat},
        training={"algorithm": "fedavg", "local_steps": 2, "momentum": 0.5},
        defenses=[{"name": "gaussian-noise", "sigma": 0.01}, {"name": "dropout", "rate": 0.2}],
        record={"keep": "all"},
        engine=engine,
    )
    simulate(one, folder)
    lines = [json.loads(line) for line in (folder / "tape/index.jsonl").read_text().splitlines()]
    digests = [
        [(file["name"], file["digest"]) for file in one["files"].values() if "digest" in file]
        for line in sorted(lines, key=lambda line: line["round"])
        for one in line["updates"]
    ]
    return timeless(folder), rows(folder, "utility.csv"), digests


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The run without probes."""
    return run(tmp_path_factory.mktemp("without") / "run", ENGINES["inline"])


@pytest.fixture(scope="module")
def with_probes(tmp_path_factory):
    """The run with probes, in one process."""
    return run(tmp_path_factory.mktemp("with") / "run", ENGINES["inline"], probes=PROBES)


@pytest.mark.parametrize("engine", ENGINES)
def test_training_is_bit_identical_with_probes(engine, without, with_probes, tmp_path, ray_session):
    if engine == "inline":
        found = with_probes
    else:
        found = run(tmp_path / "run", ENGINES[engine], probes=PROBES)
    assert found[1:] == without[1:]
    assert found[0] == with_probes[0]
    assert [row for row in found[0] if "-p" not in row["victim"]] == without[0]
    assert {row["status"] for row in found[0]} == {"ok"}
