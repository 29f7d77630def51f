"""C2: the fifteen situations in which leases keep their promises, on every store, and on Redis to compare with.

Six are of a channel, nine of workers: those run one after the other with as few starts of workers as possible.
"""

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import kombu

from queue_core.task import TaskState
from tests.celery.claims import Claim, Conditions, Figure
from tests.celery.sites import Site, a_site, kill_run

LEASE_SECONDS = 2.0
ON_CHANNELS = (
    "a requeued message comes again, said to be redelivered",
    "deliveries are counted, and what was only prefetched is not",
    "a prefetch count is exact",
    "what a closed connection had comes back at once",
    "a message rejected for good is kept as dead, with its reason",
    "a message at its limit is dead, with its reason",
)
OF_WORKERS = (
    "a task longer than its lease runs once",
    "a prefetched task that waits longer than its lease runs once",
    "an eta task that a worker holds longer than its lease runs once",
    "a worker told to stop ends what runs, and gives back what it prefetched",
    "a worker cut short leaves nothing undone",
    "a killed worker's task runs again when its lease ends",
    "a killed child's task runs again at once",
    "a frozen worker's late acknowledgement ends nothing of its successor's",
    "a task runs once across a restart of the broker",
)
ENDING_TASKS = ("prefork", "threads")
"""Pools in which a task that SIGQUIT cuts short runs again, or to its end: in others Celery has it fail."""
NOT_CUT_BEFORE = {"solo": "5.7"}
"""Pools whose busy worker does not end of SIGQUIT before these versions, at any broker: Celery can't cancel tasks."""
SITUATIONS = (*ON_CHANNELS, *OF_WORKERS)


@dataclass
class Tally:
    """What held, and what did not, with its reason."""

    held: list[str] = field(default_factory=list)
    short: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def situation(self, name: str) -> Iterator[None]:
        """Count a situation as held unless its block raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the next situation is another one
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.short[name] = f"{type(error).__name__}: {str(error)[:120]} ({place.name})"
        else:
            self.held.append(name)


def claims() -> list[Claim]:
    """Return this section's claims."""
    return [
        Claim("C2", "lease suite on each store", measure_stores),
        Claim("C5", "lease suite with each pool", measure_pools, of_versions=True),
    ]


def measure_stores(conditions: Conditions) -> Figure:
    """Run it on each store and on Redis, with prefork."""
    tallies = {store: run_suite(store, "prefork", conditions) for store in (*conditions.stores, "plain redis")}
    compared = tallies.pop("plain redis")
    least = min(len(tally.held) for tally in tallies.values())
    notes = [*notes_of(tallies), f"plain redis: {len(compared.held)} of {len(SITUATIONS)}"]
    text = f"{least} of {len(SITUATIONS)}; plain redis {len(compared.held)}"
    return Figure(text, f"{len(SITUATIONS)} of {len(SITUATIONS)}", least == len(SITUATIONS), tuple(notes))


def measure_pools(conditions: Conditions) -> Figure:
    """Run it with each pool, on the first store."""
    tallies = {pool: run_suite(conditions.stores[0], pool, conditions) for pool in conditions.pools}
    least = min(len(tally.held) + len(tally.left_out) for tally in tallies.values())
    text = ", ".join(f"{pool} {len(tally.held)}" for pool, tally in tallies.items())
    bar = f"{len(SITUATIONS)} each, but for what is left out"
    return Figure(text, bar, least == len(SITUATIONS), tuple(notes_of(tallies)))


def notes_of(tallies: dict[str, Tally]) -> list[str]:
    """Return what was short or left out, a line each."""
    return [
        f"{of}: {kind}: {name}: {why}"
        for of, tally in tallies.items()
        for kind, whys in (("short", tally.short), ("left out", tally.left_out))
        for name, why in whys.items()
    ]


def run_suite(store: str, pool: str, conditions: Conditions) -> Tally:
    """Run the fifteen situations."""
    tally = Tally()
    with a_site(
        store, conditions.folder, version=conditions.version, LAB_LEASE_SECONDS=str(LEASE_SECONDS), LAB_ETA="worker"
    ) as site:
        on_channels(site, tally)
        Workers(site, pool, tally, conditions.version).run()
    return tally


# -- of channels -------------------------------------------------------------------------------------------------------


