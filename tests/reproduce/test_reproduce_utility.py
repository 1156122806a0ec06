"""A measure that attacks and models share: where nobody attacks, it is the model's."""

import pytest
from support.tiny import rows

from fedsim.reproduce import choose, outcome
from fedsim.reproduce.console import reproduce

TOML = """
description = "tiny"
seed = 3
[paper]
id = "test/wer"
title = "Word error rate by rate"
measure = "wer"
x = "training.lr"
repetitions = 1
kind = "table"
[task]
name = "speech"
speakers = 3
utterances = 3
test_examples = 2
auxiliary_fraction = 0.0
model = {name = "deepspeech", hidden = 8, recurrent = 8, context = 1}
[training]
algorithm = "fedsgd"
rounds = 1
clients = 2
batch_size = 1
[engine]
workers = 1
[sweep]
"training.lr" = [0.001, 0.002]
"""


def test_the_models_word_error_rate_is_tabled_where_nobody_attacks(tmp_path):
    source, out = tmp_path / "tiny.toml", tmp_path / "out"
    source.write_text(TOML)
    reproduce(str(source), out)
    (figure,) = choose(str(source))
    cells = outcome(figure, out, "smoke").shares[0].cells
    told = rows(out / "test/wer/smoke/tiny", "utility.csv")
    last = [float(row["value"]) for row in told if (row["metric"], row["round"]) == ("wer", "1")]
    assert [cell.place.where for cell in cells] == ["0.001", "0.002"]
    assert [cell.mean for cell in cells] == pytest.approx(last)
