"""`python -m queue_core.worker.template`: imports an application and forks workers of it, as its supervisor asks.

The supervisor's end of the control socket is its life: at the end of the stream the template ends. A fork is asked for
with two descriptors, a socket of this one start and the worker's log. Nothing of a worker runs before the supervisor
has answered `go` on that socket, so it never has a worker that it does not know, whichever process is killed when.

A template whose application has changed on disk forks no more: it says so and ends.
"""

import array
import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NoReturn, TypedDict

from queue_core.clock import SystemClock
from queue_core.process.process_end import end_process, write_out
from queue_core.process.terminal import open_missing_streams
from queue_core.worker.template.application import import_application
from queue_core.worker.template.environment_block import (
    ROOM_VARIABLE,
    NoRoomError,
    add_variables,
    find_room,
    shorten_command,
)
from queue_core.worker.template.finalizers import disarm
from queue_core.worker.template.hazards import imported_state
from queue_core.worker.template.imported_files import FileVersion, changed_files, written_since
from queue_core.worker.template.preparation import ForkRenewal, prepare_to_fork
from queue_core.worker.template.recorded_import import (
    RecordedImport,
    blocked_signals,
    current_directory,
    recorded_import,
)

CONTROL_VARIABLE: Final = "TOWLINE_TEMPLATE_FD"
"""The number of the control socket's descriptor."""
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_SENTENCES: Final = 20
MAX_SENTENCE_CHARACTERS: Final = 500
MAX_FAILURE_CHARACTERS: Final = 10_000
PROCESS_NAME: Final = b"towline-templ\0"
TEMPLATE_ENDING: Final = ".template"
"""The end of this module's name in the command line; without it the name is that of a worker."""
WORKER_NAME: Final = b"python3\0"
EXIT_MISCONFIGURED: Final = 78
_PR_SET_NAME: Final = 15
_PR_SET_PDEATHSIG: Final = 1
_DESCRIPTORS: Final = 2
FILES_AT_ONCE: Final = 100
"""Files that one message names: a path has up to 4,096 bytes, a message about 200 KiB."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The state of a template as its workers take it over.

    Attributes:
        renewal: what it makes its own.
        recorded: what the import did, also for the end of a process.
        is_moved: whether the import has changed the working directory.
        is_masked: whether the import has blocked signals, or let them through.
    """

    renewal: ForkRenewal
    recorded: RecordedImport
    is_moved: bool
    is_masked: bool


class ForkRequest(TypedDict):
    """A request for one worker: the variables that the template does not have, and its working directory."""

    environment: dict[str, str]
    cwd: str | None


