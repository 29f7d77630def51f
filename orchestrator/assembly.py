"""Build a supervisor from its settings: its work source, its runtimes and its state directory."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import unreachable_notice
from orchestrator.runtime import Runtime
from orchestrator.runtimes.composite import CompositeRuntime
from orchestrator.runtimes.external import ExternalRuntime
from orchestrator.runtimes.process import ProcessRuntime
from orchestrator.runtimes.worker_logs import WorkerLogs
from orchestrator.settings_file import Project, state_of
from orchestrator.source import WorkSource
from orchestrator.sources.by_pool import PoolSources
from orchestrator.sources.celery.source import CeleryFleets
from orchestrator.sources.pull_queue import QueueSource, ServersPresence
from orchestrator.sources.schedules import ScheduleTicks
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.reload import ReloadedSettings
from orchestrator.supervisor.succession import FleetIdentity
from orchestrator.supervisor.supervisor import Supervisor
from orchestrator.supervisor.view import Heartbeat
from queue_core.client.connect import SERVER_SCHEMES, open_queues
from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queues
from queue_core.config.store_urls import masked
from queue_core.process.own_terminal import OwnTerminal
from queue_core.schedules.book import schedule_json

RETRIES: Final = Retries(tries=2)
TIMEOUT_SECONDS: Final = 5.0
"""Timeout of one call to the queue. Keep it short: the supervisor checks its workers and renews its leadership between
calls."""


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
    terminal: OwnTerminal | None = None,
) -> Iterator[Supervisor]:
    """Open the supervisor of a project's pools; call its `run`, and `request_stop` from another thread to end it.

    It creates no queues: a server does, or `Queues.put_queue` for each of `project.queue_file.specs()`.

    Args:
        url: the server or store that has the queues, for the supervisor and its workers; the server of the settings
            file by default.
        token: the supervisor's token at the server, which must have the admin role.
        worker_token: the workers' token; `token` by default.
        loader: takes the queues and returns a function that reads the pools again for a reload; without it only
            `Supervisor.request_reload(pools)` reloads.
        watched: the file whose change triggers a reload.
        heartbeat: receives the snapshots that other threads read.
        terminal: the terminal whose hang-up ends the supervisor.
    """
    url = url or project.queue_file.server.url(project.directory)
    files = state_of(project)
    with ExitStack() as stack:
        queues, waiting = _queues(url, token), _queues(url, token)
        stack.callback(waiting.close)
        stack.callback(queues.close)
        presence = _presence(url, token, stack)
        elsewhere = presence.all if presence.several else None
        ticks = ScheduleTicks(queues, file=[schedule_json(one) for one in project.schedules])
        fleets = celery_fleets()
        stack.callback(fleets.close)
        source = PoolSources(
            QueueSource(queues, waiting=waiting, presence=presence, all_presence=elsewhere, ticks=ticks.upcoming),
            fleets,
        )
        fleet = FleetIdentity()

        def may_act() -> bool:
            return supervisor.may_act_on_shared()

        runtime = _runtime(project, files, source=source, url=url, fleet=fleet, may_act=may_act)
        stack.callback(runtime.close)
        supervisor = Supervisor(
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
            terminal=terminal,
            ticks=ticks,
            fleet=fleet,
            on_pools=runtime.set_pools,
        )
        yield supervisor


def celery_fleets() -> CeleryFleets:
    """Return the source of pools with a Celery source. It connects to a broker when a pool of it is first sampled."""
    return CeleryFleets(
        environment=os.environ,
        clock=SystemMonotonicClock(),
        pause=time.sleep,
        rng=random.Random(),  # noqa: S311  it spreads probes
    )


def _runtime(
    project: Project,
    files: StateDir,
    *,
    source: WorkSource,
    url: str,
    fleet: FleetIdentity,
    may_act: Callable[[], bool],
) -> CompositeRuntime:
    """Return a runtime for every kind of worker that the pools name now or after a reload."""
    withheld = project.secret_variables(os.environ, url=url)

    def is_alive(worker: str) -> bool:
        return every.runs(worker)

    # Processes and containers write to the same folder, of which each runtime knows its own workers only.
    logs = WorkerLogs(files.path / "workers", is_alive=is_alive)
    processes = ProcessRuntime(files.path, lock=files.lock_path, withheld=withheld, logs=logs)

    def docker(engine: str | None, _pool: PoolSpec | None) -> Runtime:
        from orchestrator.runtimes.docker.runtime import DockerRuntime

        return DockerRuntime(
            files.path,
            lock=files.workers_lock_path,
            engine=engine,
            fleet=lambda: fleet.id,
            on_exit=processes.wake,
            logs=logs,
        )

    def swarm(engine: str | None, pool: PoolSpec | None) -> Runtime:
        from orchestrator.runtimes.docker.identity import identity_of
        from orchestrator.runtimes.swarm.runtime import SwarmRuntime

        settings = pool.runtime.swarm if pool is not None else None
        return SwarmRuntime(
            identity_of(files.path),
            engine=engine,
            fleet=lambda: fleet.id,
            nodes=settings.nodes if settings is not None else None,
            disown=lambda worker: source.release_held_by(worker, unreachable_notice(worker)),
            on_exit=processes.wake,
        )

    def kubernetes(engine: str | None, _pool: PoolSpec | None) -> Runtime:
        from orchestrator.runtimes.kubernetes.runtime import KubernetesRuntime

        context, _, namespace = (engine or "").partition("/")
        return KubernetesRuntime(
            context=context or None,
            namespace=namespace or None,
            retire=source.retire,
            disown=lambda worker: source.release_held_by(worker, unreachable_notice(worker)),
            may_act=may_act,
            on_exit=processes.wake,
        )

    every = CompositeRuntime(
        processes,
        {
            "docker": docker,
            "swarm": swarm,
            "kubernetes": kubernetes,
            "external": lambda _engine, _pool: ExternalRuntime(),
        },
        pools=project.pools.values(),
    )
    return every


def _presence(url: str, token: str | None, stack: ExitStack) -> ServersPresence:
    """Return the worker presence that the servers report; a store that is opened directly reports none."""
    urls = url.split(",") if url.startswith(SERVER_SCHEMES) else []
    servers = [HttpQueues(each.strip(), token=token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS) for each in urls]
    for server in servers:
        stack.callback(server.close)
    return ServersPresence(servers)


def _queues(url: str, token: str | None) -> Queues:
    return open_queues(url, token=token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS)
