"""What the filter of system calls decides, on both machines."""

import os
import re
import struct
from pathlib import Path

import pytest

from fedsim.isolation import syscalls

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
THREAD, FORK = 0x00010000 | 0x100, 17


def decided(machine, number, first=0, second=0, third=0, *, kind=None):
    """What the filter returns, as the kernel would run it."""
    _, audit = syscalls.MACHINES[machine]
    data = struct.pack("<IIQ3Q", number, audit if kind is None else kind, 0, first, second, third)
    code, at, held = syscalls.program(machine), 0, 0
    while True:
        operation, true, false, constant = code[at]
        at += 1
        if operation == syscalls.RETURN:
            return constant
        if operation == syscalls.LOAD:
            (held,) = struct.unpack_from("<I", data, constant)
            continue
        holds = {
            syscalls.EQUAL: held == constant,
            syscalls.AT_LEAST: held >= constant,
            syscalls.ANY_BIT: bool(held & constant),
        }[operation]
        at += true if holds else false


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_calls_are_denied_by_number_and_by_argument(machine):
    place, _ = syscalls.MACHINES[machine]
    for name, both in syscalls.NUMBERS.items():
        if both[place] is not None:
            assert decided(machine, both[place]) == syscalls.DENY, name
    assert decided(machine, syscalls.CLONE3[place]) == syscalls.MISSING
    assert decided(machine, syscalls.CLONE[place], THREAD) == syscalls.ALLOW
    assert decided(machine, syscalls.CLONE[place], FORK) == syscalls.DENY
    assert decided(machine, syscalls.PRLIMIT[place], 0) == syscalls.ALLOW
    assert decided(machine, syscalls.PRLIMIT[place], 1234) == syscalls.DENY
    assert decided(machine, syscalls.PRCTL[place], syscalls.PR_SET_NAME) == syscalls.ALLOW
    assert decided(machine, syscalls.PRCTL[place], 1) == syscalls.DENY
    for command in (8, 10, 15, 1024):
        assert decided(machine, syscalls.FCNTL[place], 3, command) == syscalls.DENY
    for command in (0x8901, 0x8902, 0x5452):
        assert decided(machine, syscalls.IOCTL[place], 3, command) == syscalls.DENY
    assert decided(machine, syscalls.IOCTL[place], 3, 0x5421) == syscalls.ALLOW
    for number in (463, 469, 900):
        assert decided(machine, number) == syscalls.MISSING
    assert decided(machine, 462) == syscalls.ALLOW
    assert decided(machine, syscalls.FCNTL[place], 3, 1) == syscalls.ALLOW
    read, write, futex, mmap = {"x86_64": (0, 1, 202, 9), "aarch64": (63, 64, 98, 222)}[machine]
    for number in (read, write, futex, mmap):
        assert decided(machine, number) == syscalls.ALLOW


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_files_are_not_emptied_by_opening_them_to_read(machine):
    place, _ = syscalls.MACHINES[machine]
    opened = {os.O_RDONLY: True, os.O_TRUNC: False, os.O_WRONLY | os.O_TRUNC | os.O_CREAT: True}
    for flags, allowed in opened.items():
        expected = syscalls.ALLOW if allowed else syscalls.DENY
        assert decided(machine, syscalls.OPENAT[place], 3, 0, flags) == expected
        if machine == "x86_64":
            assert decided(machine, syscalls.OPEN[place], 0, flags) == expected
    assert decided(machine, syscalls.OPENAT2[place]) == syscalls.MISSING


def test_calls_of_another_machine_kill():
    assert decided("x86_64", 41, kind=0x40000003) == syscalls.KILL  # i386
    assert decided("x86_64", syscalls.X32 + 41) == syscalls.KILL
    assert decided("aarch64", 41, kind=0x40000028) == syscalls.KILL  # arm


@pytest.mark.skipif(not HEADER.is_file(), reason=f"{HEADER} is not there")
def test_numbers_are_those_of_the_kernel():
    lines = re.finditer(r"#define __NR_(\w+) (\d+)", HEADER.read_text())
    theirs = {line[1]: int(line[2]) for line in lines}
    wrong = {
        name: (both[0], theirs[name])
        for name, both in syscalls.NUMBERS.items()
        if name in theirs and theirs[name] != both[0]
    }
    assert not wrong
    assert len({*syscalls.NUMBERS} & {*theirs}) > 80
