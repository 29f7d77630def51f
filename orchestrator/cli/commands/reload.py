"""`towline reload`: make the supervisor read its settings file again, and print its answer."""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Unpack

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.json_fields import list_in
from orchestrator.cli.fleet_events import not_in_force
from orchestrator.cli.import_checks import check_imports
from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_calls import SupervisorOptions, supervisor_at, supervisor_options, supervisor_url
from orchestrator.cli.supervisor_hosts import host_option
from orchestrator.settings_file import state_of
from orchestrator.state.directory import StateDir
from orchestrator.state.private_files import make_folder
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import DURATION
from queue_core.cli.output import echo, print_info, print_json

POLL_SECONDS: Final = 0.05
CALL_POLL_SECONDS: Final = 0.5
"""Pause between two looks for the answer of a supervisor elsewhere."""
FIRST_WAIT_SECONDS: Final = 2.0
"""For so long its server waits for the answer itself."""


@command(
    "reload",
    when_cut="stderr",
    examples=("towline reload", "towline reload --wait 1m --json", "systemctl reload towline"),
)
@click.option(
    "--wait",
    "seconds",
    type=DURATION,
    default="15s",
    show_default=True,
    help="How long to wait for the answer, at most.",
)
@host_option
@supervisor_options
def reload(seconds: float, as_json: bool, **where: Unpack[SupervisorOptions]) -> int:  # noqa: FBT001
    """Make the supervisor read its settings file again, and print what changed.

    SIGHUP does the same; a changed file is also reloaded automatically. Unchanged pools are not touched; workers that
    must be replaced are replaced a few at a time, new before old. New queues are created, tokens and certificates are
    replaced, and schedules follow the file and the applications. Other settings outside pools take effect at the next
    start. Exit code 78: the file is invalid (every error is listed) and the old settings stay in force, or an
    application can't be imported. 69: no supervisor is running; 75: it did not answer in time. With --url it is a
    supervisor elsewhere, which reads its own file.
    """
    url = supervisor_url(where["url"], where["file"])
    if url is not None:
        answer = _answer_at(url, where["token_file"], seconds=seconds)
    else:
        files = state_of(load_project(where["file"]))
        with _one_at_a_time(files):
            answer = _answer(files, seconds=seconds)
    mistakes = answer.get("mistakes")
    if isinstance(mistakes, list):
        if as_json:
            print_json({"reloaded": False, "mistakes": mistakes})
            return exits.BAD_CONFIG
        raise CommandError(
            list(map(str, mistakes)),
            code=exits.BAD_CONFIG,
            fix="correct the file; the supervisor continues with its old settings",
        )
    changes = [change for change in list_in(answer, "changes") if isinstance(change, dict)]
    waiting = [str(setting) for setting in list_in(answer, "next_start")]
    made = [str(queue) for queue in list_in(answer, "queues")]
    schedules = [str(name) for name in list_in(answer, "schedules")]
    if as_json:
        told = {"changes": changes, "queues": made, "schedules": schedules, "next_start": waiting}
        print_json({"reloaded": True, **told})
        return exits.OK
    unusable = check_imports(load_project(where["file"]), seconds=seconds).problems if url is None else []
    for queue in made:
        echo(f"queue {queue}: made")
    for change in changes:
        echo(_change_line(change))
    for name in schedules:
        echo(f"schedule {name}: as the file has it now")
    if waiting:
        for setting in waiting:
            print_info(not_in_force(setting))
    if not changes:
        echo("no pool's settings changed; workers of a program whose files did are replaced")
    if unusable:
        fix = "fix it: running workers are unaffected, and the import is retried when one of its files changes"
        raise CommandError(unusable, code=exits.BAD_CONFIG, fix=fix)
    return exits.OK


def _answer(files: StateDir, *, seconds: float) -> dict[str, object]:
    """Return the supervisor's answer. Raises `CommandError`."""
    if not files.is_supervised():
        raise CommandError(
            "no supervisor is running",
            code=exits.UNAVAILABLE,
            where=str(files.path),
            fix="start it with `towline up`, or name the settings file it was started with by -f",
        )
    request = secrets.token_hex(8)
    clock = SystemMonotonicClock()
    until = clock.monotonic() + seconds
    try:
        files.request_reload(request)
    except OSError as error:
        raise CommandError(f"can't write: {error.strerror}", code=exits.CANT_CREATE, where=str(files.path)) from error
    while True:
        answer = files.reload_answer()
        if answer.get("request") == request:
            return answer
        if clock.monotonic() >= until:
            raise CommandError(
                f"no answer within {seconds:g} s",
                code=exits.TRY_AGAIN,
                where=str(files.path),
                fix="it will reload when it can; `towline pools` and its log show what it does",
            )
        time.sleep(POLL_SECONDS)


def _answer_at(url: str, token_file: Path | None, *, seconds: float) -> dict[str, object]:
    """Return the answer of a supervisor elsewhere. Raises `CommandError`."""
    clock = SystemMonotonicClock()
    until = clock.monotonic() + seconds
    with supervisor_at(url, token_file) as supervisor:
        answer = supervisor.post("supervisor", "reload", body={"wait_seconds": min(seconds, FIRST_WAIT_SECONDS)})
        while not answer["answered"]:
            if clock.monotonic() >= until:
                raise CommandError(
                    f"no answer within {seconds:g} s",
                    code=exits.TRY_AGAIN,
                    where=supervisor.shown,
                    fix="it will reload when it can; `towline pools --url URL` shows what it does",
                )
            time.sleep(CALL_POLL_SECONDS)
            answer = supervisor.get("supervisor", "reload", request=answer["request"])
    return answer if not answer["reloaded"] else {key: value for key, value in answer.items() if key != "mistakes"}


@contextmanager
def _one_at_a_time(files: StateDir) -> Iterator[None]:
    """Make concurrent reload commands wait for each other: there is one answer file."""
    try:
        make_folder(files.path)
        lock = os.open(files.path / "reload.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandError(f"can't write: {error.strerror}", code=exits.CANT_CREATE, where=str(files.path)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _change_line(change: dict[str, object]) -> str:
    pool, kind = change.get("pool"), change.get("kind")
    if kind == "removed":
        return f"{pool}: removed; its workers finish what they hold"
    if kind == "added":
        return f"{pool}: added"
    settings = ", ".join(map(str, list_in(change, "settings")))
    workers = "its workers are replaced, new before old" if change.get("replaces") else "no worker is replaced"
    return f"{pool}: {settings}; {workers}"
