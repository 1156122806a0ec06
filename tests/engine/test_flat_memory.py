"""A process that trains for thousands of rounds keeps nothing of those that are done."""

import gc
from collections import Counter

from support.tiny import scenario

from fedsim.attacking import scoring
from fedsim.engine.simulate import simulate
from fedsim.runs.attack_log import Ended
from fedsim.runs.ledger import Ledger
from fedsim.runs.recording import Recording
from fedsim.runs.stored import Entry, File, Round

KEPT = (Ended, Entry, File, Round)


def test_no_object_stays_for_each_round_or_attack(tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "REMEMBERED", 10)
    alive, scorers = [], []
    make = scoring.Scorer.__init__

    def made(self, *args, **settings):
        scorers.append(self)
        make(self, *args, **settings)

    monkeypatch.setattr(scoring.Scorer, "__init__", made)

    def observe(event, **fields):
        if event == "round" and fields["round"]:
            gc.collect()
            found = Counter(type(one).__name__ for one in gc.get_objects() if type(one) in KEPT)
            alive.append(found | Counter({"baselines": len(scorers[-1]._chances)}))

    # Round 6 has attacked all of the rounds before it.
    simulate(scenario(training={"rounds": 6}), tmp_path / "run", observer=observe)
    assert alive[-1] == alive[-2] == alive[-3]
    # What was not kept is read from the files.
    assert [len(one.updates) for one in Recording(tmp_path / "run/tape").rounds.values()] == [4] * 6
    assert len(Ledger(tmp_path / "run").finished("")) == 24
