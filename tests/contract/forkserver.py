"""Quick processes: forked from one that has loaded the libraries, not drtk's work.

As a script: `forkserver.py SOCKET` serves. Each request carries a command line, a folder, an environment and the three
standard streams; it is answered with the id of the process, and at its end with the exit status. What runs is a process of
its own, with real pipes.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIE_AT = "DRTK_TEST_DIE_AT"
_OPEN, _WRITES = os.open, os.O_WRONLY | os.O_RDWR

# Spoken by `drtk` in the examples; it starts at once because it imports next to nothing.
CLIENT = """#!{python} -IS
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({socket!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [len(request).to_bytes(4, "big")], [0, 1, 2])
connection.sendall(request)
connection.recv(4)
sys.exit(connection.recv(1)[0])
"""


class Running:
    """A process that the server has begun."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self._connection = pid, connection

    def status(self, *, timeout: float | None = None) -> int | None:
        """The exit status, 128 more than the signal where one killed it; None where it still runs after `timeout` seconds."""
        self._connection.settimeout(timeout)
        try:
            return self._connection.recv(1)[0]
        except TimeoutError:
            return None

    def kill(self) -> int | None:
        """SIGKILL, now; the exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.status()


class Forkserver:
    """A running server; `client` is the program to put on the path as `drtk`."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._socket, self._environment = folder / "socket", environment
        command = [sys.executable, __file__, str(self._socket)]
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.client = CLIENT.format(python=sys.executable, socket=str(self._socket))

    def start(self, arguments: list[str], folder: Path, told: Path, *, die_at: int | None = None) -> Running:
        """Start `drtk ARGUMENTS` in `folder`, with stderr in the file `told`.

        die_at: kill it before its n-th call that changes files, counted from 1
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._socket))
        environment = self._environment | ({} if die_at is None else {DIE_AT: str(die_at)})
        request = json.dumps([arguments, str(folder), environment]).encode()
        with open(os.devnull, "r+b") as nothing, open(told, "wb") as err:
            streams = [nothing.fileno(), nothing.fileno(), err.fileno()]
            socket.send_fds(connection, [len(request).to_bytes(4, "big")], streams)
            connection.sendall(request)
        return Running(int.from_bytes(connection.recv(4), "big"), connection)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def serve(path: str) -> None:
    """Answer requests until terminated."""
    from transformers import AutoModel, AutoTokenizer, BertModel, Trainer  # noqa: F401 - what takes long to import

    import drtk.cli.main  # noqa: F401

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> None:
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    size, request = int.from_bytes(head, "big"), b""
    while len(request) < size:
        request += connection.recv(size - len(request))
    arguments, folder, environment = json.loads(request)
    worker = os.fork()
    if worker == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        connection.close()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os._exit(_run(arguments))
    for stream in streams:
        os.close(stream)
    connection.sendall(worker.to_bytes(4, "big"))
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    connection.sendall(bytes([status if status >= 0 else 128 - status]))
    os._exit(0)


def die_at(number: int) -> None:
    """Kill this process before its `number`-th call that changes files: rename, remove, fsync, open for writing."""
    left = number

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            nonlocal left
            mode = [*given[1:2], named.get("mode", "")][0] if call is io.open else ""
            reads = not set(str(mode)) & set("wax+") if call is io.open else call is _OPEN and not given[1] & _WRITES
            if not reads:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return counting

    for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "link", "fsync", "open"):
        setattr(os, name, counted(getattr(os, name)))
    builtins.open = io.open = counted(io.open)  # type: ignore[assignment]


def _run(arguments: list[str]) -> int:
    from drtk.cli import main

    if DIE_AT in os.environ:
        die_at(int(os.environ[DIE_AT]))
    sys.argv = ["drtk", *arguments]
    try:
        main.run()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    serve(sys.argv[1])
