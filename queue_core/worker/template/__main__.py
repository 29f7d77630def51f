"""`python -m queue_core.worker.template`: imports an application and forks workers of it, as its supervisor asks.

The supervisor's end of the control socket is its life: at the end of the stream the template ends. A fork is asked for
with two descriptors, a socket of this one start and the worker's log. Nothing of a worker runs before the supervisor
has answered `go` on that socket, so it never has a worker that it does not know, whichever process is killed when.

A template whose application has changed on disk forks no more: it says so and ends.
"""

import array
import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn, TypedDict

from queue_core.clock import SystemClock
from queue_core.errors import QueueError
from queue_core.process.terminal import open_missing_streams
from queue_core.worker.template.environment_block import replace_environment
from queue_core.worker.template.safety import (
    changed_files,
    find_hazards,
    imported_files,
    prepare_to_fork,
    recorded_threads,
    reseed,
)

CONTROL_VARIABLE: Final = "TOWLINE_TEMPLATE_FD"
"""The number of the control socket's descriptor."""
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_SENTENCES: Final = 20
MAX_SENTENCE_CHARACTERS: Final = 500
PROCESS_NAME: Final = b"towline-templ\0"
EXIT_MISCONFIGURED: Final = 78
_PR_SET_NAME: Final = 15
_LATE_IMPORTS: Final = ("queue_core.worker.__main__", "encodings.idna")
"""What every worker would import after the fork: its program, and the names of hosts."""
_STORES: Final = {
    "sqlite": "queue_core.stores.sqlite.store",
    "postgresql": "queue_core.stores.postgres.store",
    "redis": "queue_core.stores.redis.store",
}


class ForkRequest(TypedDict):
    """A request for one worker: all of its variables, and its working directory."""

    environment: dict[str, str]
    cwd: str | None


def main() -> int:
    """Import the application, report, and fork workers until the supervisor closes the control socket."""
    open_missing_streams()
    control = socket.socket(fileno=int(os.environ.pop(CONTROL_VARIABLE)))
    control.set_inheritable(False)
    clock = SystemClock()
    began = clock.monotonic()
    with recorded_threads() as threads:
        failure = _import_application()
    if failure:
        _send(control, {"failed": failure})
        return EXIT_MISCONFIGURED
    hazards = find_hazards(own_descriptors={control.fileno()}, threads=threads)
    prepare_to_fork()
    _send(
        control,
        {
            "ready": True,
            "hazards": [hazard.sentence[:MAX_SENTENCE_CHARACTERS] for hazard in hazards][:MAX_SENTENCES],
            "seconds": clock.monotonic() - began,
        },
    )
    files = imported_files()
    while (request := _next_request(control)) is not None:
        if changed := changed_files(files):
            _send(control, {"outdated": changed[0]})
            return 0
        asked, descriptors = request
        _fork(control, asked, descriptors)
    return 0


def _import_application() -> str:
    """Import what a worker imports; return why it can't be, or ""."""
    from queue_core.connect import SERVER_SCHEMES
    from queue_core.worker.app import load_app

    for name in _LATE_IMPORTS:
        importlib.import_module(name)

    url = os.environ.get("TOWLINE_URL", "")
    try:
        if url and not url.startswith(SERVER_SCHEMES):
            with contextlib.suppress(ImportError):  # a worker says it in a sentence
                importlib.import_module(_STORES.get(url.partition(":")[0], "queue_core.stores"))
        folder = os.environ.get("TOWLINE_APP_FOLDER", "")
        load_app(os.environ.get("TOWLINE_APP", ""), app_folder=Path(folder) if folder else None)
    except QueueError as error:
        return str(error)
    except BaseException:  # noqa: BLE001 - whatever an import may raise
        return traceback.format_exc(limit=-5)
    return ""


def _send(control: socket.socket, message: Mapping[str, object]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except OSError:  # the supervisor is gone, which the next read shows
        return


def _next_request(control: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """Wait for a request; None at the end of the stream."""
    found = array.array("i")
    try:
        data, extra, _, _ = control.recvmsg(MAX_REQUEST_BYTES, socket.CMSG_LEN(2 * found.itemsize))
    except ConnectionError:
        return None
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    if not data:
        return None
    return json.loads(data), list(found)


def _fork(control: socket.socket, request: ForkRequest, descriptors: list[int]) -> None:
    """Fork a worker whose parent is the supervisor: by a child that forks it and exits.

    Returns in the template; in the worker it raises `SystemExit` when the worker has ended.
    """
    reading, writing = os.pipe()
    child = _forked()
    if child == 0:
        if _forked() == 0:
            control.close()
            os.close(writing)
            _run_worker(request, *descriptors, parent_exits=reading)
        os._exit(0)
    for descriptor in (reading, *descriptors):
        os.close(descriptor)
    if child > 0:
        os.waitpid(child, 0)
    os.close(writing)  # not before: a process's descriptors are closed before its children have another parent


def _forked() -> int:
    """Fork; return 0 in the child, and -1 where the host has no room: the supervisor sees its socket close."""
    try:
        return os.fork()
    except OSError:
        return -1


def _run_worker(request: ForkRequest, start: int, log: int, *, parent_exits: int) -> NoReturn:
    """Become a worker as if it had been executed, and run it once the supervisor knows it."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the template has imported no more than it must
        if int(name) > 2 and int(name) not in (start, parent_exits):
            _close(int(name))
    os.read(parent_exits, 1)  # until the process between has ended: then the supervisor is the parent
    os.close(parent_exits)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _set_process_name(b"python3\0")
    replace_environment(request["environment"])
    if request["cwd"] is not None:
        os.chdir(request["cwd"])
    reseed()
    with socket.socket(fileno=start) as to_supervisor:
        to_supervisor.send(str(os.getpid()).encode())
        if to_supervisor.recv(16) != b"go":
            os._exit(0)
    from queue_core.worker.__main__ import main as work

    sys.exit(work())


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:  # the one by which the list was read
        return


def _set_process_name(name: bytes) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


if __name__ == "__main__":
    _set_process_name(PROCESS_NAME)
    sys.exit(main())
