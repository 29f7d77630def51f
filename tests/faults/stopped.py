"""Callers of two servers that are stopped and go on: each owns a queue, so it knows exactly what must be there.

A caller makes one call at a time and holds every answer against a model: counts of purges, redrives and changes of
all that match, leases by priority and within limits, what is paused, what is in the history. A server that goes on
after a stop reads the calls that were given up meanwhile; none of them may change a queue whose caller was answered by
the other server. Some callers know one server by two addresses: a call and its repeat then arrive in one batch.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random

from queue_core.client.connect import open_queues
from queue_core.errors import OutcomeUnknownError, QueueError, StoreUnavailableError
from queue_core.task import ANY, Lease, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs import Deletion
from queue_core.verbs.criteria import Search
from tests.faults.checker import Violation
from tests.faults.children import Nursery
from tests.faults.kill_store import STORE_MODULES
from tests.faults.outcome import Deadline, FaultBudget, FaultTally
from tests.faults.sites import StoreName, a_site
from tests.faults.store_children import serve_until_killed
from tests.support.eventually import eventually
from tests.support.stores.engines import EngineUnavailableError, free_port

CALLERS = 24
"""Each has a call under way when a server is stopped, which may come late."""
LEASE_SECONDS = 3_600.0
STOP_SECONDS = (1.0, 60.0)
GIVEN_UP_SECONDS = 4.2
"""After so long a client has turned to the other server."""
MAYBE_REPEATED_SECONDS = 3.0
"""A call that takes so long may have been given up at one server and repeated at the other."""
SHORT_SHARE = 0.25
MEAN_BEYOND_SECONDS = 2.0
RUN_SECONDS = (0.2, 1.0)
SETTLE_SECONDS = 3.0
START_SECONDS = 60.0
MOST_TASKS = 60
TAGS = ("parse", "render", "resize")


@dataclass(slots=True)
class ModelTask:
    """A task as its queue's only caller knows it; `token` "": nobody holds it."""

    tag: str
    priority: int
    state: TaskState = TaskState.READY
    token: str = ""


class WrongAnswerError(Exception):
    """An answer, or the store, differs from the model."""


