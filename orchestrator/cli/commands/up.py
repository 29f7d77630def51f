"""`towline up` and `towline supervise`: run the supervisor, with or without the queue server in the process."""

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import click

from orchestrator.assembly import open_supervisor
from orchestrator.base import events
from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.errors import AlreadySupervisedError
from orchestrator.cli.import_checks import check_imports
from orchestrator.cli.project_file import Renewal, load_project, pools_loader
from orchestrator.cli.up.view import events_shown
from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.http_api.registry import SupervisorRegistry
from orchestrator.settings_file import DEFAULT_FILE, Project, effective, state_of
from orchestrator.supervisor.reload import ReloadedSettings
from orchestrator.supervisor.unix_signals import ignore_control_signals
from orchestrator.supervisor.view import Heartbeat
from queue_core.cli import exits
from queue_core.cli.credentials import bearer_token
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_argument, json_option, log_options, setting_options
from queue_core.cli.output import print_info
from queue_core.cli.serving import (
    console_sentence,
    flag_overrides,
    lifecycle_log,
    listen_failure,
    own_fix,
    prepared_store,
    serve_options,
)
from queue_core.cli.target import check_token_stays
from queue_core.client.queue import Queues
from queue_core.config.settings import Override
from queue_core.config.store_urls import masked, with_absolute_sockets
from queue_core.errors import ListenError
from queue_core.log import get_logger
from queue_core.process import logs
from queue_core.process.holders import ResourceHolder, holder_of_lock
from queue_core.process.init_process import run_as_init
from queue_core.process.own_terminal import OwnTerminal
from queue_core.server.app import release
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.extensions import Extensions
from queue_core.server.server import ServerThread, freeze_loaded_objects, pass_on_socket
from queue_core.server.watches.spare_memory import keep_apart
from queue_core.verbs.roles import Role

RENEW: Final = -1
"""A marker in place of an exit code: release every resource, then execute the new program."""


def begin_as_daemon() -> OwnTerminal:
    """Prepare the process: run in a child when we are a container's first process; ignore reloads until ready.

    Return the terminal whose hang-up ends it.
    """
    run_as_init()
    terminal = OwnTerminal()
    ignore_control_signals()
    return terminal


def renew(listening: int | None, terminal: OwnTerminal) -> NoReturn:
    """Execute the command that started this process, as it is installed now.

    Args:
        listening: the descriptor of the listening socket to keep, if any.
        terminal: the process's own.
    """
    command = [sys.executable, *sys.orig_argv[1:]]
    get_logger().info(events.SUPERVISOR_RENEWED, command=command)
    ignore_control_signals()
    terminal.keep()
    sys.stdout.flush()
    sys.stderr.flush()
    if listening is not None:
        pass_on_socket(listening)
    os.execv(sys.executable, command)  # noqa: S606  our own command line


_output_option = click.option(
    "--logs/--quiet",
    "shows_output",
    default=None,
    help="Print what workers write, or not  [default: on a terminal]",
)


_import_option = click.option(
    "--import-check/--no-import-check",
    "checks_imports",
    default=None,
    help="Refuse to start if a pool's app can't be imported, or not  [default: on a terminal]",
)


