"""A supervisor put together from its settings: where it sees work, what runs its workers, where it keeps its state."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.runtime import Runtime
from orchestrator.runtimes.composite import CompositeRuntime
from orchestrator.runtimes.external import ExternalRuntime
from orchestrator.runtimes.process import ProcessRuntime
from orchestrator.settings_file import Project, state_of
from orchestrator.source import WorkSource
from orchestrator.sources.pull_queue import QueueSource, ServersPresence
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.reload import ReloadedSettings
from orchestrator.supervisor.supervisor import Supervisor
from orchestrator.supervisor.view import Heartbeat
from queue_core.api import Queues
from queue_core.client import HttpQueues
from queue_core.config.store_urls import masked
from queue_core.connect import SERVER_SCHEMES, open_queues
from queue_core.http_api.caller import Retries

RETRIES: Final = Retries(tries=2)
TIMEOUT_SECONDS: Final = 5.0
"""A supervisor looks at its workers between two calls, and at its lead, which ends by itself."""


@contextmanager
def open_supervisor(
    project: Project,
    *,
    url: str | None = None,
    token: str | None = None,
    worker_token: str | None = None,
    loader: Callable[[Queues], Callable[[], ReloadedSettings]] | None = None,
    watched: Path | None = None,
    heartbeat: Heartbeat | None = None,
) -> Iterator[Supervisor]:
    """Open the supervisor of a project's pools; call its `run`, and from another thread `request_stop` to end it.

    It makes no queues: a server does, or `Queues.put_queue` for each of `project.queue_file.specs()`.

    Args:
        url: the server or store that has the queues, for the supervisor and its workers; the server of the settings
            file by default.
        token: what the supervisor presents at a server; it must be an admin's.
        worker_token: what workers present; `token` by default.
        loader: makes, of the queues, what reads the pools anew for a reload; without it there is none but
            `Supervisor.request_reload(pools)`.
        watched: the file whose change is a reload.
        heartbeat: what other threads are shown.
    """
    url = url or project.queue_file.server.url(project.directory)
    files = state_of(project)
    with ExitStack() as stack:
        queues, waiting = _queues(url, token), _queues(url, token)
        stack.callback(waiting.close)
        stack.callback(queues.close)
        heard = _heard(url, token, stack)
        elsewhere = heard.all if heard.several else None
        source = QueueSource(queues, waiting=waiting, presence=heard, all_presence=elsewhere)
        runtime = _runtime(project, files, source=source, url=url)
        stack.callback(runtime.close)
        yield Supervisor(
            project.supervisor,
            project.pools,
            source=source,
            runtime=runtime,
            files=files,
            url=url,
            shown_url=masked(url),
            token=worker_token or token,
            load=None if loader is None else loader(queues),
            watched=watched,
            heartbeat=heartbeat,
        )


def _runtime(project: Project, files: StateDir, *, source: WorkSource, url: str) -> CompositeRuntime:
    """Processes, and whatever else the pools ask for now or after a reload."""
    withheld = project.secret_variables(os.environ, url=url)
    processes = ProcessRuntime(files.path, lock=files.lock_path, withheld=withheld)

    def docker(engine: str | None, _pool: PoolSpec | None) -> Runtime:
        from orchestrator.runtimes.docker.runtime import DockerRuntime

        return DockerRuntime(files.path, lock=files.lock_path, engine=engine, on_exit=processes.wake)

    def swarm(engine: str | None, pool: PoolSpec | None) -> Runtime:
        from orchestrator.runtimes.docker.identity import identity_of
        from orchestrator.runtimes.swarm.runtime import SwarmRuntime

        settings = pool.runtime.swarm if pool is not None else None
        return SwarmRuntime(
            identity_of(files.path),
            engine=engine,
            nodes=settings.nodes if settings is not None else None,
            disown=source.release_held_by,
            on_exit=processes.wake,
        )

    return CompositeRuntime(
        processes,
        {"docker": docker, "swarm": swarm, "external": lambda _engine, _pool: ExternalRuntime()},
        pools=project.pools.values(),
    )


def _heard(url: str, token: str | None, stack: ExitStack) -> ServersPresence:
    """Who asks for leases; of a store that is opened directly nobody can tell."""
    urls = url.split(",") if url.startswith(SERVER_SCHEMES) else []
    servers = [HttpQueues(one.strip(), token=token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS) for one in urls]
    for server in servers:
        stack.callback(server.close)
    return ServersPresence(servers)


def _queues(url: str, token: str | None) -> Queues:
    return open_queues(url, token=token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS)
