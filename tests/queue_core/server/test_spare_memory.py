"""An idle server gives back what the largest requests needed."""

import asyncio
from collections.abc import Sequence

from queue_core.server.http.in_flight import BytesInFlight
from queue_core.server.watches.spare_memory import SPARE_BYTES, SpareMemory, give_back, resident_bytes

MIB = 1 << 20


GROWN = 101 + SPARE_BYTES


def looks(sizes: Sequence[int], *, arrived: Sequence[int] = (), taken: int = 0) -> list[int]:
    """Look at a process of these sizes, after the first; return the looks, from 1, after which memory was given back.

    Args:
        sizes: the first is that of the start; what is given back has no effect on them.
        arrived: bytes that have arrived at each look, as far as they change.
    """
    requests, given, at = BytesInFlight(), list[int](), 0
    requests.taken = taken
    spare = SpareMemory(requests, resident=lambda: sizes[at], give_back=lambda: given.append(at))

    async def run() -> None:
        nonlocal at
        for at in range(1, len(sizes)):
            requests.arrived = arrived[at] if at < len(arrived) else requests.arrived
            await spare.look()

    asyncio.run(run())
    return given


def test_a_process_that_has_grown_gives_back_once_it_is_quiet() -> None:
    assert looks([100, GROWN, GROWN, GROWN, GROWN]) == [2]
    assert looks([100, GROWN, GROWN * 2, GROWN * 3, GROWN * 3]) == [4]


def test_a_process_that_has_hardly_grown_keeps_what_it_has() -> None:
    assert looks([100, 100 + SPARE_BYTES, 100 + SPARE_BYTES]) == []


def test_large_requests_count_where_the_process_has_not_grown() -> None:
    assert looks([100] * 6, arrived=[0, 50, 60, 60, 60, 60]) == [3]


def test_nothing_is_given_back_while_a_large_request_is_under_way() -> None:
    assert looks([100, GROWN, GROWN, GROWN], taken=1) == []


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
