"""The benchmark of GPUs runs dry on a CPU, so that it does not fail where a GPU is paid for."""

import os
import re
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
LINE = re.compile(
    r"^(FedSGD, LLG's CNN.*?) {2,}client +([\d.]+) +([\d.]+) +([\d.]+)$", re.MULTILINE
)


def test_the_dry_run_has_a_line_for_each_way_of_training_clients(tmp_path):
    asked = ["--dry", "--device", "cpu", "--only", "LLG's CNN"]
    done = subprocess.run(
        [sys.executable, TOOL, *asked],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {name: list(map(float, numbers)) for name, *numbers in LINE.findall(done.stdout)}
    plain = "FedSGD, LLG's CNN, 32 x 32, batch 16"
    assert list(found) == [plain, f"{plain}, 25 at once", f"{plain}, 100 at once"], done.stdout
    for alone, beside, ratio in found.values():
        assert alone > 0
        assert beside > 0
        assert abs(ratio - alone / beside) < 0.02 * ratio + 0.01