def main() -> NoReturn:
    """Import the application, report, and fork workers until the supervisor closes the control socket."""
    open_missing_streams()
    control = socket.socket(fileno=int(os.environ.pop(CONTROL_VARIABLE)))
    control.set_inheritable(False)
    del os.environ[ROOM_VARIABLE]  # it stays in /proc alone
    clock = SystemClock()
    began, began_at = clock.monotonic(), clock.now()
    with recorded_import() as recorded:
        imported = import_application(os.environ)
    for files in _batches(imported.files):
        _send(control, {"files": files})
    if imported.failure:
        _send(control, {"failed": imported.failure[-MAX_FAILURE_CHARACTERS:]})
        _leave(EXIT_MISCONFIGURED)
    if imported.served is not None:
        _send(control, {"served": imported.served})
    for schedule in imported.schedules:
        _send(control, {"schedule": schedule})
    written = written_since(began_at, imported.files)
    if written:  # perhaps after it was read
        _send(control, {"outdated": written[0]})
        _leave(0)
    state = imported_state(own_descriptors={control.fileno()}, recorded=recorded)
    hazards = [hazard.sentence for hazard in state.hazards]
    try:
        find_room()
    except NoRoomError as error:
        hazards.append(f"a supervisor could not find its forked workers again: {error}")
    inheritance = Inheritance(
        state.renewal,
        recorded,
        is_moved=current_directory() != recorded.folder,
        is_masked=blocked_signals() != recorded.blocked,
    )
    prepare_to_fork()
    _send(
        control,
        {
            "ready": True,
            "hazards": [hazard[:MAX_SENTENCE_CHARACTERS] for hazard in hazards][:MAX_SENTENCES],
            "seconds": clock.monotonic() - began,
            "handlers": imported.handlers,
        },
    )
    while (asked := _next_request(control)) is not None:
        request, descriptors = asked
        changed = changed_files(imported.files)
        if changed:
            _send(control, {"outdated": changed[0]})
            _leave(0)
        if len(descriptors) == _DESCRIPTORS:  # else this process has no room for them
            _fork(control, request, inheritance, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
    _leave(0)


def _batches(files: Mapping[str, FileVersion]) -> Iterator[Mapping[str, FileVersion]]:
    """Return the files a message's worth at a time."""
    known = iter(files.items())
    while batch := dict(islice(known, FILES_AT_ONCE)):
        yield batch


def _leave(code: int) -> NoReturn:
    """End without the application's own ends, which are meant for workers, and without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _send(control: socket.socket, message: Mapping[str, object]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except OSError:  # the supervisor is gone, which the next read shows
        return


def _next_request(control: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """Wait for a request; None at the end of the stream."""
    found = array.array("i")
    room = socket.CMSG_LEN(_DESCRIPTORS * found.itemsize)
    try:
        data, extra, _, _ = control.recvmsg(MAX_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    if not data:
        return None
    return json.loads(data), list(found)


def _fork(control: socket.socket, request: ForkRequest, inheritance: Inheritance, start: int, log: int) -> None:
    """Fork a worker whose parent is the supervisor: by a child that forks it and exits.

    Returns in the template only. Where the host has no room for it, the supervisor sees the start socket close.
    """
    reading, writing = os.pipe()
    between = _forked()
    if between == 0:
        if _forked() == 0:
            control.close()
            os.close(writing)
            _run_worker(request, inheritance, start, log, orphaned=reading)
        os._exit(0)
    os.close(reading)
    if between > 0:
        with contextlib.suppress(ChildProcessError):  # a handler of the application has collected it
            os.waitpid(between, 0)
    os.close(writing)  # not before: a process closes its files a moment before its children get another parent


def _forked() -> int:
    """Fork; return 0 in the child, and -1 where the host has no room."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the hazards name those that matter
        try:
            return os.fork()
        except OSError:
            return -1


def _run_worker(request: ForkRequest, inheritance: Inheritance, start: int, log: int, *, orphaned: int) -> NoReturn:
    """Become a worker as if it had been executed, and run it once the supervisor knows it.

    Args:
        start: the socket of this start.
        log: replaces the standard streams.
        orphaned: at its end of file the process between has ended, and the supervisor is the parent.
    """
    with socket.socket(fileno=start) as to_supervisor:
        try:
            _become_worker(request, inheritance, log)
            os.read(orphaned, 1)
            os.close(orphaned)
            report = str(os.getpid())
        except Exception as error:  # noqa: BLE001 - the supervisor says it, and executes the worker
            report = f"{type(error).__name__}: {error}"[:MAX_SENTENCE_CHARACTERS]
        if not _received_go(to_supervisor, report):
            os._exit(0)
    from queue_core.worker.__main__ import main as work

    end_process(_exit_code(work, inheritance.renewal))


def _exit_code(work: Callable[[Callable[[], None]], int], renewal: ForkRenewal) -> int:
    """Run the worker and return its exit code, as the interpreter would find it."""
    try:
        return work(renewal.apply)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
    except BaseException:  # noqa: BLE001 - the top of the process
        traceback.print_exc()
    return 1


def _received_go(to_supervisor: socket.socket, report: str) -> bool:
    try:
        to_supervisor.send(report.encode(errors="replace"))
        return to_supervisor.recv(16) == b"go"
    except OSError:  # it has given this start up, or is gone
        return False


def _become_worker(request: ForkRequest, inheritance: Inheritance, log: int) -> None:
    """Take on all that an executed worker has: session, streams, signals, variables, directory, files, random numbers.

    Files that the import has opened stay open, as in an executed worker: their numbers must not become another file's.
    What the template would do at its end is not done; buffers of files are written out at the end of the worker.
    """
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if not inheritance.is_masked:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _set_process_name(WORKER_NAME)
    shorten_command(TEMPLATE_ENDING)
    add_variables(request["environment"])
    if request["cwd"] is not None and not inheritance.is_moved:
        os.chdir(request["cwd"])
    inheritance.renewal.apply()
    disarm(inheritance.recorded)
    atexit.register(write_out, inheritance.renewal.files)


def _set_process_name(name: bytes) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def _die_with_supervisor() -> None:
    """Be killed with the supervisor, even while stopped; its workers are not, as a fork clears this."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    _set_process_name(PROCESS_NAME)
    _die_with_supervisor()
    main()
