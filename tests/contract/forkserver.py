"""Run drtk in processes that are forked from one that has imported the libraries.

As a script: `forkserver.py SOCKET` serves. Each request contains a command line, a folder, an environment and the three
standard streams; the replies are the process id and, at its end, the exit status.
"""

import atexit
import builtins
import contextlib
import functools
import gc
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIE_AT, KILL_AT, FILE_LIMIT = "DRTK_TEST_DIE_AT", "DRTK_TEST_KILL_AT", "DRTK_TEST_FILE_LIMIT"
ROOT = str(Path(__file__).resolve().parents[2])
_OPEN, _WRITES = os.open, os.O_WRONLY | os.O_RDWR

# The program `drtk` of the examples, which imports next to nothing.
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({socket!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [len(request).to_bytes(4, "big")], [0, 1, 2])
connection.sendall(request)
pid = int.from_bytes(connection.recv(4), "big")
signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
sys.exit(connection.recv(1)[0])
"""


class Running:
    """A process started by the server."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self._connection = pid, connection

    def status(self, *, timeout: float | None = None) -> int | None:
        """Return the exit status, 128 + the signal if one killed it; None if it still runs after `timeout` seconds."""
        self._connection.settimeout(timeout)
        try:
            return self._connection.recv(1)[0]
        except TimeoutError:
            return None

    def kill(self) -> int | None:
        """Kill the process, and return the exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.status()


class Forkserver:
    """A running server; client: script to put on PATH as `drtk`; variables: environment variables"""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._socket, self._variables = folder / "socket", {"PYTHONPATH": ROOT} | variables
        command = [sys.executable, __file__, str(self._socket)]
        self._process = subprocess.Popen(command, env=os.environ | self._variables, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.client = CLIENT.format(python=sys.executable, socket=str(self._socket))

    def start(self, arguments: list[str], folder: Path, stderr: Path, **variables: object) -> Running:
        """Start `drtk ARGUMENTS` in `folder`; variables: environment variables, such as those that `_run` reads"""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._socket))
        environment = os.environ | self._variables | {name: str(value) for name, value in variables.items()}
        request = json.dumps([arguments, str(folder), environment]).encode()
        with open(os.devnull, "r+b") as nothing, open(stderr, "wb") as err:
            socket.send_fds(connection, [len(request).to_bytes(4, "big")], [*[nothing.fileno()] * 2, err.fileno()])
            connection.sendall(request)
        return Running(int.from_bytes(connection.recv(4), "big"), connection)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@functools.cache
def shared_forkserver() -> Forkserver:
    """Return the server of this test process."""
    folder = tempfile.TemporaryDirectory(prefix="drtk-forkserver-")
    server = Forkserver(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    return server


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def serve(path: str) -> None:
    """Answer requests until terminated."""
    from transformers import AutoModel, AutoTokenizer, BertModel, Trainer  # noqa: F401 - what takes long to import

    import drtk.cli.main  # noqa: F401

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    signal.signal(signal.SIGCHLD, _reap)
    gc.freeze()
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

    def add_counter(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_count(*given: Any, **named: Any) -> Any:
            nonlocal left
            mode = [*given[1:2], named.get("mode", "")][0] if call is io.open else ""
            reads = not set(str(mode)) & set("wax+") if call is io.open else call is _OPEN and not given[1] & _WRITES
            if not reads:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return call_and_count

    for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "link", "fsync", "open"):
        setattr(os, name, add_counter(getattr(os, name)))
    builtins.open = io.open = add_counter(io.open)  # type: ignore[assignment]


def kill_at(file: str) -> None:
    """Kill this process at its first audit event (an open, rename or import, for example) after `file` exists."""
    pid, killed = os.getpid(), []

    def check(*_: object) -> None:  # os.kill is such an event, too
        if not killed and os.getpid() == pid and os.path.exists(file):
            killed.append(file)
            os.kill(pid, signal.SIGKILL)

    sys.addaudithook(check)


def _run(arguments: list[str]) -> int:
    from drtk.cli import main

    if DIE_AT in os.environ:
        die_at(int(os.environ[DIE_AT]))
    if KILL_AT in os.environ:
        kill_at(os.environ[KILL_AT])
    if FILE_LIMIT in os.environ:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ[FILE_LIMIT]),) * 2)
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
