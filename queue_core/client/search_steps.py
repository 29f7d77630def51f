"""A change of all tasks that match, step by step until the end, by any queue's verbs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from queue_core.client.queue import Queue
from queue_core.clock import Instant
from queue_core.verbs.criteria import MatchedBatch, Search
from queue_core.verbs.matching import Action

MAX_STEPS: Final = 1_000_000
"""Calls of one search or change, at most."""


@dataclass(frozen=True, slots=True)
class MatchingChange:
    """A change of all tasks of a queue that match; `eta`: of a postponement; `tag`: the new one, None is no tag."""

    queue: Queue
    action: Action
    wanted: Search
    eta: Instant | None = None
    tag: str | None = None

    def steps(self, *, dry_run: bool, as_of: Instant | None = None) -> Iterator[MatchedBatch]:
        """Yield the outcome of each step; `as_of`: of the count before. A count is of the instant when it began."""
        place, wanted = 0, replace(self.wanted, as_of=as_of)
        for _ in range(MAX_STEPS):
            batch = self.queue.change_matching(
                self.action, wanted, dry_run=dry_run, after=place, eta=self.eta, tag=self.tag
            )
            yield batch
            if dry_run and wanted.as_of is None:
                wanted = replace(wanted, as_of=batch.as_of)
            if batch.next_after is None:
                return
            place = batch.next_after
