"""`towline run-appengine`: run a script written for App Engine, with its task queues on a Towline server."""

import os
import runpy
import sys
import traceback
from pathlib import Path

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import json_option
from queue_core.cli.target import find_target
from queue_core.google.appengine.connect import connect_appengine

SCRIPT_FAILED = 1
"""Python's exit code after an uncaught exception."""


@command(
    "run-appengine",
    examples=(
        "towline run-appengine worker.py",
        "towline run-appengine --url http://queue.example:7878 worker.py --queue pullq",
        "TOWLINE_TOKEN=... towline run-appengine main.py",
    ),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--url", help="Server  [default: as for every command]")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with the bearer token  [default: TOWLINE_TOKEN]",
)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Settings file.")
@json_option
@click.argument("script", type=click.Path(exists=True, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_appengine(
    url: str | None,
    token_file: Path | None,
    file: Path | None,
    script: Path,
    arguments: tuple[str, ...],
    as_json: bool,  # noqa: ARG001, FBT001 - for failures before the script begins, printed by `run_command`
) -> int:
    """Run the Python SCRIPT with ARGUMENTS; its `google.appengine.api.taskqueue` calls go to a Towline server.

    App Engine's runtime environment is set up before the script's first line, for all its threads. The exit code is
    that of the script.
    """
    target = find_target(url=url, store=None, token_file=token_file, file=file)
    if not target.url.startswith(("http://", "https://")):
        raise CommandError(
            "the App Engine SDK calls a server over HTTP, and no server answers",
            code=exits.UNAVAILABLE,
            where=target.shown,
            fix="start `towline serve`, or give --url",
        )
    connect_appengine(target.url, ticket=target.token)
    return run_script(script, arguments)


def run_script(script: Path, arguments: tuple[str, ...]) -> int:
    """Run a script as `python SCRIPT` does, with the same traceback and exit code after an uncaught exception."""
    sys.argv = [os.fspath(script), *arguments]
    if script.is_file():
        sys.path[0] = os.fspath(script.resolve().parent)
    try:
        runpy.run_path(os.fspath(script), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - the top of the script
        _print_traceback(error, script)
        return SCRIPT_FAILED
    return exits.OK


def _print_traceback(error: Exception, script: Path) -> None:
    """Print the traceback, from the script's first line on."""
    frames = error.__traceback__
    path = os.fspath(script)
    while frames is not None and frames.tb_frame.f_code.co_filename != path:
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames or error.__traceback__))