class Inbox:
    """A consumer of one queue, and what it was given."""

    def __init__(self, site: Site, queue: str, *, prefetch: int = 0) -> None:
        self.connection = site.connect()
        self.messages: list[Any] = []
        self._consumer = kombu.Consumer(
            self.connection.channel(), [queue_of(queue)], callbacks=[self._take], accept=["json"]
        )
        self._consumer.qos(prefetch_count=prefetch)
        self._consumer.consume()

    def _take(self, _body: object, message: Any) -> None:
        self.messages.append(message)

    def drained(self, count: int, *, seconds: float = 10.0) -> list[Any]:
        """Return the messages once there are so many, or after a second without one."""
        self._drain(until=lambda: len(self.messages) >= count, seconds=seconds)
        self._drain(until=lambda: False, seconds=0.5)
        return self.messages

    def _drain(self, *, until: Callable[[], bool], seconds: float) -> None:
        try:
            while not until():
                self.connection.drain_events(timeout=seconds)
        except TimeoutError:
            pass

    def close(self) -> None:
        """End it as a program does that stops: what it has goes back."""
        self.connection.close()


def queue_of(name: str) -> kombu.Queue:
    """Return a queue of a direct exchange."""
    return kombu.Queue(name, kombu.Exchange(name), routing_key=name, queue_arguments={"x-delivery-limit": 2})


def publish(site: Site, queue: str, *bodies: str) -> None:
    """Publish messages to a queue."""
    with site.app.connection_for_write() as connection, connection.Producer(serializer="json") as producer:
        for body in bodies:
            producer.publish(body, exchange=queue, routing_key=queue, declare=[queue_of(queue)], retry=False)


def on_channels(site: Site, tally: Tally) -> None:
    """Run the situations of channels, each with its queue."""
    again, counted, exact, closed, refused, limit = ON_CHANNELS
    with tally.situation(again):
        publish(site, "again", "x")
        inbox = Inbox(site, "again")
        (first,) = inbox.drained(1)
        assert not first.delivery_info.get("redelivered")
        first.requeue()
        second = inbox.drained(2)[1]
        assert second.delivery_info["redelivered"]
        second.ack()
        inbox.close()
    with tally.situation(counted):
        publish(site, "counted", "x")
        for _ in range(2):
            inbox = Inbox(site, "counted")
            assert [one.delivery_info["delivery_count"] for one in inbox.drained(1)] == [1]
            inbox.close()
    with tally.situation(exact):
        publish(site, "exact", *"abcde")
        inbox = Inbox(site, "exact", prefetch=3)
        assert len(inbox.drained(3)) == 3
        inbox.messages[0].ack()
        assert len(inbox.drained(4)) == 4
        inbox.close()
    with tally.situation(closed):
        publish(site, "closed", "x")
        inbox = Inbox(site, "closed")
        inbox.drained(1)
        inbox.close()
        inbox = Inbox(site, "closed")
        assert len(inbox.drained(1, seconds=1.0)) == 1
        inbox.messages[0].ack()
        inbox.close()
    with tally.situation(refused):
        publish(site, "refused", "x")
        inbox = Inbox(site, "refused")
        inbox.drained(1)[0].reject()
        inbox.close()
        assert dead_reason(site, "refused") == "rejected by its worker"
    with tally.situation(limit):
        publish(site, "limit", "x")
        inbox = Inbox(site, "limit")
        inbox.drained(1)[0].requeue()
        inbox.drained(2)[1].requeue()
        assert len(inbox.drained(3, seconds=1.0)) == 2
        inbox.close()
        assert "the process that ran it died" in dead_reason(site, "limit")


def dead_reason(site: Site, queue: str) -> str:
    """Return why the one dead task of a queue is dead."""
    (dead,) = site.queues().queue(queue).peek(states=frozenset({TaskState.DEAD})).tasks
    return str(dead.reason)


# -- of workers --------------------------------------------------------------------------------------------------------