@dataclass(slots=True)
class Stops:
    """The stops of the servers, one after the other: how many began, and when each ended that is over."""

    begun: int = 0
    ended_at: list[float] = field(default_factory=list)

    def may_run_late(self, number: int, *, now: float) -> bool:
        """Return whether a call that was given up in the stop of this number, from 1 on, may still be under way."""
        if number < 1:
            return False
        return len(self.ended_at) < number or now < self.ended_at[number - 1] + SETTLE_SECONDS


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The first try of a call that was repeated elsewhere: in which stop, and how many ready tasks it may hold."""

    stop: int
    holds: int


class QueueCaller:
    """The only caller of its queues, one after the other. Not thread-safe."""

    def __init__(
        self, url: str, name: str, random: Random, *, passes_over: bool = False, stops: Stops | None = None
    ) -> None:
        """Args:
        passes_over: whether a lease may pass over tasks whose rows a late call holds for a moment, and then leaves as
            they were, since it is refused: PostgreSQL's do, as leases don't wait for each other there. No more tasks
            than the late calls chose, and only until the server that was stopped with them has gone on.
        """
        self._passes_over = passes_over
        self._stops = stops or Stops()
        self._turn_at = 0.0
        self._chosen = 0
        self._given_up: list[GivenUp] = []
        self._queues = open_queues(url)
        self._name = name
        self._random = random
        self._number = 0
        self.calls: Counter[str] = Counter()
        self._verbs: list[tuple[int, Callable[[], None]]] = [
            (8, self.add),
            (8, self.lease),
            (5, self.exchange),
            (3, self.delete),
            (3, self.bury),
            (2, self.purge),
            (2, self.redrive),
            (2, self.retag),
            (1, self.delete_matching),
            (2, self.pause_or_resume),
            (1, self.limit),
            (4, self.look),
        ]
        self.begin()

    def begin(self) -> None:
        """Begin with a new queue; what becomes of the last one is not known."""
        self._number += 1
        self._tasks: dict[str, ModelTask] = {}
        self._ended = 0
        self._newest_ended: set[str] = set()
        self._paused = False
        self._most: int | None = None
        self._queue = self._queues.queue(f"{self._name}-{self._number}")
        self._queues.put_queue(QueueSpec(self._queue.name))

    def turn(self) -> None:
        """Make one call. Raises `WrongAnswerError`, and the client's errors."""
        verbs, weights = [verb for _, verb in self._verbs], [weight for weight, _ in self._verbs]
        verb = self._random.choices(verbs, weights)[0]
        self.calls[verb.__name__] += 1
        self._turn_at, self._chosen = time.monotonic(), 0
        try:
            verb()
        finally:
            if self._chosen and self._was_repeated():
                self._given_up.append(GivenUp(self._stops.begun, self._chosen))

    def close(self) -> None:
        """Close the connections."""
        self._queues.close()

    # -- verbs ----------------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Add a few tasks with tags and priorities."""
        if len(self._tasks) >= MOST_TASKS:
            self.purge()
            return
        drawn = [
            (self._random.choice(TAGS), self._random.choice((0, 0, 5, 9))) for _ in range(self._random.randint(1, 6))
        ]
        added = self._queue.add([NewTask(b"x", tag=tag, priority=priority) for tag, priority in drawn])
        for one, (tag, priority) in zip(added, drawn, strict=True):
            self._expect("status", one.status, "added")
            self._tasks[one.name] = ModelTask(tag, priority)

    def lease(self) -> None:
        """Lease some tasks, waiting a little or not."""
        count = self._random.randint(1, 5)
        self._chosen = count
        self._granted(self._queue.lease(count, seconds=LEASE_SECONDS, wait_seconds=self._wait()), count)

    def exchange(self) -> None:
        """Delete what it holds, as far as it draws it, and lease the next."""
        held, count = self._some_held(), self._random.randint(1, 3)
        self._chosen = count
        leases, lost = self._queue.exchange(
            [Deletion(task.token) for _, task in held], count=count, seconds=LEASE_SECONDS, wait_seconds=self._wait()
        )
        self._expect("lost tokens", lost, ())
        self._end(held)
        self._granted(leases, count)

    def delete(self) -> None:
        """Finish some tasks."""
        held = self._some_held()
        if held:
            self._queue.delete([task.token for _, task in held])
            self._end(held)

    def bury(self) -> None:
        """Let some tasks die."""
        held = self._some_held()
        if held:
            finished = self._queue.release([task.token for _, task in held], dead_reason="drawn")
            self._expect("released", len(finished), len(held))
            for _, task in held:
                task.state, task.token = TaskState.DEAD, ""
            self._note_ended([name for name, _ in held])

    def purge(self) -> None:
        """Delete all that live, or all dead ones."""
        dead = self._random.random() < 0.4
        gone = [name for name, task in self._tasks.items() if (task.state is TaskState.DEAD) == dead]
        self._chosen = len(gone)
        self._expect("purged", self._queue.purge(dead="only" if dead else "keep"), len(gone))
        self._note_ended([name for name in gone if self._tasks[name].state is TaskState.LEASED])
        for name in gone:
            del self._tasks[name]

    def redrive(self) -> None:
        """Redrive all dead tasks."""
        dead = self._in(TaskState.DEAD)
        self._chosen = len(dead)
        self._expect("redriven", self._queue.redrive(), len(dead))
        for task in dead:
            task.state = TaskState.READY

    def retag(self) -> None:
        """Give all ready tasks of a tag another one."""
        old, new = self._random.sample(TAGS, 2)
        found = [task for task in self._in(TaskState.READY) if task.tag == old]
        search = Search(TagFilter.of(old), frozenset({TaskState.READY}))
        self._chosen = len(found)
        batch = self._queue.change_matching("retag", search, dry_run=False, tag=new)
        self._expect("retagged", (batch.matched, batch.changed), (len(found), len(found)))
        for task in found:
            task.tag = new

    def delete_matching(self) -> None:
        """Delete all ready tasks of a tag."""
        tag = self._random.choice(TAGS)
        gone = [name for name, task in self._tasks.items() if task.tag == tag and task.state is TaskState.READY]
        search = Search(TagFilter.of(tag), frozenset({TaskState.READY}))
        self._chosen = len(gone)
        batch = self._queue.change_matching("delete", search, dry_run=False)
        self._expect("deleted", (batch.matched, batch.changed), (len(gone), len(gone)))
        for name in gone:
            del self._tasks[name]

    def pause_or_resume(self) -> None:
        """Pause the queue, or resume it."""
        if self._paused:
            self._queue.resume()
        else:
            self._queue.pause()
        self._paused = not self._paused

    def limit(self) -> None:
        """Set the limit of leases at a time, or lift it."""
        most = self._random.choice((None, 4, 20))
        created = self._queues.put_queue(QueueSpec(self._queue.name, max_in_flight=most))
        self._expect("created", created, False)
        self._most = most

    def look(self) -> None:
        """Compare the counts, the tasks one by one, and the newest ended leases with the model."""
        stats = self._queue.stats(tags=ANY)
        counts = (stats.ready, stats.in_flight, stats.dead, stats.paused)
        states = Counter(task.state for task in self._tasks.values())
        known = (states[TaskState.READY], states[TaskState.LEASED], states[TaskState.DEAD], self._paused)
        self._expect("ready, in flight, dead, paused", counts, known)
        page = self._queue.peek(limit=MOST_TASKS * 2)
        self._expect("tasks", {task.shown_name: task.tag for task in page.tasks}, self._tags())
        history = self._queue.history(limit=5)
        self._expect("ended leases", len(history.leases), min(5, self._ended))
        newest = {lease.name for lease in history.leases[: len(self._newest_ended)]}
        self._expect("the newest ended leases are those of the last call", newest <= self._newest_ended, True)

    # -- the model ------------------------------------------------------------------------------------------------

    def _granted(self, leases: list[Lease], count: int) -> None:
        ready = self._in(TaskState.READY)
        room = len(ready) if self._most is None else max(0, self._most - len(self._in(TaskState.LEASED)))
        expected = 0 if self._paused else min(count, len(ready), room)
        best = sorted((task.priority for task in ready), reverse=True)[:expected]
        for lease in leases:
            task = self._tasks.get(lease.name)
            if task is None or task.state is not TaskState.READY:
                raise WrongAnswerError(f"{self._where()}: {lease.name} was leased, which is {task}")
            self._expect("tag", lease.tag, task.tag)
        granted = [self._tasks[lease.name].priority for lease in leases]
        passed_over = (Counter(best) - Counter(granted)).total()
        if 0 < passed_over <= self._may_pass_over():
            self.calls["passed over"] += 1
            self._expect("leases in order of priority", granted, sorted(granted, reverse=True))
            self._expect("more leases than there may be", len(granted) > expected, False)
        else:
            self._expect("priorities of the leases", granted, best)
        for lease in leases:
            task = self._tasks[lease.name]
            task.state, task.token = TaskState.LEASED, lease.token

    def _may_pass_over(self) -> int:
        """Return how many ready tasks the first tries of repeated calls may hold just now."""
        if not self._passes_over:
            return 0
        now = time.monotonic()
        self._given_up = [one for one in self._given_up if self._stops.may_run_late(one.stop, now=now)]
        return sum(one.holds for one in self._given_up) + (self._chosen if self._was_repeated() else 0)

    def _was_repeated(self) -> bool:
        """Return whether the present call may have been given up at one server and repeated at the other."""
        return time.monotonic() - self._turn_at > MAYBE_REPEATED_SECONDS

    def _end(self, held: list[tuple[str, ModelTask]]) -> None:
        for name, _ in held:
            del self._tasks[name]
        self._note_ended([name for name, _ in held])

    def _note_ended(self, names: Sequence[str]) -> None:
        """Note the leases that one call ended: of tasks that are done, dead or removed."""
        if names:
            self._ended += len(names)
            self._newest_ended = set(names)

    def _in(self, state: TaskState) -> list[ModelTask]:
        return [task for task in self._tasks.values() if task.state is state]

    def _some_held(self) -> list[tuple[str, ModelTask]]:
        held = [(name, task) for name, task in self._tasks.items() if task.token]
        return self._random.sample(held, min(len(held), self._random.randint(1, 4)))

    def _tags(self) -> dict[str, str | None]:
        return {name: task.tag for name, task in self._tasks.items()}

    def _wait(self) -> float:
        return self._random.choice((0.0, 0.0, 0.0, 0.05)) if self._in(TaskState.READY) else 0.0

    def _expect(self, what: str, told: object, known: object) -> None:
        if told != known:
            raise WrongAnswerError(f"{self._where()}: {what}: answered {told}, must be {known}")

    def _where(self) -> str:
        return f"{self._queue.name}, call {self.calls.total()}"


