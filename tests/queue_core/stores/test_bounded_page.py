"""A page is bounded by its bytes, whatever the sizes of payloads, and pages together hold every task once."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as some

from queue_core.clock import START
from queue_core.store import Transaction
from queue_core.stores.bounded_page import GROWTH, bounded_page
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec, TaskState
from queue_core.verbs import Page, PeekQuery

ALL = frozenset(TaskState)


class CountingReads:
    """A transaction's `peek` that notes the payload bytes of each read."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.read_bytes: list[int] = []

    def peek(self, *args: object, **settings: object) -> Page:
        page = self._transaction.peek(*args, **settings)  # type: ignore[arg-type]
        self.read_bytes.append(sum(len(task.payload) for task in page.tasks))
        return page


def pages_of(sizes: Sequence[int], *, limit: int, payload_bytes: int, total_bytes: int) -> tuple[list[Page], list[int]]:
    store = MemoryStore()
    with store.begin() as transaction:
        transaction.put_queue(QueueSpec("q"), now=START)
        transaction.add("q", [NewTask(bytes([at % 256]) * size) for at, size in enumerate(sizes)], now=START)
    pages: list[Page] = []
    after: int | None = 0
    with store.read() as transaction:
        reads = CountingReads(transaction)
        while after is not None:
            query = PeekQuery(ANY, ALL, None, after, limit, payload_bytes, START)
            pages.append(bounded_page(reads, "q", query, total_bytes=total_bytes))  # type: ignore[arg-type]
            after = pages[-1].next_after
    return pages, reads.read_bytes


@given(
    sizes=some.lists(some.integers(0, 300), max_size=30),
    limit=some.integers(1, 12),
    payload_bytes=some.integers(0, 350),
    total_bytes=some.integers(1, 500),
)
def test_pages_are_bounded_and_hold_every_task_once(
    sizes: list[int], limit: int, payload_bytes: int, total_bytes: int
) -> None:
    pages, read_bytes = pages_of(sizes, limit=limit, payload_bytes=payload_bytes, total_bytes=total_bytes)
    shown = [task.payload for page in pages for task in page.tasks]
    assert shown == [bytes([at % 256]) * min(size, payload_bytes) for at, size in enumerate(sizes)]
    for page in pages:
        page_bytes = sum(len(task.payload) for task in page.tasks)
        assert len(page.tasks) <= limit
        assert page_bytes <= total_bytes or len(page.tasks) == 1
        assert page.tasks or not sizes
    longest = min(payload_bytes, max(sizes, default=0))
    assert all(read <= max(total_bytes, limit, longest) for read in read_bytes)


def test_a_page_of_short_payloads_is_one_read() -> None:
    pages, read_bytes = pages_of([10] * 8, limit=8, payload_bytes=60, total_bytes=8 * 11)
    assert ([len(page.tasks) for page in pages], read_bytes) == ([8], [80])


def test_longer_payloads_are_read_a_few_times_as_long() -> None:
    pages, read_bytes = pages_of([49] * 8, limit=8, payload_bytes=60, total_bytes=400)
    assert ([len(page.tasks) for page in pages], read_bytes) == ([8], [8 * 49])
    pages, read_bytes = pages_of([60, 1], limit=2, payload_bytes=60, total_bytes=10)
    assert [len(page.tasks) for page in pages] == [1, 1]
    assert read_bytes == [6, 5 * GROWTH, 60, 1]
