"""Turns of a store in this process: what arrives in one turn of the loop shares a transaction, and a sync."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import structlog

from queue_core.errors import QueueError, StoreError, StoreFullError
from queue_core.server import events
from queue_core.server.disk import Committed, Disk, Entry, new_entry
from queue_core.server.returning import MAX_RETURNING, Returning
from queue_core.server.turns import MAX_STEPS_PER_TURN, Done, Follow, Follower, Late, Prepare, run_step, sync, tell
from queue_core.service import QueueService, Step
from queue_core.store import Meanwhile, Unit
from queue_core.verbs import Turn

T = TypeVar("T")

SLOW_SYNC_SECONDS = 0.002
"""A disk slower than this is waited for in a thread. A faster one is not worth the two hops: the loop would find
more requests after them, but answers each of them later."""
INSTANT_SYNC_SECONDS = 0.000_04
"""A sync that takes less (a relaxed store, or memory) is not worth sharing."""
MAX_TURNS_PER_SYNC = 4
"""Callers that come back while a turn is committed get into its sync; a stream of them must not put it off for ever."""
MAX_ROUNDS = 4
"""How many times round the loop a turn waits for callers who are expected: about 25 us, less than a transaction of
their own costs. Eight and sixteen gained nothing more."""
MAX_READS = 32
"""How often sockets are read for callers who are missing in a turn, where that goes without the loop: about 45 us."""
MAX_READS_AHEAD = 64
"""How often they are read for the first of a turn before the loop sleeps: about 90 us. To sleep and be woken would keep
a worker waiting that needs no more than that for its task."""
MAX_PREPARED = 8
"""Answers made ready while the disk writes, which takes 40 us or more: these take about as long."""
TURNS_WITHOUT = 16
"""Turns without such a look after one that saw nobody: tasks take longer, or there is no processor to spare."""

log = structlog.get_logger()


class LoopTurns:
    """`Turns` that commit in the loop itself: nothing is faster for a file or for memory."""

    is_beside = False

    def __init__(
        self,
        service: QueueService,
        *,
        after_turn: Callable[[], None] = lambda: None,
        returning: Returning | None = None,
    ) -> None:
        """Args:
        after_turn: called in the loop after the answers of each turn.
        returning: those who were answered last, as far as they can be read without the loop.
        """
        self._service = service
        self._after_turn = after_turn
        self._returning = Returning() if returning is None else returning
        self._follow: Follow = _nobody
        self._entries: list[Entry] = []
        self._is_scheduled = False
        self._is_turning = False
        self._is_to_look = False
        self._turns_without = 0
        self._rounds = 0
        self._expected = 1
        """Callers who shared each of the last two syncs: answered together, they come back together, so that a turn
        goes round the loop for them. Twice in a row, as two that meet by chance are not to be waited for."""
        self._shared = 1
        self._sync_seconds = 0.0
        self._unsynced: list[Committed] = []
        self._unsynced_callers = 0
        self._disk = Disk(service, self._synced)
        self.failure: StoreError | None = None

    @property
    def is_syncing(self) -> bool:
        """Whether a change is on its way to the disk, seen by readers but not durable yet."""
        return bool(self._unsynced) or self._disk.is_busy

    def submit(
        self,
        step: Step[object],
        done: Done,
        *,
        prepare: Prepare | None = None,
        late: Late | None = None,  # noqa: ARG002 - the protocol's
        size_bytes: int = 0,  # noqa: ARG002
        unit: Unit = "transaction",  # noqa: ARG002
    ) -> None:
        """See `Turns.submit`; nothing comes late here, and nothing waits for long. No store here minds the unit."""
        self._entries.append(new_entry(step, done, prepare))
        self._schedule()

    def begin(self) -> None:
        """See `Turns.begin`."""
        if self._is_turning or not self._entries or not 1 < self._expected <= MAX_RETURNING:
            return
        if self._missing() <= self._near():
            self._take_turn()

    def follow_with(self, follow: Follow) -> None:
        """See `Turns.follow_with`."""
        self._follow = follow

    async def run(self, step: Step[T]) -> T:
        """See `Turns.run`."""
        return await run_step(self, step)

    def look(self, step: Step[object], done: Done) -> None:
        """See `Turns.look`."""
        try:
            outcome = self._service.look(step)
        except QueueError as error:
            outcome = error
        tell(done, outcome)

    def close(self) -> None:
        """Wait for the disk and end its thread."""
        self._disk.close()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if not self._entries:
            return  # theirs was begun at once
        if self._rounds < MAX_ROUNDS and self._missing() > self._near():
            self._rounds += 1
            self._schedule()
            return
        self._take_turn()

    def _take_turn(self, *, reads: int = MAX_READS) -> None:
        """Args:
        reads: how often the sockets of those who are missing are read at most, before the first of them is here.
        """
        self._rounds = 0
        self._is_to_look = False
        entries = self._entries[:MAX_STEPS_PER_TURN]
        del self._entries[:MAX_STEPS_PER_TURN]
        self._is_turning = True
        try:
            committed = self._commit(entries, reads=reads)
        finally:
            self._is_turning = False
        if not entries:  # nobody came
            self._turns_without = TURNS_WITHOUT
            return
        if self._entries:
            self._schedule()
        if committed is not None:
            self._await_sync(committed)
        is_full = len(self._unsynced) >= MAX_TURNS_PER_SYNC or (self._missing() <= 0 and self._expected > 1)
        if is_full or self._sync_seconds < INSTANT_SYNC_SECONDS:
            self._sync()
        elif self._unsynced:
            # Twice round the loop: it reads the sockets after what was scheduled before.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._sync_unless_more)

    def _missing(self) -> int:
        """Callers who are expected to share the next sync and are not here yet; none when that is negative."""
        return self._expected - len(self._entries) - self._unsynced_callers

    def _near(self) -> int:
        """How many callers can be read without the loop; none where many are expected, as it reads those faster."""
        return len(self._returning) if self._expected <= MAX_RETURNING else 0

    def _look_ahead(self) -> None:
        """Begin a turn for those who were answered together while they are on their way back: the transaction is
        open when the first of them is read."""
        if self._is_to_look and not self._entries:
            self._take_turn(reads=MAX_READS_AHEAD)

    def _hear(self, entries: list[Entry], reads: int) -> Iterator[Entry]:
        """Those who are missing, as they come back while the turn of `entries`, to which they are added, goes on."""
        while reads > 0 and 0 < self._missing() - len(entries) <= self._near():
            reads -= self._returning.hear()
            heard, self._entries = self._entries, []
            if heard:
                reads = min(reads, MAX_READS)
            entries += heard  # before the first of them is run: all are to be told if that breaks the turn
            yield from heard

    def _sync_unless_more(self) -> None:
        if not self._entries:
            self._sync()

    def _sync(self) -> None:
        committed, self._unsynced = self._unsynced, []
        if not committed:
            return
        self._returning.clear()
        before, self._shared, self._unsynced_callers = self._shared, self._unsynced_callers, 0
        self._expected = min(before, self._shared)
        if self._sync_seconds > SLOW_SYNC_SECONDS or self._disk.is_busy:
            self._disk.submit(committed)
            return
        began_at = self._service.clock.monotonic()
        failure = sync(self._service, committed[-1].batch, meanwhile=_preparing(committed))
        self._synced(committed, failure, self._service.clock.monotonic() - began_at)

    def _commit(self, entries: list[Entry], *, reads: int = MAX_READS) -> Committed | None:
        """Commit their steps. Those who come in time to go with them are added to `entries`."""
        followers: list[Follower] = []
        try:
            batch = self._service.commit(
                [entry.step for entry in entries], follow=partial(self._others, entries, followers, reads)
            )
            everybody = [*entries, *[new_entry(follower.step, follower.done) for follower in followers]]
            return Committed(everybody, batch, len(entries))
        except StoreFullError as error:
            _send_back(followers)
            if self._service.store.make_room():
                return self._commit(entries, reads=0)
            self._fail(entries, error)
        except StoreError as error:
            _send_back(followers)
            self._fail(entries, error)
        except Exception as error:
            _send_back(followers)
            if len(entries) > 1:  # one broken step must not take the others with it
                for entry in entries:
                    self._commit_alone(entry)
                return None
            log.exception(events.TURN_FAILED)
            for entry in entries:
                tell(entry.done, error)
        return None

    def _others(
        self, entries: list[Entry], followers: list[Follower], reads: int, turn: Turn
    ) -> Iterator[Step[object]]:
        """Who goes with a turn besides those it was begun for; they are added to the lists."""
        for entry in self._hear(entries, reads):
            turn.now = self._service.clock.now()  # it may have been called after the turn had begun
            yield entry.step
        for follower in self._follow(turn):
            followers.append(follower)
            yield follower.step

    def _commit_alone(self, entry: Entry) -> None:
        """A transaction for one step, after one of its companions broke theirs."""
        committed = self._commit([entry])
        if committed is not None:
            self._await_sync(committed)

    def _await_sync(self, committed: Committed) -> None:
        self._unsynced.append(committed)
        self._unsynced_callers += committed.callers

    def _synced(self, committed: Sequence[Committed], failure: StoreError | None, seconds: float) -> None:
        self._sync_seconds += (seconds - self._sync_seconds) / 8
        for one in committed:
            if failure is not None:
                self._fail(one.entries, failure)
                continue
            self.failure = None
            for entry, outcome in zip(one.entries, one.batch.outcomes, strict=True):
                tell(entry.done, outcome)
        if failure is None:
            # After the answers: who got one is at work meanwhile, and a lease that found nothing waits by now, so
            # that a wake-up of its own turn finds it.
            for one in committed:
                self._service.publish(one.batch)
        self._after_turn()
        if self._turns_without:
            self._turns_without -= 1
        elif 1 < self._expected <= len(self._returning):
            self._is_to_look = True
            asyncio.get_running_loop().call_soon(self._look_ahead)  # after all that the loop has to do now

    def _fail(self, entries: Sequence[Entry], error: StoreError) -> None:
        if self.failure is None:
            log.error(events.STORE_FAILED, error=str(error))
        self.failure = error
        for entry in entries:
            tell(entry.done, error)


def _preparing(committed: Sequence[Committed]) -> Meanwhile | None:
    """Has the first answers made ready; None: there is nothing to do meanwhile."""
    told = [
        (entry.prepare, outcome)
        for one in committed
        for entry, outcome in zip(one.entries, one.batch.outcomes, strict=True)
        if entry.prepare is not None
    ]
    return partial(_prepare, told[:MAX_PREPARED]) if told else None


def _prepare(told: Sequence[tuple[Prepare, object]]) -> None:
    for prepare, outcome in told:
        tell(prepare, outcome)


def _nobody(_turn: Turn) -> tuple[()]:
    return ()


def _send_back(followers: Sequence[Follower]) -> None:
    for follower in followers:
        follower.back()
