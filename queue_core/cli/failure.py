"""Failures of commands: a message, a place, what to do next, and an exit code; and the table from errors to these."""

import errno
import json
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from queue_core import errors
from queue_core.cli import exits
from queue_core.cli.cut_output import OutputCutError, guarded_output
from queue_core.cli.output import HANG, terminal_width
from queue_core.cli.wrapping import wrapped
from queue_core.process.extras import extra_of, how_to_install
from queue_core.process.terminal import allows_colours, clean, clean_json, clean_lines

INDENT: Final = "       "
"""The indent of what belongs to an error: that of the text behind its mark."""


_LONG_WORD: Final = re.compile(r"(\S{60})\S{20,}")
"""A value that nobody meant to be so long: its begin tells which it is."""


class CommandError(Exception):
    """A failure of a command: the message (one line or more), where it happened, what to do next, and an exit code."""

    def __init__(self, what: str | Sequence[str], *, code: int, where: str = "", fix: str = "") -> None:
        self.lines = (what,) if isinstance(what, str) else tuple(what)
        super().__init__("\n".join(self.lines))
        self.where = where
        self.fix = fix
        self.code = code
        self.is_json = False
        """Whether it is told as JSON without being asked for, as the lines before it were."""


# The first matching class counts: special classes come before general ones.
_OF_ERROR: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (errors.QueueMovedError, exits.NO_INPUT, "give the URL of the store it is in now"),
    (errors.UnknownQueueError, exits.NO_INPUT, "`towline queues` lists all queues"),
    (errors.UnknownScheduleError, exits.NO_INPUT, "`towline schedules` lists them"),
    (errors.MoveRefusedError, exits.NEGATIVE, ""),
    (errors.LeaseLostError, exits.TRY_AGAIN, "lease again: the task has moved on"),
    (errors.WorkerRetiredError, exits.TRY_AGAIN, "lease under another worker's name"),
    (errors.UnauthenticatedError, exits.NO_PERMISSION, "set TOWLINE_TOKEN, or give --token-file"),
    (errors.PermissionDeniedError, exits.NO_PERMISSION, "use a token whose role and queues allow it"),
    (errors.StoreReadOnlyError, exits.NO_PERMISSION, "make the file and its folder writable for this user"),
    (errors.StoreFullError, exits.UNAVAILABLE, "free disk space, then try again; nothing was lost"),
    (errors.StoreVersionError, exits.UNAVAILABLE, "upgrade this program"),
    (errors.StoreCorruptError, exits.UNAVAILABLE, "run `towline doctor`; or give another --store"),
    (errors.StoreUnavailableError, exits.UNAVAILABLE, "run `towline doctor`; is `towline up` running?"),
    (errors.StoreError, exits.UNAVAILABLE, "run `towline doctor`"),
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
    errno.EADDRINUSE: (exits.CANT_CREATE, "stop the program that uses it, or choose another with --listen"),
}


def failure_of(error: Exception, *, where: str = "") -> CommandError | None:
    """Return the failure of an expected error; None for an unexpected one, which is a bug."""
    if isinstance(error, CommandError):
        return error
    if type(error).__name__ in {"AppError", "AppImportError"}:
        return CommandError(str(error), code=exits.BAD_CONFIG, where=where)
    for kind, code, fix in _OF_ERROR:
        if isinstance(error, kind):
            return CommandError(str(error), code=code, where=where, fix=fix)
    if isinstance(error, errors.QueueError):
        return CommandError(str(error), code=exits.UNAVAILABLE, where=where)
    if isinstance(error, ImportError) and (extra := extra_of(error)) is not None:
        return CommandError(str(error), code=exits.BAD_CONFIG, where=where, fix=f"`{how_to_install(extra)}`")
    if isinstance(error, OSError) and error.errno in _OF_ERRNO:
        code, fix = _OF_ERRNO[error.errno]
        return CommandError(error.strerror or str(error), code=code, where=str(error.filename or where), fix=fix)
    return None


@contextmanager
def failures_as_json(*, is_wanted: bool) -> Iterator[None]:
    """Tell a failure of the block as one JSON object: all lines of a stream have one form."""
    try:
        yield
    except Exception as error:
        failure = failure_of(error)
        if not is_wanted or failure is None:
            raise
        failure.is_json = True
        raise failure from error


def run_command(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; failures are printed on stderr, never as a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with guarded_output("stop"):  # for help and the like; each command has its own
            outcome = command.main(args=given, prog_name="towline", standalone_mode=False)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        _print_usage_error(error, given)
        return exits.USAGE
    except (click.Abort, KeyboardInterrupt):
        return exits.INTERRUPTED
    except OutputCutError as cut:
        return _cut_output_code(cut, given)
    except click.ClickException as error:
        print_failure(CommandError(error.format_message(), code=exits.USAGE), given)
        return exits.USAGE
    except Exception as error:  # noqa: BLE001  the top: every error is printed here
        return _unexpected_error_code(error, given)
    return outcome if isinstance(outcome, int) else exits.OK


def _cut_output_code(cut: OutputCutError, arguments: Sequence[str]) -> int:
    """Return the exit code of a command whose stdout was cut: 0 if it only shows and its reader has read enough."""
    if cut.is_reader_gone and not cut.is_reported:
        return exits.OK
    if not cut.is_reported or "--json" in arguments:
        message = f"stdout was cut: {cut.reason}"
        print_failure(CommandError(message, code=exits.OUTPUT_CUT, where="stdout"), arguments)
    return exits.OUTPUT_CUT


def print_failure(failure: CommandError, arguments: Sequence[str]) -> None:
    """Print a failure on stderr: for people, or as one JSON object if `--json` is among the arguments."""
    if failure.is_json or "--json" in arguments:
        record = {"error": "\n".join(failure.lines), "where": failure.where, "next": failure.fix, "code": failure.code}
        click.echo(clean_json(json.dumps(record)), err=True)
        return
    for line in failure.lines:
        is_first = line == failure.lines[0]
        mark = click.style("error:", fg="red", bold=True) + " " if is_first else INDENT
        _print_indented(mark, line, hang=len(INDENT) + (HANG if len(failure.lines) > 1 else 0))
    if failure.where:
        _print_indented("where: ", clean(failure.where))
    if failure.fix:
        _print_indented("next:  ", failure.fix)


def _print_indented(mark: str, text: str, *, hang: int = len(INDENT)) -> None:
    """Print a text after its mark, with what a terminal would obey escaped; further lines don't look like ours."""
    for line in wrapped(clean_lines(text), width=terminal_width(err=True), prefix=mark, hang=hang):
        click.echo(line, err=True, color=_colour())


def _unexpected_error_code(error: Exception, arguments: Sequence[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exception(error)
    failure = failure_of(error) or CommandError(
        f"{type(error).__name__}: {error}",
        code=exits.INTERNAL,
        fix="this is a bug in Towline: run the command again with --debug, and report what it prints",
    )
    print_failure(failure, arguments)
    return failure.code


def _print_usage_error(error: click.UsageError, arguments: Sequence[str]) -> None:
    path = error.ctx.command_path if error.ctx else "towline"
    print_failure(
        CommandError(
            _LONG_WORD.sub(r"\1...", error.format_message()),
            code=exits.USAGE,
            fix=f"`{path} --help` shows what it takes",
        ),
        arguments,
    )


def _colour() -> bool | None:
    return None if allows_colours() else False