class Workers:
    """The situations of workers, in an order in which one's worker is the next one's."""

    def __init__(self, site: Site, pool: str, tally: Tally, version: str) -> None:
        self.site = site
        self.pool = pool
        self.tally = tally
        self.version = version
        self._number = 0

    def run(self) -> None:
        """Run them, with five workers."""
        once, prefetched, eta, warm, cold, killed, child, frozen, restart = OF_WORKERS
        worker = self._start(LAB_PREFETCH="4")
        self._long_ones(once, prefetched, eta)
        steps = {warm: self._warm, cold: self._cold, killed: self._killed, child: self._child, frozen: self._frozen}
        if self.version < NOT_CUT_BEFORE.get(self.pool, ""):
            del steps[cold]
            self.tally.left_out[cold] = f"Celery's own before {NOT_CUT_BEFORE[self.pool]}, at Redis too"
        for name, step in {**steps, restart: self._restart}.items():
            worker = self._done(name, step, worker)

    def _done(self, name: str, step: Callable[[str], str], worker: str) -> str:
        """Take a step with an idle worker, and return another, or the same."""
        with self.tally.situation(name):
            return step(worker)
        for left in list(self.site.workers):
            self.site.kill(left)
        return self._start()

    def _start(self, *, wait: bool = True, **options: str) -> str:
        self._number += 1
        name = f"w{self._number}"
        self.site.start(name, pool=self.pool, wait=wait, **options)
        return name

    def _long_ones(self, once: str, prefetched: str, eta: str) -> None:
        site, name_of = self.site, {once: "long", prefetched: "behind", eta: "due"}
        site.send("nap", "long", 3 * LEASE_SECONDS)
        site.begun("long")
        site.send("nap", "behind", 0.1)
        site.send("nap", "due", 0.1, countdown=2 * LEASE_SECONDS)
        for name in name_of.values():
            site.ended(name)
        site.wait_quiet()
        for situation, name in name_of.items():
            with self.tally.situation(situation):
                assert len(site.runs(name)) == 1, f"{len(site.runs(name))} runs"

    def _warm(self, first: str) -> str:
        site = self.site
        for name in ("stop-1", "stop-2"):
            site.send("hold", name)
        site.begun("stop-1")
        second = self._start()
        site.tell(first, signal.SIGTERM)
        for name in ("stop-1", "stop-2"):
            site.let_end(name)
            site.ended(name)
        assert site.workers.pop(first).wait(60) == 0
        site.wait_quiet()
        for name in ("stop-1", "stop-2"):
            assert [run.redelivered for run in site.runs(name)] == [False], f"{name}: not one first run"
        return second

    def _cold(self, second: str) -> str:
        site = self.site
        site.send("nap", "cold", 4)
        site.begun("cold")
        site.tell(second, signal.SIGQUIT)
        third = self._start()
        site.workers.pop(second).wait(60)
        if self.pool in ENDING_TASKS:
            site.ended("cold")
        site.wait_quiet()
        assert len(site.runs("cold")) <= 2
        return third

    def _killed(self, third: str) -> str:
        site = self.site
        site.send("hold", "killed")
        site.begun("killed")
        site.kill(third)
        fourth = self._start()
        again = site.begun("killed", 2, seconds=30)[1]
        site.let_end("killed")
        site.wait_quiet()
        assert again.redelivered
        return fourth

    def _child(self, fourth: str) -> str:
        site = self.site
        if self.pool == "prefork":
            site.send("hold", "child")
            kill_run(site.begun("child")[0])
        else:  # no child to kill: the task goes back by itself
            site.send("requeued", "child", 1)
        again = site.begun("child", 2, seconds=10)[1]
        site.let_end("child")
        site.wait_quiet()
        assert again.redelivered
        return fourth

    def _frozen(self, fourth: str) -> str:
        site = self.site
        site.send("hold", "frozen")
        site.begun("frozen")
        fifth = self._start(LAB_LEASE_SECONDS="20")
        site.tell(fourth, signal.SIGSTOP)
        site.begun("frozen", 2, seconds=30)
        before = site.left()
        site.let_end("frozen", again=False)
        site.tell(fourth, signal.SIGCONT)
        site.ended("frozen")
        site.stop_late(fourth)
        assert (before, site.left()) == (1, 1), "the late acknowledgement ended it"
        site.let_end("frozen")
        site.wait_quiet()
        assert len(site.runs("frozen", "end")) == 2
        return fifth

    def _restart(self, fifth: str) -> str:
        site = self.site
        site.send("nap", "restart", 6)
        site.begun("restart")
        site.restart_broker()
        site.ended("restart")
        site.wait_quiet()
        assert len(site.runs("restart")) == 1, f"{len(site.runs('restart'))} runs"
        return fifth
