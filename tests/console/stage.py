"""A server with its console: queues, a supervisor's state, and strangers' texts wherever there may be some."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from orchestrator.base.clock import ManualMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.paths import fleet_paths
from orchestrator.http_api.registry import SupervisorRegistry
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.pool import Pool
from orchestrator.supervisor.snapshot import WallTime, snapshot_of
from queue_core.attempts.attempt import Failure
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.clock import SystemClock
from queue_core.schedules.schedule import Schedule
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.extensions import NO_EXTENSIONS
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, Progress, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.unit.supervisors import KIND
from queue_core.verbs import Renewal
from queue_core.verbs.roles import Role
from tests.console.texts import FOREIGN
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_pool, a_sample, a_worker, learn_and_decide
from tests.support.fleet.fleet_views import a_heartbeat, a_view

TOKENS: Final = {role: f"{str(role.name).lower()}-token-0123456789" for role in Role}
QUEUE: Final = "mail"
ODD_QUEUE: Final = "celery--3Cb-3E"
POOL: Final = "mailers"
WORKER: Final = "mailers-abc123"
ODD_WORKER: Final = "celery@host/<b foreign>\u202e"
DEAD_WORKER: Final = "mailers-dead01"
DEAD_TASK: Final = "letter-1"
PAYLOAD: Final = b'{"to": "ann@example.org", "id": 12345678901234567890.50, "note": "<b foreign>\\u001b[0m</b>"}'
SCHEDULE: Final = "nightly"
OTHER_HOST: Final = "https://node-1.example:7878"
SETTINGS_FILE: Final = """\
store: "memory:"
queues: {mail: {}}
pools:
  mailers: {queue: mail, command: [sleep], slo: 5s, workers: {min: 0, max: 8}}
"""


@dataclass(frozen=True)
class ConsoleStage:
    """A server that runs, and where its console is."""

    thread: ServerThread
    store: MemoryStore
    clock: ManualMonotonicClock
    files: StateDir
    url: str

    @property
    def console(self) -> str:
        """The address of the first page."""
        return f"{self.url}/console/"

    @property
    def queues(self) -> LocalQueues:
        """The queues, as a program beside the server uses them."""
        return LocalQueues(QueueService(self.store))


@contextmanager
def a_console(
    *,
    roles: Sequence[Role] = (),
    more_tokens: Sequence[AccessToken] = (),
    writes: bool = True,
    hosts: Sequence[str] = (),
    port: int = 0,
    with_supervisor: bool = True,
) -> Iterator[ConsoleStage]:
    """Serve a console with a token for each of `roles`; none: everybody may look.

    Args:
        more_tokens: tokens beside those of the roles.
        hosts: further names of the server.
        with_supervisor: whether there is a fleet; otherwise the server has queues only.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        now = SystemClock().now()
        store, files = MemoryStore(), StateDir(folder)
        heartbeat_clock = ManualMonotonicClock(monotonic=NOW, wall_seconds=now / 1e6)
        pools = [_pool(POOL, queue=QUEUE), _pool("quiet", queue=ODD_QUEUE)]
        heartbeat, _ = a_heartbeat(a_view(*pools))
        _fill_queues(LocalQueues(QueueService(store)))
        _fill_files(files, pools, now_seconds=now / 1e6)
        tokens = (*(AccessToken(role, TOKENS[role]) for role in roles), *more_tokens)
        options = ServeOptions(port=port, tokens=tokens, console_writes=writes, allowed_hosts=tuple(hosts))
        stack.enter_context(files.locked())
        file = folder / "towline.yaml"
        file.write_text(SETTINGS_FILE)
        settings = [("store", "memory:", "towline.yaml:1:1"), ("pools.mailers.env.KEY", FOREIGN[1], FOREIGN[0])]
        fleet, queues = NO_EXTENSIONS, OwnQueues()
        stack.callback(queues.close)
        if with_supervisor:
            _register_hosts(LocalQueues(QueueService(store)))
            fleet = fleet_paths(
                heartbeat,
                heartbeat_clock,
                files=files,
                registry=SupervisorRegistry(queues, heartbeat, heartbeat_clock, files, version="1.0"),
                file=file,
                settings=lambda: settings,
                problems=lambda: list(FOREIGN),
            )
        thread = ServerThread(store, options, extensions=fleet)
        url = thread.start()
        queues.locate(url, token=TOKENS[roles[0]] if roles else None)
        stack.callback(store.close)
        stack.callback(thread.stop)
        yield ConsoleStage(thread, store, heartbeat_clock, files, url)


def _register_hosts(queues: LocalQueues) -> None:
    """Register the supervisors of three hosts: one that leads, one that stands by, and one that says odd things."""
    facts = {"pid": "4242", "reach": "network", "version": "1.0", "phase": "standby"}
    leads = {**facts, "host": "node-1", "url": OTHER_HOST, "phase": "leading"}
    queues.register(KIND, "node-1/a", leads, seconds=600)
    queues.register(KIND, "node-2/b", {**facts, "host": "node-2", "url": ""}, seconds=600)
    odd = {name: text[:100] for name, text in zip(("host", "url", "version", "phase"), FOREIGN, strict=False)}
    queues.register(KIND, "odd", {**facts, **odd}, seconds=600)


