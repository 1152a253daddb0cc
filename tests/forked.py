"""Programs of Python that begin without their imports: forked from one process that has PyTorch and the package.

``Forked`` is a ``subprocess.Popen`` of ``[sys.executable, ...]`` with ``-c CODE``, ``-m fedsmoo`` or a script. What is
about the start of a program itself (tests/commands/test_start.py), or about threads, has to start one.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
SET_SUBREAPER, GET_SUBREAPER = 36, 37  # whose child an orphan becomes

PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")  # by their names in ``Popen``

# Forks twice, so that the program is nobody's child here, and becomes one of whoever asked for it.
SERVER = """
import gc, json, os, runpy, signal, socket, sys, tempfile
import safetensors.torch, sklearn.datasets, torch._dynamo  # what takes long to import
import fedsmoo.cli, fedsmoo.compiler, fedsmoo.paper, fedsmoo.runs.resume, fedsmoo.runs.run, fedsmoo.sweeps.queue

before = list(sys.path)
asked = socket.socket(fileno=int(sys.argv[1]))
gc.collect()
gc.freeze()

def program(env, cwd, session, words, handles):
    if session:
        os.setsid()
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    asked.close()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    paths = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [os.getcwd(), *paths, *(p for p in before if p not in ("", *paths))]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")

while True:
    message, handles, *_ = socket.recv_fds(asked, 1 << 20, 3)
    if not message:
        break
    between = os.fork()
    if between == 0:
        child = os.fork()
        if child == 0:
            break
        asked.send(str(child).encode())
        os._exit(0)
    for handle in handles:
        os.close(handle)
    os.waitpid(between, 0)
    asked.send(b"parted")

if message:  # outside of the loop: the program has the stack of one that was started
    program(**json.loads(message), handles=handles)
"""


SERVERS: list[subprocess.Popen[bytes]] = []  # kept, so that none is waited for as it is collected


@functools.cache
def server(interpret: str | None) -> socket.socket:
    """Start the process that forks, once for all tests of this one; it ends when it hears that this one has.

    Triton asks whether it interprets as it is imported: programs that differ in it need servers of their own.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    env.pop("TRITON_INTERPRET", None)
    env |= {} if interpret is None else {"TRITON_INTERPRET": interpret}
    words = [sys.executable, "-c", SERVER, str(theirs.fileno())]
    SERVERS.append(subprocess.Popen(words, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL))
    theirs.close()
    return ours


class Forked(subprocess.Popen):
    """``subprocess.Popen`` whose program begins where the imports are over; ``cwd``, ``env`` and pipes as there."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        names = ("executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags",
                 "shell", *PIPES, "restore_signals", "gid", "gids", "uid", "umask", "start_new_session")  # fmt: skip
        told = dict(zip(names, given, strict=False))
        assert args[0] == sys.executable
        env = dict(told["env"] if told["env"] is not None else os.environ)
        parent = server(env.get("TRITON_INTERPRET"))
        message = {
            "env": env,
            "cwd": str(told["cwd"] or os.getcwd()),
            "session": bool(told["start_new_session"]),
            "words": [os.fspath(word) for word in args[1:]],
        }
        ends = [told[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        adopts = ctypes.c_int()
        system = ctypes.CDLL(None)
        system.prctl(GET_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
        system.prctl(SET_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(parent, [json.dumps(message).encode()], [n if e == -1 else e for n, e in enumerate(ends)])
            self.pid = int(parent.recv(32))
            assert parent.recv(32) == b"parted"
        finally:
            system.prctl(SET_SUBREAPER, adopts.value, 0, 0, 0)
        self._child_created = True
        self._close_pipe_fds(*(told[name] for name in PIPES))


def run(words: list[Any], timeout: float | None = None, **given: Any) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` of such a program, with what it says as text."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **given}
    with Forked(words, text=True, **given) as process:
        try:
            out, error = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                process.kill()
    return subprocess.CompletedProcess(words, process.returncode, out, error)
