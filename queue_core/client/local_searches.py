"""Searches of a store that this process opened."""

from queue_core.attempts.failures import this_program
from queue_core.limits import MAX_PEEK_TASKS
from queue_core.unit.pieces import run_pieces
from queue_core.unit.searches import Total, change_pieces, plan_of, read_page, total_of
from queue_core.unit.service import QueueService
from queue_core.verbs.criteria import Action, ChangeTo, MatchedBatch, Scan, Search, SearchPage, check_action


def search(
    service: QueueService, queue: str, wanted: Search, *, after: int, limit: int, scan: int, payload_bytes: int
) -> SearchPage:
    """See `Queue.search`."""
    made = Scan(wanted, after=after, limit=limit, most=scan, payload_bytes=payload_bytes)
    total = _run(service, queue, made)
    return SearchPage(tuple(made.found), made.next_after, made.scanned, total.tasks)


def change_matching(
    service: QueueService,
    queue: str,
    action: Action,
    wanted: Search,
    *,
    dry_run: bool,
    after: int,
    scan: int,
    to: ChangeTo,
) -> MatchedBatch:
    """See `Queue.change_matching`."""
    check_action(action, to)
    wanted = wanted.within(action)
    made = Scan(wanted, after=after, limit=MAX_PEEK_TASKS, most=scan)
    plan = plan_of(made, _run(service, queue, made))
    if dry_run:
        return plan.batch
    return plan.answer(run_pieces(service.run, change_pieces(queue, action, wanted, plan, to=to, by=this_program())))


def _run(service: QueueService, queue: str, scan: Scan) -> Total:
    total = service.read(lambda work: total_of(work, queue, scan.search))
    while scan.goes_on:
        scan.take(service.read(lambda work: read_page(work, queue, scan)))
    return total
