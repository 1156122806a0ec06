"""A seccomp filter that denies a process what an attack does not need: sockets, processes, signals.

The filter is a program of classic BPF that Linux runs at each system call. It reads the number of
the call and its arguments, not the memory they point to. See seccomp(2), and the kernel's
Documentation/userspace-api/seccomp_filter.rst.
"""

import ctypes
import errno
import platform
import sys

NUMBERS: dict[str, tuple[int | None, int | None]] = {
    # sockets
    "socket": (41, 198), "socketpair": (53, 199), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "connect": (42, 203), "sendto": (44, 206),
    "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # processes
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "unshare": (272, 97), "setns": (308, 268),
    "setsid": (112, 157), "setpgid": (109, 154), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "setrlimit": (160, 164),
    # signals
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    # what Landlock leaves open of files
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "truncate": (76, 45),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27), "fanotify_init": (300, 262), "chroot": (161, 51),
    "pivot_root": (155, 41), "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "quotactl": (179, 60), "acct": (163, 89),
    "swapon": (167, 224), "swapoff": (168, 225),
    # memory shared with other processes
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "vmsplice": (278, 75),  # pages in a pipe do not count as memory
    # rights, and doors into the kernel
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159),
    "setfsuid": (122, 151), "setfsgid": (123, 152), "capset": (126, 91), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "personality": (135, 92),
    "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip
"""Calls that fail with EPERM: their numbers on x86-64 and on aarch64, None where there is none."""

CLONE, CLONE3, FCNTL = (56, 220), (435, 435), (72, 25)
PRCTL, PRLIMIT, IOCTL = (157, 167), (302, 261), (16, 29)
OPEN, OPENAT, OPENAT2 = (2, None), (257, 56), (437, 437)
"""Calls that are denied by their arguments."""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By machine: the place of its number in the tuples above, and its AUDIT_ARCH."""

CLONE_THREAD = 0x00010000
OWN_PROCESS = 0
PR_SET_NAME, PR_GET_NAME = 15, 16
F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE = 8, 10, 15, 1024
FIOSETOWN, SIOCSPGRP, FIOASYNC = 0x8901, 0x8902, 0x5452
"""Commands of `fcntl` and `ioctl` by which a file sends signals, or keeps others from writing."""

O_WRITE, O_TRUNC = 0b11, 0o1000
"""Flags of opening: bits of writing, and to empty the file, which Landlock governs since 6.2."""

NEWER = 463
"""First number of the calls that came after this list was made, on both machines."""

X32 = 0x40000000
"""First number of the calls with 32-bit pointers on x86-64."""

ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY = 0x00050000 | errno.EPERM
MISSING = 0x00050000 | errno.ENOSYS
"""What a filter returns; see seccomp(2)."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of BPF: load a word, three jumps, return."""

NUMBER_AT, MACHINE_AT, FIRST_AT, SECOND_AT, THIRD_AT = 0, 4, 16, 24, 32
"""Offsets in `struct seccomp_data`; of arguments, the low half on these machines."""

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER_MODE = 22, 38, 2

Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip if true and if false, constant."""


def program(machine: str) -> list[Instruction]:
    """The filter.

    Args:
        machine: One of `MACHINES`.
    """
    place, kind = MACHINES[machine]
    made = [
        (LOAD, 0, 0, MACHINE_AT),
        (EQUAL, 1, 0, kind),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if machine == "x86_64":
        made += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    made += [(AT_LEAST, 0, 1, NEWER), (RETURN, 0, 0, MISSING)]
    for both in NUMBERS.values():
        if (number := both[place]) is not None:
            made += [(EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    # Their flags are in memory, which a filter cannot read. Without them, glibc takes others.
    for both in (CLONE3, OPENAT2):
        made += [(EQUAL, 0, 1, both[place]), (RETURN, 0, 0, MISSING)]
    made += _if(CLONE[place], FIRST_AT, [(ANY_BIT, 0, 1, CLONE_THREAD)])
    made += _if(PRCTL[place], FIRST_AT, [(EQUAL, 1, 0, PR_SET_NAME), (EQUAL, 0, 1, PR_GET_NAME)])
    made += _if(PRLIMIT[place], FIRST_AT, [(EQUAL, 0, 1, OWN_PROCESS)])
    made += _if(FCNTL[place], SECOND_AT, _none(F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE))
    made += _if(IOCTL[place], SECOND_AT, _none(FIOSETOWN, SIOCSPGRP, FIOASYNC))
    for number, argument in ((OPEN[place], SECOND_AT), (OPENAT[place], THIRD_AT)):
        if number is not None:
            made += _if(number, argument, [(ANY_BIT, 0, 1, O_TRUNC), (ANY_BIT, 0, 1, O_WRITE)])
    return [*made, (RETURN, 0, 0, ALLOW)]


def _none(*denied: int) -> list[Instruction]:
    """Tests that an argument is none of some values."""
    return [(EQUAL, len(denied) - place, 0, value) for place, value in enumerate(denied)]


def _if(number: int, argument: int, tests: list[Instruction]) -> list[Instruction]:
    """Allow a call if tests of an argument lead to the next instruction after them."""
    body = [(LOAD, 0, 0, argument), *tests, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)]
    return [(EQUAL, 0, len(body), number), *body]


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class _Instruction(ctypes.Structure):
    """`struct sock_filter`."""

    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("constant", ctypes.c_uint),
    )


def supported() -> bool:
    """Whether the filter exists for this system: Linux, on one of `MACHINES`."""
    return sys.platform == "linux" and platform.machine() in MACHINES


def restrict() -> None:
    """Deny this thread, and those that it will start, the calls of `NUMBERS`; it cannot be undone.

    Without the filter for this system, see `supported`, nothing is done.

    Raises:
        OSError: The system refused it.
    """
    if not supported():
        return
    code = program(platform.machine())
    filled = (_Instruction * len(code))(*(_Instruction(*one) for one in code))
    given = _Program(len(code), ctypes.addressof(filled))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero)
    if libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(FILTER_MODE), ctypes.byref(given), zero, zero):
        raise OSError(ctypes.get_errno(), "seccomp was refused")
