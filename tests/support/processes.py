"""What another process makes of the same code."""

import subprocess
import sys


def elsewhere(code: str) -> str:
    """What `code` prints in a Python of its own; raises where it fails."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
