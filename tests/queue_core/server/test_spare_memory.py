"""An idle server gives back what the largest requests needed."""

import asyncio
from collections.abc import Iterator

from queue_core.server.watches.spare_memory import SPARE_BYTES, SpareMemory, give_back, resident_bytes

MIB = 1 << 20


def looks(sizes: Iterator[int], count: int, *, is_idle: bool = True) -> int:
    """Look so many times at a process of these sizes; return how often memory was given back."""
    given: list[None] = []
    spare = SpareMemory(lambda: is_idle, resident=lambda: next(sizes), give_back=lambda: given.append(None))

    async def run() -> None:
        for _ in range(count):
            await spare.look()

    asyncio.run(run())
    return len(given)


def test_a_process_that_has_grown_gives_back_once() -> None:
    assert looks(iter([100, 100 + SPARE_BYTES]), 2) == 0
    assert looks(iter([100, 101 + SPARE_BYTES, 150, 150 + SPARE_BYTES]), 3) == 1


def test_growth_is_counted_from_the_smallest_size() -> None:
    assert looks(iter([SPARE_BYTES * 3, SPARE_BYTES, SPARE_BYTES * 2 + 1, SPARE_BYTES]), 3) == 1


def test_what_could_not_be_given_back_is_not_tried_again() -> None:
    size = 101 + SPARE_BYTES
    assert looks(iter([100, size, size, size, size]), 4) == 1


def test_nothing_is_given_back_while_a_large_request_is_under_way() -> None:
    assert looks(iter([100, 101 + SPARE_BYTES]), 2, is_idle=False) == 0


def test_freed_memory_goes_back_to_the_system() -> None:
    give_back()
    before = resident_bytes()
    held = [bytearray(100_000) for _ in range(1_000)]  # below the size for which malloc asks the system each time
    kept = [bytes(100) for _ in range(1_000)]
    assert resident_bytes() - before > 90 * MIB
    del held
    give_back()
    assert resident_bytes() - before < 20 * MIB
    assert len(kept) == 1_000