@command(
    "up",
    examples=(
        "towline up",
        "towline up deploy/towline.yaml --listen 127.0.0.1:0",
        "towline up --log events.jsonl --log-level warning",
    ),
)
@setting_options
@log_options
@_output_option
@_import_option
@file_argument
@json_option
def up(
    store: str | None,
    durability: str | None,
    listen: str | None,
    lifecycle: str | None,
    log: str | None,
    log_level: logs.Level,
    shows_output: bool | None,  # noqa: FBT001
    checks_imports: bool | None,  # noqa: FBT001
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Serve the queues of a settings file and size its pools, until SIGTERM or Ctrl-C.

    SIGHUP, a change of the file, or `towline reload` reloads the pools; it stops when its terminal hangs up. The first
    SIGTERM lets workers finish within their grace, a second one kills them. SIGUSR2 restarts this command in the same
    process, as it is installed now, while workers run and callers wait; SIGUSR1 exits and leaves the workers to the
    next supervisor.

    On a terminal it tells in sentences what happens: decisions, failures of handlers, deaths, and what its workers
    write, each line after its worker's name (--quiet: without that); `towline logs` finds it later. Of too many lines
    at once the rest is left out, and counted. Elsewhere, and with --json, every line is JSON.

    On a terminal it imports each pool's app first, and refuses to start if one can't be used. A daemon starts the other
    pools; the broken one waits until a file of it changes.

    Under systemd it reports readiness and feeds the watchdog after each turn; as a container's first process it reaps
    orphans. Exit code 78: the settings are wrong, and a restart does not help.
    """
    terminal = begin_as_daemon()
    flags = flag_overrides(
        [
            (("store",), store),
            (("durability",), durability),
            (("server", "listen"), listen),
            (("lifecycle",), lifecycle),
            (("log",), log),
        ]
    )
    project = load_project(file, flags=flags)
    handlers = handlers_in(project) if is_wanted(checks_imports, as_json=as_json) else None
    settings, directory = project.queue_file, project.directory
    kept: int | None = None
    keep_apart()
    with ExitStack() as stack:
        view = stack.enter_context(events_shown(project, log_level, shows_output=shows_output, as_json=as_json))
        opened = stack.enter_context(prepared_store(settings, directory))
        lifecycle_file = stack.enter_context(lifecycle_log(settings, directory))
        ours = secrets.token_urlsafe() if settings.server.tokens else None
        workers = state_of(project).worker_token() if settings.server.tokens else None

        def served(read: Project) -> ServeOptions:
            return _with_own_tokens(serve_options(read.queue_file, read.directory), ours, workers)

        options = served(project)
        api = stack.enter_context(closing(_Api(project, file, flags)))
        try:
            server = ServerThread(opened, options, log=lifecycle_file, extensions=api.paths)
        except ListenError as error:
            raise listen_failure(error, options, own=lambda holder: own_supervisor(project, holder)) from None
        url = server.start()
        stack.callback(server.stop)
        api.begin(url, ours, listens=(url, options))
        stack.callback(api.registry.stop)
        listened = settings.server.listen
        address = listened if listened.startswith("unix:") else url  # a port may be any free one
        title = file or Path(DEFAULT_FILE), masked(settings.store.url), address
        view.begin(url, token=ours, title=title, handlers=handlers, console=console_sentence(url))
        run = _Run(project, file, flags, api.heartbeat, terminal, lambda read: partial(server.renew, served(read)))
        freeze_loaded_objects()
        with view.counted(store=masked(settings.store.url)):
            code = run.supervise(url=url, token=ours, worker_token=workers)
        if code == RENEW:
            api.registry.leave()
            kept = server.hand_over()
    return renew(kept, terminal) if code == RENEW else code


@command("supervise", examples=("towline supervise", "towline supervise --url http://queue.example:7878"))
@click.option("--url", envvar="TOWLINE_URL", help="The queue server  [default: server.listen of the file]")
@log_options
@_output_option
@_import_option
@file_argument
@json_option
def supervise(
    url: str | None,
    log_level: logs.Level,
    shows_output: bool | None,  # noqa: FBT001
    checks_imports: bool | None,  # noqa: FBT001
    file: Path | None,
    as_json: bool,  # noqa: FBT001
) -> int:
    """Size the pools of a settings file beside a queue server that runs elsewhere, until SIGTERM or Ctrl-C.

    Signals, systemd, exit codes, what is reported and the workers' output are as for `towline up`.
    """
    terminal = begin_as_daemon()
    project = load_project(file)
    handlers = handlers_in(project) if is_wanted(checks_imports, as_json=as_json) else None
    # Its workers may run in other folders, and a container needs the socket's path for a mount.
    found = with_absolute_sockets(url, Path.cwd()) if url else project.queue_file.server.url(project.directory)
    token = bearer_token()
    if not url:
        check_token_stays(found, origin=str(file or DEFAULT_FILE), token=token)
    with ExitStack() as stack:
        view = stack.enter_context(events_shown(project, log_level, shows_output=shows_output, as_json=as_json))
        api = stack.enter_context(closing(_Api(project, file, (), is_alone=True)))
        statistics: tuple[str, ...] = ()
        listens: tuple[str, ServeOptions] | None = None
        renewal: Renewal | None = None
        pages = console_sentence("")
        if project.supervisor.listen is not None:
            listen = project.supervisor.listen
            listener = _listener(_fleet_options(project, listen), project, api.paths, queues=found)
            renewal = partial(_renewal_of_fleet, listener, listen)
            statistics = (f"statistics at {listener.start()}",)
            pages = console_sentence(listener.url)
            stack.callback(listener.stop)
            listens = listener.url, listener.options
        api.begin(found, token, listens=listens)
        stack.callback(api.registry.stop)
        title = file or Path(DEFAULT_FILE), masked(found), *statistics
        view.begin(found, token=token, title=title, handlers=handlers, console=pages)
        run = _Run(project, file, (), api.heartbeat, terminal, renewal)
        with view.counted(store=masked(found)):
            code = run.supervise(url=found, token=token, worker_token=workers_token(token, listens))
    return renew(None, terminal) if code == RENEW else code


def is_wanted(choice: bool | None, *, as_json: bool) -> bool:  # noqa: FBT001
    """Return whether to import applications before the start: as chosen, else on a terminal."""
    return choice if choice is not None else not as_json and sys.stdout.isatty()


def handlers_in(project: Project) -> Mapping[str, int]:
    """Import the pools' applications, and return the number of handlers by pool, where there are any.

    Raises `CommandError` with a line for each pool whose application can't be used.
    """
    findings = check_imports(project, on_wait=lambda apps: print_info(f"importing {' and '.join(apps)} ..."))
    for note in findings.notes:
        print_info(note)
    if findings.failures:
        fix = "fix it, or add --no-import-check: other pools start now, this one when one of its files changes"
        raise CommandError(findings.problems, code=exits.BAD_CONFIG, fix=fix)
    return findings.handlers


class _Api:
    """A supervisor's HTTP paths, the heartbeat that it will update for them, and the queues that they ask."""

    def __init__(
        self, project: Project, file: Path | None, flags: tuple[Override, ...], *, is_alone: bool = False
    ) -> None:
        clock = SystemMonotonicClock()
        self.heartbeat = Heartbeat(now=clock.monotonic())
        self.queues = OwnQueues()
        files = state_of(project)
        self.registry = SupervisorRegistry(self.queues, self.heartbeat, clock, files, version=release())
        self.paths = fleet_paths(
            self.heartbeat,
            clock,
            is_alone=is_alone,
            files=files,
            queues=self.queues,
            registry=self.registry,
            settings=lambda: _in_force(project, file, flags),
            problems=lambda: _problems(file, flags),
            file=file or project.directory / project.name,
        )

    def begin(self, url: str, token: str | None, *, listens: tuple[str, ServeOptions] | None) -> None:
        """Ask the queues at this URL from now on, and register there as listening at another one, or nowhere."""
        self.queues.locate(url, token=token)
        address, options = listens or ("", None)
        self.registry.start(address, options)

    def close(self) -> None:
        """Close the connections to the queues."""
        self.queues.close()


def _in_force(started_with: Project, file: Path | None, flags: tuple[Override, ...]) -> list[tuple[str, object, str]]:
    """Return the settings as the file has them; those of the start while it has mistakes, which a reload refuses."""
    try:
        return effective(load_project(file, flags=flags))
    except (CommandError, OSError):
        return effective(started_with)


def _problems(file: Path | None, flags: tuple[Override, ...]) -> list[str]:
    """Return the mistakes in the settings file as it is now."""
    try:
        load_project(file, flags=flags)
    except CommandError as error:
        return [str(one) for one in error.lines]
    except OSError as error:
        return [str(error)]
    return []


def _fleet_options(project: Project, listen: str) -> ServeOptions:
    return replace(serve_options(project.queue_file, project.directory, listen=listen), grpc=None)


def _renewal_of_fleet(listener: FleetListener, listen: str, read: Project) -> Callable[[], None]:
    return partial(listener.renew, _fleet_options(read, listen))


def _listener(options: ServeOptions, project: Project, paths: Extensions, *, queues: str) -> FleetListener:
    try:
        return FleetListener(options, paths, queues=queues)
    except ListenError as error:
        raise listen_failure(error, options, own=lambda holder: own_supervisor(project, holder)) from None


def _with_own_tokens(options: ServeOptions, ours: str | None, workers: str | None) -> ServeOptions:
    """Return the server's options with two more tokens, where it has some: the supervisor's, and its workers'.

    The supervisor's is known only to this process. The workers' is of role worker, for the queues of a worker's token
    of the settings, or else of an administrator's, and outlives it: it may be replaced while workers hold tasks. Raises
    `CommandError` when there is none.
    """
    if ours is None or workers is None or not options.tokens:
        return options
    own = AccessToken(Role.ADMIN, ours)
    for role in (Role.WORKER, Role.ADMIN):
        for token in options.tokens:
            if token.role & role:
                return replace(options, tokens=(*options.tokens, own, replace(token, role=Role.WORKER, secret=workers)))
    message = "server.tokens: the pools' workers need a token of role worker or admin"
    raise CommandError(message, code=exits.BAD_CONFIG, fix="add {role: worker, token_env: ...} to server.tokens")


def workers_token(own: str | None, listens: tuple[str, ServeOptions] | None) -> str | None:
    """Return the token that workers present at a server elsewhere: one of role worker, rather than the supervisor's.

    The settings have it if they are the server's too, as the supervisor's own token is one of theirs.
    """
    tokens = listens[1].tokens if listens is not None else ()
    if own not in [token.secret for token in tokens]:
        return own
    return next((token.secret for token in tokens if token.role == Role.WORKER), own)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a supervisor with the settings of a file."""

    project: Project
    file: Path | None
    flags: tuple[Override, ...]
    heartbeat: Heartbeat
    terminal: OwnTerminal
    renewal: Renewal | None
    """Has the listener take up the tokens and certificates of the settings; None: there is none."""

    def supervise(self, *, url: str, token: str | None, worker_token: str | None) -> int:
        """Run it and return the exit code, or `RENEW`. Raises `CommandError` where another one runs already."""
        project = self.project
        try:
            with open_supervisor(
                project,
                url=url,
                token=token,
                worker_token=worker_token,
                loader=self._loader,
                watched=self.file or Path(DEFAULT_FILE),
                heartbeat=self.heartbeat,
                terminal=self.terminal,
            ) as supervisor:
                code = supervisor.run()
                return RENEW if supervisor.is_renewed else code
        except AlreadySupervisedError as error:
            raise _already_supervised(project, error) from None

    def _loader(self, queues: Queues) -> Callable[[], ReloadedSettings]:
        return pools_loader(self.file, flags=self.flags, started_with=self.project, queues=queues, renewal=self.renewal)


def own_supervisor(project: Project, holder: ResourceHolder) -> str:
    """Describe a process if it supervises the same state directory; else ""."""
    files = state_of(project)
    if holder.pid is None or holder_of_lock(files.lock_path).pid != holder.pid:
        return ""
    is_stopping = (files.read_snapshot() or {}).get("phase") == "stopping"
    ends = ", which finishes the tasks of its workers and then ends" if is_stopping else ""
    return f"your own `towline {holder.verb or 'up'}` of this folder (pid {holder.pid}){ends}"


def _already_supervised(project: Project, error: AlreadySupervisedError) -> CommandError:
    files = state_of(project)
    holder = holder_of_lock(files.lock_path)
    who = own_supervisor(project, holder)
    if not who:
        fix = "`towline pools` shows what the other one does"
        return CommandError(str(error), code=exits.TRY_AGAIN, fix=fix)
    message = f"{files.path} is in use by {who}"
    return CommandError(message, code=exits.TRY_AGAIN, fix=own_fix(holder))
