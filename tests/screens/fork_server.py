"""Run commands for the screen test, each in a fork of a process that has imported them: an import takes half a second.

Reads one request a line from stdin (see `serve`), and answers with the exit code when the command has ended.
"""

import contextlib
import fcntl
import io
import json
import os
import sys
import termios
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from orchestrator.cli import command, main
from orchestrator.demo.view import LiveView
from tests.orchestrator.demo.test_frame import a_run

PRELOADED = (
    *("up", "top", "pools", "workers", "why", "why-died", "peek", "events", "logs", "simulate", "backtest"),
    *("doctor", "plan", "queues", "check", "health"),
)


EVERY_HELP = "every help"
"""The argument for the help of all commands, one after the other."""
DEMO_VIEW = "demo view"
"""The argument for the demo's view."""


def serve() -> None:
    """Answer requests until stdin ends: `arguments`, `folder`, `environment`, and the paths of three streams."""
    group = command()
    for name in PRELOADED:
        group.get_command(group.make_context("towline", ["x"], resilient_parsing=True), name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        answers.write(json.dumps({"pid": child}) + "\n")
        answers.flush()
        _, status = os.waitpid(child, 0)
        answers.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}) + "\n")
        answers.flush()


def run(request: dict[str, Any]) -> None:
    """Become the command; never returns."""
    code = 70
    try:
        os.setsid()
        for number, (path, flags) in enumerate(
            zip(request["streams"], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)
        ):
            opened = os.open(path, flags)
            os.dup2(opened, number)
            os.close(opened)
        with contextlib.suppress(OSError):
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        time.tzset()
        sys.stdin, sys.stdout, sys.stderr = (_stream(number, mode) for number, mode in enumerate("rww"))
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        match request["arguments"]:
            case [argument] if argument == EVERY_HELP:
                code = print_every_help()
            case [argument] if argument == DEMO_VIEW:
                code = show_demo(Path(request["folder"]))
            case arguments:
                code = main(arguments)
    except BaseException:  # noqa: BLE001  a fork must not go on as its parent
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def print_every_help() -> int:
    """Print the help of every command, and of their subcommands."""
    group = command()
    context = group.make_context("towline", ["x"], resilient_parsing=True)
    for name in group.list_commands(context):
        main([name, "--help"])
        found = group.get_command(context, name)
        for below in found.list_commands(context) if isinstance(found, click.Group) else ():
            main([name, below, "--help"])
    return 0


def show_demo(folder: Path) -> int:
    """Show a run of the demo that stands still, until Ctrl-C."""
    run, pause = a_run(folder), threading.Event()
    with contextlib.suppress(KeyboardInterrupt), LiveView(Console()) as view:
        while True:
            view.update(run)
            pause.wait(0.02)
    return 0


def _stream(number: int, mode: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(number, mode, closefd=False), encoding="utf-8")


if __name__ == "__main__":
    serve()
