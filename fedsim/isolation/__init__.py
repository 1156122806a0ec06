"""Adversaries in processes of their own, behind walls: files, network, truth out of reach.

    run's process                    server                child of one call
    IsolatedAdversary  --fork one-->  (no data)  --fork-->  walls, then import, then attack
          |  <----------------- claim as JSON and safetensors ----------------  |

`isolated.py` is the adversary as the run sees it, `calls.py` one call of it, `sending.py` what it
is sent, `process.py` starts the server and asks it for children. `server.py` and `child.py` are
those processes, `walls.py` with `files.py` (Landlock) and `syscalls.py` (seccomp) closes a child
in, and `claims.py` with `frames.py` is what comes back.
"""

from fedsim.isolation.calls import MEMORY_MB as MEMORY_MB
from fedsim.isolation.calls import IsolatedFailure as IsolatedFailure
from fedsim.isolation.isolated import IsolatedAdversary as IsolatedAdversary
from fedsim.isolation.isolated import Isolation as Isolation
from fedsim.isolation.isolated import isolated as isolated
from fedsim.isolation.isolated import isolates as isolates
from fedsim.isolation.isolated import walls_around as walls_around
from fedsim.isolation.isolated import wrapped as wrapped