@dataclass(frozen=True, slots=True)
class StopConditions:
    """How many callers there are, and how long a server is stopped."""

    callers: int = CALLERS
    bounds_seconds: tuple[float, float] = STOP_SECONDS

    def seconds(self, random: Random) -> float:
        """Draw how long: some stops end before the clients give up, most afterwards."""
        least, most = self.bounds_seconds
        if random.random() < SHORT_SHARE:
            return random.uniform(least, GIVEN_UP_SECONDS)
        return min(most, GIVEN_UP_SECONDS + random.expovariate(1 / MEAN_BEYOND_SECONDS))

    serve_it: Callable[..., None] = serve_until_killed


USUAL = StopConditions()


def stopped_servers(
    store: StoreName, budget: FaultBudget, folder: Path, *, conditions: StopConditions = USUAL
) -> FaultTally:
    """Run until the budget is used up; the first wrong answer of a caller is its last."""
    tally = FaultTally(f"stopped-{store}")
    try:
        with a_site(store) as site:
            nursery = Nursery(__name__, f"queue_core.stores.{STORE_MODULES[store]}")
            _Run(tally, budget, folder, conditions, site.new_place(1).url, nursery).run()
    except EngineUnavailableError as error:
        tally.skipped = str(error)
    return tally


@dataclass(slots=True)
class _Run:
    tally: FaultTally
    budget: FaultBudget
    folder: Path
    how: StopConditions
    url: str
    nursery: Nursery
    stops: Stops = field(default_factory=Stops)
    is_over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Serve, call and stop; then let all go on, and look once more."""
        random = Random(f"{self.budget.seed}/stopped")
        deadline = self.budget.started()
        ports = [free_port(), free_port()]
        with ExitStack() as stack:
            servers = []
            for index, port in enumerate(ports):
                arguments = (self.folder, f"server-{index}", self.url, port, 0.0, "strict")
                server = self.nursery.start(self.how.serve_it, *arguments, name=f"server-{index}")
                stack.callback(self.nursery.kill, server)
                servers.append(server)
                eventually(partial(_answers, port), seconds=START_SECONDS)
            callers = [
                QueueCaller(
                    _urls(ports, index),
                    f"c{index}",
                    Random(f"{self.budget.seed}/{index}"),
                    passes_over=self.tally.scenario == "stopped-postgresql",
                    stops=self.stops,
                )
                for index in range(self.how.callers)
            ]
            threads = [threading.Thread(target=self._call, args=(caller,), daemon=True) for caller in callers]
            for thread in threads:
                thread.start()
            self._stop(servers, random, deadline)
            self.is_over.set()
            for thread in threads:
                thread.join()
            time.sleep(SETTLE_SECONDS)  # whatever a server still reads of calls that were given up
            for caller in callers:
                self._checked(caller, caller.look)
                for name, count in caller.calls.items():
                    self.tally.counts[name] = self.tally.counts.get(name, 0) + count
                caller.close()
        calls = ", ".join(f"{name} {count}" for name, count in sorted(self.tally.counts.items()))
        self.tally.summary = f"2 servers, {self.tally.operations} operations, {self.tally.unknown} unknown: {calls}"

    def _stop(self, servers: list[ForkServerProcess], random: Random, deadline: Deadline) -> None:
        """Stop one server after the other, each time the one that is called, until there were enough operations."""
        for server in cycle(servers):
            if deadline.is_over or self._is_enough() or self.tally.violations:
                return
            assert server.pid is not None
            seconds = self.how.seconds(random)
            self.stops.begun += 1
            os.kill(server.pid, signal.SIGSTOP)
            try:
                time.sleep(seconds)
            finally:
                os.kill(server.pid, signal.SIGCONT)
                self.stops.ended_at.append(time.monotonic())
            with self.lock:
                self.tally.counts["stop server"] = self.tally.counts.get("stop server", 0) + 1
            time.sleep(random.uniform(*RUN_SECONDS))

    def _is_enough(self) -> bool:
        return self.budget.operations is not None and self.tally.operations >= self.budget.operations

    def _call(self, caller: QueueCaller) -> None:
        while not self.is_over.is_set() and self._checked(caller, caller.turn):
            pass

    def _checked(self, caller: QueueCaller, call: Callable[[], None]) -> bool:
        """Make a call; False when the caller is not to go on."""
        try:
            call()
        except OutcomeUnknownError:
            with self.lock:
                self.tally.unknown += 1
            return self._begin_again(caller)
        except StoreUnavailableError:
            return True  # nothing was changed, as the next look shows
        except (WrongAnswerError, QueueError) as error:
            with self.lock:
                self.tally.found([Violation("I14", f"{type(error).__name__}: {error}")], "stopped servers")
            return False
        with self.lock:
            self.tally.operations += 1
        return True

    def _begin_again(self, caller: QueueCaller) -> bool:
        while not self.is_over.is_set():
            try:
                caller.begin()
            except StoreUnavailableError:
                continue
            return True
        return False


def _urls(ports: list[int], index: int) -> str:
    """Return a caller's servers: two, either one first, or the same one by two addresses."""
    first, second = ports[index % 2], ports[(index + 1) % 2]
    if index % 4 == 3:
        return f"http://127.0.0.1:{first},http://localhost:{first}"
    return f"http://127.0.0.1:{first},http://127.0.0.1:{second}"


def _answers(port: int) -> bool:
    queues = open_queues(f"http://127.0.0.1:{port}", timeout_seconds=2.0)
    try:
        queues.queues()
    except StoreUnavailableError:
        return False
    finally:
        queues.close()
    return True
