"""SIGTERM, which batch systems send, ends a reproduction as Ctrl-C does: with pages."""

import signal
import subprocess
import sys
import time

from support.tiny_figures import toml


def test_a_stopped_reproduction_leaves_pages_of_what_has_ended(tmp_path):
    source, out = toml(tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "fedsim.cli", "reproduce", source, "--out", str(out)]
    many = ["--set", "paper.repetitions=500"]
    process = subprocess.Popen(
        [*command, *many], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while not any(path.read_bytes().count(b"\n") > 3 for path in out.rglob("findings.csv")):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    (page,) = out.glob("*/smoke.md")
    assert "| " in page.read_text()
    assert f"page: {page}" in output
    assert output.rstrip().endswith("interrupted; the same command goes on with what is left")
