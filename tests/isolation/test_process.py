"""Children, their folders and their sockets, from the side of the process of the run."""

import contextlib
import json
import math
import os
import resource
import shutil
import socket
import threading
import time

import numpy as np
import pytest

from fedsim.errors import FedsimError
from fedsim.isolation import calls, frames, process, sending
from fedsim.isolation.child import Call
from fedsim.temporary import remove


def test_a_forked_process_leaves_the_server_to_its_parent():
    server = process.server()
    forked = os.fork()
    if not forked:
        try:
            server._end()
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    assert server._folder.path.is_dir()
    assert process.server() is server
    with server.child(attacks=False) as child:
        assert os.path.isdir(child.folder)


def test_a_server_whose_folder_was_cleaned_away_is_replaced():
    server = process.server()
    shutil.rmtree(server._folder.path)
    assert process.server() is not server


def test_a_server_that_was_killed_is_replaced_before_its_process_has_ended(monkeypatch):
    server = process.server()
    server._process.kill()
    monkeypatch.setattr(server._process, "poll", lambda: None)
    with pytest.raises(process.ServerDied), server.child(attacks=False):
        pass
    assert process.server() is not server
    with process.server().child(attacks=False) as child:
        assert os.path.isdir(child.folder)
    monkeypatch.undo()  # before the old server is removed, which waits for its process


def test_a_child_that_was_asked_for_and_not_awaited_is_killed(monkeypatch):
    server = process.server()
    with monkeypatch.context() as patched:
        patched.setattr(server, "_told", lambda wanted: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            server.child(attacks=False).__enter__()
    with server.child(attacks=False) as child:
        assert child._told["forked"] == server._number
        os.kill(child._told["process"], 0)
        assert not server._handles


def test_folders_are_removed_however_deep_and_closed(tmp_path):
    inner, here = tmp_path / "left", os.getcwd()
    inner.mkdir()
    os.chdir(inner)
    try:
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        open("file", "x").close()
        os.chdir("..")
        os.chmod("d", 0)
    finally:
        os.chdir(here)
    remove(inner)
    assert not inner.exists()
    remove(inner)


def test_frames_are_read_from_descriptors_beyond_1023_and_without_a_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"no more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    ours, theirs = socket.socketpair()
    os.dup2(theirs.fileno(), 1100)
    try:
        frames.send(ours.fileno(), frames.PROGRESS, b"x")
        assert frames.receive(1100, until=math.inf) == (frames.PROGRESS, b"x")
        with pytest.raises(frames.Silent):
            frames.receive(1100, until=time.monotonic() + 0.01)
        os.write(ours.fileno(), frames.HEAD.pack(frames.ERROR, frames.MOST_BESIDE + 1))
        with pytest.raises(frames.TooLong):
            frames.receive(1100, until=math.inf)
    finally:
        os.close(1100)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        ours.close()
        theirs.close()


def test_a_server_starts_where_more_than_1023_descriptors_are_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"no more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    with contextlib.ExitStack() as open_files:
        open_files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1024):
            open_files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        server = process.Server()
        open_files.callback(server._end)
        with server.child(attacks=False) as child:
            assert os.path.isdir(child.folder)


@pytest.mark.parametrize("content", [b"", b"[" * 10**5, b'{"kinds": [], "text": ""}', b"[]"])
def test_errors_that_are_none_are_an_error(content):
    assert "cannot be read" in str(calls._error(content))


def test_numpy_s_lack_of_memory_names_the_limit():
    with pytest.raises(MemoryError) as raised:
        np.empty(2**50)
    kinds = [kind.__name__ for kind in raised.type.__mro__]
    content = json.dumps({"kinds": kinds, "text": str(raised.value)}).encode()
    assert "Raise threat.memory_mb" in str(calls._error(content))


def test_errors_are_cut_off():
    long = b'{"kinds": ["' + b"A" * 9999 + b'"], "text": "' + b"x" * 9999 + b'"}'
    assert len(str(calls._error(long))) < 2500
    assert not isinstance(calls._error(long), FedsimError)


def test_calls_are_pickled_in_several_threads(monkeypatch):
    own = type(os)("own_module_of_a_user")
    monkeypatch.setitem(sending.sys.modules, own.__name__, own)
    monkeypatch.setattr(sending, "_is_own", lambda module: module is own)
    failed = []

    def pickle():
        try:
            for _ in range(200):
                sending.pickled(Call("facts", ("a", {}, "")))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=pickle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
