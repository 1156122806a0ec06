"""Adversaries in processes of their own, behind walls: files, network, truth out of reach.

    run's process                    server                child of one call
    IsolatedAdversary  --fork one-->  (no data)  --fork-->  walls, then import, then attack
          |  <----------------- claim as JSON and safetensors ----------------  |

isolated   the adversary as the run sees it
facts      what is known of an adversary that is not imported
calls      one call of it: its result, its error, or how it ended
sending    what it is sent, and which files it may read
process    starts the server and asks it for children
server     the process that forks a child for each call
child      the process of one call
walls      the walls around a child: limits, capabilities
files      the part of the walls around files (Landlock)
syscalls   the part around system calls (seccomp)
claims     claims as JSON and safetensors, in which they come back
frames     frames between two processes
"""

from fedsim.isolation.calls import MEMORY_MB as MEMORY_MB
from fedsim.isolation.calls import IsolatedFailure as IsolatedFailure
from fedsim.isolation.isolated import IsolatedAdversary as IsolatedAdversary
from fedsim.isolation.isolated import Isolation as Isolation
from fedsim.isolation.isolated import isolated as isolated
from fedsim.isolation.isolated import isolates as isolates
from fedsim.isolation.isolated import walls_around as walls_around
from fedsim.isolation.isolated import wrapped as wrapped
