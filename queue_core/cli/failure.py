"""Failures as a person meets them: what, where, what next, and an exit code; and the table from errors to those."""

import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click

from queue_core import errors
from queue_core.cli import exits
from queue_core.cli.kept_output import OutputCutError, kept_output
from queue_core.process.terminal import clean, clean_json, clean_lines


class CommandError(Exception):
    """What went wrong (one line or many), where, what to do next, and the exit code that says so."""

    def __init__(self, what: str | Sequence[str], *, code: int, where: str = "", fix: str = "") -> None:
        self.lines = (what,) if isinstance(what, str) else tuple(what)
        super().__init__("\n".join(self.lines))
        self.where = where
        self.fix = fix
        self.code = code


# From the most special class to the most general: the first that fits.
_OF_ERROR: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (errors.QueueMovedError, exits.NO_INPUT, "give the URL of the store where it is now"),
    (errors.UnknownQueueError, exits.NO_INPUT, "`towline queues` lists those there are"),
    (errors.MoveRefusedError, exits.NEGATIVE, ""),
    (errors.LeaseLostError, exits.TRY_AGAIN, "lease again: the task has moved on"),
    (errors.WorkerRetiredError, exits.TRY_AGAIN, "lease under another worker's name"),
    (errors.UnauthenticatedError, exits.NO_PERMISSION, "set TOWLINE_TOKEN, or give --token-file"),
    (errors.PermissionDeniedError, exits.NO_PERMISSION, "use a token of a role that may"),
    (errors.StoreReadOnlyError, exits.NO_PERMISSION, "make the file and its folder writable for this user"),
    (errors.StoreFullError, exits.UNAVAILABLE, "free disk space, then try again; nothing was lost"),
    (errors.StoreVersionError, exits.UNAVAILABLE, "upgrade this program"),
    (errors.StoreCorruptError, exits.UNAVAILABLE, "`towline doctor` tells more; give another --store"),
    (errors.StoreUnavailableError, exits.UNAVAILABLE, "`towline doctor` tells more; is `towline up` running?"),
    (errors.StoreError, exits.UNAVAILABLE, "`towline doctor` tells more"),
    (errors.InvalidSettingError, exits.BAD_CONFIG, ""),
    (errors.InvalidRequestError, exits.BAD_DATA, ""),
)
_OF_ERRNO: Final[dict[int, tuple[int, str]]] = {
    errno.ENOENT: (exits.NO_INPUT, "check the path"),
    errno.ENOTDIR: (exits.NO_INPUT, "check the path: a part of it is a file, not a folder"),
    errno.EISDIR: (exits.NO_INPUT, "name a file, not a folder"),
    errno.ELOOP: (exits.NO_INPUT, "check the path: its links lead in a circle"),
    errno.ENAMETOOLONG: (exits.NO_INPUT, "check the path: a name in it is too long"),
    errno.EEXIST: (exits.CANT_CREATE, "name another file, or remove this one"),
    errno.EACCES: (exits.NO_PERMISSION, "check the file's owner and mode"),
    errno.EPERM: (exits.NO_PERMISSION, "check the file's owner and mode"),
    errno.EDQUOT: (exits.UNAVAILABLE, "free disk space of this user, then try again"),
    errno.EROFS: (exits.NO_PERMISSION, "the file system is read-only: choose another folder"),
    errno.ENOSPC: (exits.UNAVAILABLE, "free disk space, then try again"),
    errno.EADDRINUSE: (exits.CANT_CREATE, "stop what listens there, or choose another with --listen"),
}


def failure_of(error: Exception, *, where: str = "") -> CommandError | None:
    """The failure that an expected error is; None for one that nobody expected."""
    if isinstance(error, CommandError):
        return error
    if type(error).__name__ in {"AppError", "AppImportError"}:
        return CommandError(str(error), code=exits.BAD_CONFIG, where=where)
    for kind, code, fix in _OF_ERROR:
        if isinstance(error, kind):
            return CommandError(str(error), code=code, where=where, fix=fix)
    if isinstance(error, errors.QueueError):
        return CommandError(str(error), code=exits.UNAVAILABLE, where=where)
    if isinstance(error, OSError) and error.errno in _OF_ERRNO:
        code, fix = _OF_ERRNO[error.errno]
        return CommandError(error.strerror or str(error), code=code, where=str(error.filename or where), fix=fix)
    return None


def run_command(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command line to its exit code; whatever goes wrong is told on stderr, never as a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with kept_output("stop"):  # of help and the like; a command has its own
            outcome = command.main(args=given, prog_name="towline", standalone_mode=False)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        _tell_usage(error, given)
        return exits.USAGE
    except (click.Abort, KeyboardInterrupt):
        return exits.INTERRUPTED
    except OutputCutError as cut:
        return _cut(cut, given)
    except click.ClickException as error:
        tell(CommandError(error.format_message(), code=exits.USAGE), given)
        return exits.USAGE
    except Exception as error:  # noqa: BLE001  the top: whatever it is, it is told here
        return _unexpected(error, given)
    return outcome if isinstance(outcome, int) else exits.OK


def _cut(cut: OutputCutError, arguments: Sequence[str]) -> int:
    """The exit code of a command whose stdout was cut; nobody who read enough of what is only shown is bothered."""
    if cut.is_reader_gone and not cut.is_told:
        return exits.OK
    if not cut.is_told or "--json" in arguments:
        told = f"stdout was cut: {cut.reason}"
        tell(CommandError(told, code=exits.OUTPUT_CUT, where="stdout"), arguments)
    return exits.OUTPUT_CUT


def tell(failure: CommandError, arguments: Sequence[str]) -> None:
    """Write a failure to stderr: for people, or as one JSON object when `--json` was asked for."""
    if "--json" in arguments:
        record = {"error": "\n".join(failure.lines), "where": failure.where, "next": failure.fix, "code": failure.code}
        click.echo(clean_json(json.dumps(record)), err=True)
        return
    mark = click.style("error:", fg="red", bold=True)
    for line in failure.lines:
        is_first = line == failure.lines[0]
        click.echo((f"{mark} " if is_first else "       ") + _indented(line), err=True, color=_colour())
    if failure.where:
        click.echo(f"where: {clean(failure.where)}", err=True)
    if failure.fix:
        click.echo(f"next:  {_indented(failure.fix)}", err=True)


def _indented(text: str) -> str:
    """Harmless, and without a line that looks like one of ours."""
    return clean_lines(text).replace("\n", "\n       ")


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exception(error)
    failure = failure_of(error) or CommandError(
        f"{type(error).__name__}: {error}",
        code=exits.INTERNAL,
        fix="this is a mistake in Towline; run it again with --debug and report what it prints",
    )
    tell(failure, arguments)
    return failure.code


def _tell_usage(error: click.UsageError, arguments: Sequence[str]) -> None:
    path = error.ctx.command_path if error.ctx else "towline"
    tell(CommandError(error.format_message(), code=exits.USAGE, fix=f"`{path} --help` shows what it takes"), arguments)


def _colour() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None
