"""Under secure aggregation nobody gets a single update, and nothing but the sum is in the clear."""

import itertools
import json
import random
from typing import ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Array
from support.reachable import reachable
from support.secure_rounds import PROTOCOLS, arrays, conducted, mean, plain, secure
from support.tiny import config, initial

from fedsim import HonestButCurious
from fedsim.adversary import Adversary
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.federation.secure import MASKED_KEY, SECAGGPLUS_KEY, masking
from fedsim.federation.secure.grid import SecureGrid
from fedsim.federation.strategies import build_strategy
from fedsim.knowledge import Knowledge
from fedsim.records import Reconstruction
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import build
from fedsim.scenario.settings import AttackPlan

pytestmark = pytest.mark.usefixtures("rogues")


def masked_vectors(wire):
    """By client, the masked vector that travelled."""
    found = {}
    for reply in wire.replies:
        records = reply.content.array_records
        if MASKED_KEY in records:
            found[reply.metadata.src_node_id - 1000] = records[MASKED_KEY]["masked"].numpy()
        masked = reply.content.config_records.get(SECAGGPLUS_KEY, {}).get("masked_params")
        if masked:
            vector = Array("int64", (), "numpy.ndarray", masked[1]).numpy()
            found[reply.metadata.src_node_id - 1000] = vector.astype(np.uint64) << np.uint64(32)
    return found


def looks_random(vector):
    """Whether the top byte of each entry is spread as evenly as dice would spread it."""
    counts = np.bincount((vector >> np.uint64(56)).astype(int), minlength=256)
    expected = len(vector) / 256
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    return abs(chi_squared - 255) < 6 * np.sqrt(2 * 255)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_travels_says_nothing_one_by_one_or_by_some(protocol):
    run = secure(protocol)
    updates = plain(run)
    _, wire = conducted(run)
    masked = masked_vectors(wire)
    assert set(masked) == set(range(6))
    for several in (1, 2, 5):
        for group in itertools.combinations(range(6), several):
            total = np.zeros_like(masked[0])
            for number in group:
                total += masked[number]
            assert looks_random(total), group
            own = masking.flatten(mean([updates[number] for number in group]))
            seen = total[-len(own) :].view(np.int64).astype(np.float64)
            assert abs(np.corrcoef(own, seen)[0, 1]) < 6 / np.sqrt(len(own)), group
    every = np.zeros_like(masked[0])
    for vector in masked.values():
        every += vector
    assert looks_random(every) == (protocol == "secagg+")  # which adds a mask of each one's own


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_else_travels_in_the_clear(protocol):
    _, wire = conducted(secure(protocol))
    assert wire.replies
    for reply in wire.replies:
        content = reply.content
        told = json.dumps([list(record) for record in content.config_records.values()])
        assert "num_examples" not in told
        assert "loss" not in told
        for record in content.metric_records.values():
            # The weight: Flower's protocol sends it beside the masked vector.
            assert (protocol, list(record)) == ("secagg+", ["num_examples"])
        for record in content.array_records.values():
            assert all(array.numpy().dtype == np.uint64 for array in record.values())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_update_is_the_same_masked_twice(protocol):
    _, first = conducted(secure(protocol))
    _, second = conducted(secure(protocol, seed=4))
    ours, theirs = masked_vectors(first)[0], masked_vectors(second)[0]
    assert not np.array_equal(ours, theirs)


class Keeps(Adversary):
    """Keeps what it was handed."""

    name: ClassVar[str] = "keeps"
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_counts"})

    kept: ClassVar[list[object]] = []

    def reconstruct(self, seen, job):
        self.kept.append(seen)
        return Reconstruction(label_counts={0: 1})


def tensors_within(*starts):
    """Every float tensor and array that can be reached, by its bytes as float32."""
    found = {}
    for start in starts:
        for thing in reachable(start):
            if isinstance(thing, torch.Tensor) and thing.is_floating_point():
                found[thing.detach().float().numpy().tobytes()] = thing
            elif isinstance(thing, np.ndarray) and thing.dtype.kind == "f":
                found[thing.astype(np.float32).tobytes()] = thing
            elif isinstance(thing, Array):
                found[thing.numpy().astype(np.float32).tobytes()] = thing
    return found


@pytest.mark.parametrize("protocol", [False, *PROTOCOLS])
def test_no_single_update_is_reachable(protocol, tmp_path):
    run = secure(protocol, threat={"grants": "full"}, training={"rounds": 1})
    built = build(run, adversaries=[("keeps", AttackPlan(name="keeps"), Keeps())])
    ledger = Ledger.create(tmp_path, run)
    campaign = Campaign(built, ledger, InlineExecutor(AttackRunner(built)))
    curious = HonestButCurious(build_strategy(run), campaign=campaign)
    heard = []
    received = curious.aggregate_train

    def listening(round, replies):
        heard.extend(replies)
        return received(round, heard)

    curious.aggregate_train = listening
    grid = InlineGrid(6)
    if protocol:
        grid = SecureGrid(grid, protocol, seed=run.seed, most=4)
    Keeps.kept.clear()
    curious.start(
        grid=grid,
        initial_arrays=initial(run),
        num_rounds=1,
        train_config=config(run),
    )
    # Where the replies were, and where the attacks are: all that a server or adversary holds.
    found = tensors_within(Keeps.kept, heard, curious.strategy, curious._sent)
    single = [
        update[name].astype(np.float32).tobytes()
        for update, _ in plain(run)
        for name in update
        if update[name].size > 4
    ]
    assert any(one in found for one in single) == (not protocol)
    total = arrays(heard[0])
    assert all(value.astype(np.float32).tobytes() in found for value in total.values())
    assert len(Keeps.kept) == (1 if protocol else 6)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_of_the_protocol_stays_with_a_client_or_moves_a_generator(protocol):
    run = secure(protocol)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    _, wire = conducted(run)
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert before == after
    assert not any(context.state for context in wire._grid.contexts.values())
