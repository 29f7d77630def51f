"""Watch for tasks whose tag no pool works on, at a bounded cost; log when that begins, and when it ends.

Registers at the store what each pool works on, for whoever adds tasks (ADR 26).

A tag that somebody leases all the same, a program beside the pools, is not one of them.
"""

from collections.abc import Mapping
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import UnservedTag
from orchestrator.config.pools import PoolSpec
from orchestrator.source import WorkSource
from queue_core.log import get_logger
from queue_core.process.wording import counted

log = get_logger()

LOOK_SECONDS: Final = 2.0
"""Time between two looks at a queue."""
COST: Final = 100.0
"""A queue is looked at again after so many times the time that the last look took: it takes a hundredth of the time."""
MAX_LOOKS: Final = 4
"""Queues of one pass, at most."""
MAX_LOGGED: Final = 5
"""Tags of one queue that are logged at a time; the others are counted."""
PUBLISHED_SECONDS: Final = 3_600.0
"""What a pool works on is registered again after this time; a change of it at once."""
RETRY_SECONDS: Final = 30.0
"""Pause after a registration that failed."""
MAX_PUBLISHED: Final = 4
"""Pools that are registered in one pass, at most."""
MAX_POOLS: Final = 200
"""Pools that are registered, at most: of more, `add` knows what the settings say."""

_AT_ONCE: Final = Monotonic(float("-inf"))
_Tags = dict[str | None, UnservedTag]


class UnservedWatch:
    """The tags of waiting tasks that no pool works on, by queue. Belongs to one thread."""

    def __init__(self, source: WorkSource, *, clock: MonotonicClock) -> None:
        self._source = source
        self._clock = clock
        self._due: dict[str, Monotonic] = {}
        self._leases: dict[str, dict[str | None, int]] = {}
        self._found: dict[str, _Tags] = {}
        self._published: dict[str, tuple[object, Monotonic]] = {}
        self._publish_at = _AT_ONCE

    @property
    def found(self) -> tuple[UnservedTag, ...]:
        """The tags as of the last looks, by queue."""
        return tuple(tag for queue in sorted(self._found) for tag in self._found[queue].values())

    def look(self, specs: Mapping[str, PoolSpec]) -> None:
        """Look at the queues that are due; `specs` are the pools of the settings, with the tags that they work on."""
        self._publish(specs)
        by_queue: dict[str, list[PoolSpec]] = {}
        for spec in specs.values():
            for queue in spec.queues:
                by_queue.setdefault(queue, []).append(spec)
        watched = {
            queue: pools for queue, pools in by_queue.items() if all(pool.tags or pool.untagged for pool in pools)
        }
        for queue in [*self._due.keys() - watched.keys()]:
            del self._due[queue]
            self._leases.pop(queue, None)
            self._log(queue, self._found.pop(queue, {}), {}, watched_by=by_queue.get(queue, []))
        now = self._clock.monotonic()
        due = sorted((self._due.get(queue, _AT_ONCE), queue) for queue in watched)
        for at, queue in due[:MAX_LOOKS]:
            if at <= now:
                self._look_at(queue, watched[queue])

    def _publish(self, specs: Mapping[str, PoolSpec]) -> None:
        """Register pools that work on other tags than before, and end the registrations of those that are gone."""
        now = self._clock.monotonic()
        ours = [spec for spec in specs.values() if spec.source is None][:MAX_POOLS]
        due = [spec for spec in ours if self._is_due(spec, now)][:MAX_PUBLISHED]
        gone = [*self._published.keys() - {spec.name for spec in ours}][:MAX_PUBLISHED]
        if now < self._publish_at or not (due or gone):
            return
        try:
            self._source.publish(due, gone=gone)
        except SourceUnavailableError:  # the turns log it; a token may also not allow it
            self._publish_at = Monotonic(now + RETRY_SECONDS)
            return
        self._published.update({spec.name: (_work_of(spec), now) for spec in due})
        for name in gone:
            del self._published[name]

    def _is_due(self, spec: PoolSpec, now: Monotonic) -> bool:
        work, at = self._published.get(spec.name, (None, _AT_ONCE))
        return work != _work_of(spec) or now - at >= PUBLISHED_SECONDS

    def _look_at(self, queue: str, pools: list[PoolSpec]) -> None:
        began_at = self._clock.monotonic()
        try:
            seen = self._source.unserved(pools)
        except SourceUnavailableError:  # the turns log it
            seen = None
        now = self._clock.monotonic()
        self._due[queue] = Monotonic(now + max(LOOK_SECONDS, COST * (now - began_at)))
        if seen is None:
            return
        # A tag that was leased before is one of them from the second look on at which no lease was added.
        before = self._leases.get(queue, {})
        self._leases[queue] = {one.tag: one.leases for one in seen}
        found = {one.tag: one for one in seen if one.tasks and one.leases == before.get(one.tag, 0)}
        last, self._found[queue] = self._found.get(queue, {}), found
        self._log(queue, last, found, watched_by=pools)

    @staticmethod
    def _log(queue: str, before: _Tags, now: _Tags, *, watched_by: list[PoolSpec]) -> None:
        new = [one for tag, one in now.items() if tag not in before]
        gone = [one for tag, one in before.items() if tag not in now]
        for one in new[:MAX_LOGGED]:
            log.warning(events.TASKS_UNSERVED, queue=queue, tag=one.tag, tasks=one.tasks, sentence=one.sentence)
        if len(new) > MAX_LOGGED:
            sentence = (
                f"tasks wait with {counted(len(new) - MAX_LOGGED, 'more tag')} that no pool works "
                f"on: `towline why {queue}`"
            )
            log.warning(events.TASKS_UNSERVED, queue=queue, tags=len(new) - MAX_LOGGED, sentence=sentence)
        for one in gone[:MAX_LOGGED]:
            by_pool = any(_works_on(spec, one.tag) for spec in watched_by)
            log.info(events.TASKS_SERVED, queue=queue, tag=one.tag, sentence=one.relief(by_pool=by_pool))
        if len(gone) > MAX_LOGGED:
            sentence = (
                f"no task waits with {counted(len(gone) - MAX_LOGGED, 'more tag')} any more that no pool works on"
            )
            log.info(events.TASKS_SERVED, queue=queue, tags=len(gone) - MAX_LOGGED, sentence=sentence)


def _work_of(spec: PoolSpec) -> object:
    return spec.queues, spec.tags, spec.untagged


def _works_on(spec: PoolSpec, tag: str | None) -> bool:
    if spec.untagged:
        return tag is None
    return not spec.tags or tag in spec.tags