def _pool(name: str, *, queue: str) -> Pool:
    spec: PoolSpec = a_pool(name, queue=queue, slo=5.0)
    workers = (
        [a_worker(WORKER, "busy", ref="pid:77"), a_worker(ODD_WORKER, "idle", ref="pid:78")] if name == POOL else []
    )
    pool = Pool(name, spec, a_fleet(*workers, pool=name))
    pool.sample = a_sample(ages=[4.0, 1.5] if workers else [])
    pool.decision, pool.state = learn_and_decide(pool.sample, fleet=pool.fleet, spec=spec, state=pool.state, now=NOW)
    pool.counters.count_decision(pool.decision)
    return pool


def _fill_queues(queues: LocalQueues) -> None:
    quick = QueueSpec(QUEUE, max_leases=3, retry_min_seconds=0.0, retry_max_seconds=0.0)
    queues.put_queue(quick)
    queues.put_queue(replace(quick, name=ODD_QUEUE, max_leases=1, label=FOREIGN[0]))
    mail, odd = queues.queue(QUEUE), queues.queue(ODD_QUEUE)
    _die(mail, NewTask(PAYLOAD, name=DEAD_TASK, tag="send", headers={"trace": FOREIGN[1]}), leases=3)
    for number in range(2, 8):
        _die(mail, NewTask(b"ann", name=f"letter-{number}", tag="send"), leases=3)
    mail.add([NewTask(b"\x00\xff" * 40, name=f"waiting-{number}", tag="send") for number in range(9)])
    mail.add(NewTask(b"held", name="held-1", tag="slow", priority=9))
    (lease,) = mail.lease(worker=WORKER, seconds=600)
    mail.renew([Renewal(lease.token, 600.0, progress=Progress(0.5, FOREIGN[3][:200]))])
    (done,) = mail.lease(worker=WORKER)
    mail.delete(done)
    for text in FOREIGN:
        failure = Failure(error=text[:100], message=text, place=text[:200], host=text)
        _die(odd, NewTask(text.encode(), tag=text, headers={"said": text}), leases=1, worker=text, failure=failure)
    odd.add([NewTask(text.encode(), tag=text) for text in FOREIGN])
    queues.schedules.declare(
        [
            Schedule(SCHEDULE, QUEUE, cron="0 3 * * *", timezone="Europe/Berlin"),
            Schedule("lost", "no-such-queue", every=3600.0, tag=FOREIGN[0], origin="tasks:app"),
        ]
    )


def _die(
    queue: LocalQueue, task: NewTask, *, leases: int, worker: str = WORKER, failure: Failure | None = None
) -> None:
    """Add a task, and fail it until it is dead."""
    queue.add(task)
    for _ in range(leases):
        (lease,) = queue.lease(worker=worker)
        bounced = Failure(error="ValueError", message="not an address: 'ann'", place="tasks.py:14", host="host-1")
        queue.release(lease, error=failure or bounced)


def _fill_files(files: StateDir, pools: Sequence[Pool], *, now_seconds: float) -> None:
    files.path.mkdir(exist_ok=True)
    wall = WallTime(wall_seconds=now_seconds, monotonic=NOW)
    about = {"pid": 4242, "phase": "leading", "shown_at": now_seconds, "boot": "b"}
    files.write_snapshot({**about, **snapshot_of(pools, wall=wall)})
    for pool in pools:
        assert pool.decision is not None
        for number in range(12):
            sizes = {"current": number % 5, "target": (number + 1) % 5, "ready": number * 7 % 31}
            decided = {**pool.decision.record(), **sizes, "at": now_seconds - 600 + 45 * number}
            files.decisions.append(decided | {"why": FOREIGN[number % len(FOREIGN)]} if number % 2 else decided)
    workers = files.path / "workers"
    workers.mkdir()
    (workers / f"{WORKER}.log").write_text("".join(f"{text}\n" for text in FOREIGN), encoding="utf-8")
    certificate = {
        "pool": POOL,
        "ref": "pid:77",
        "cause": "signal",
        "signal": 9,
        "lived_seconds": 312.4,
        "memory_peak_bytes": 40_000_000,
        "held_total": 1,
        "held": [{"queue": QUEUE, "task": DEAD_TASK, "fate": "given back", "tag": "send"}],
    }
    for number, text in enumerate(FOREIGN):
        odd = {"worker": f"{text[:150]} {number}", "at": now_seconds - 900 + number, "detail": text}
        files.deaths.append({**certificate, **odd, "held": [], "last_lines": [text], "stack": [text]})
    last = {"worker": DEAD_WORKER, "at": now_seconds - 60, "detail": "SIGKILL", "last_lines": list(FOREIGN)}
    files.deaths.append({**certificate, **last, "stack": ["tasks.py:14 in send"]})
