"""The memory by which a worker recycles itself."""

import subprocess
import sys

from queue_core.worker.own_memory import OwnMemory
from queue_core.worker.settings import WorkerSettings, resident_bytes

MIB = 1 << 20
FORKED = f"""\
import os
from queue_core.worker.own_memory import OwnMemory
held = b"x" * {100 * MIB}
if os.fork():
    os.wait()
else:
    executed, forked = OwnMemory(is_forked=False), OwnMemory(is_forked=True)
    print(executed.measure(limit_bytes={MIB}, now=0.0), forked.measure(limit_bytes={MIB}, now=0.0))
    more = b"y" * {100 * MIB}
    print(executed.measure(limit_bytes={MIB}, now=1.0), forked.measure(limit_bytes={MIB}, now=1.0), flush=True)
    os._exit(0)
"""


def test_of_a_forked_worker_only_what_it_does_not_share_counts_and_its_growth_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    first, second = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert first[0] > 100 * MIB
    assert first[1] < 50 * MIB
    assert second[0] > 200 * MIB
    assert 100 * MIB < second[1] < 150 * MIB


def test_below_the_limit_all_of_it_is_told_as_what_is_shared_does_not_matter() -> None:
    memory = OwnMemory(is_forked=True)
    assert memory.measure(limit_bytes=1 << 40, now=0.0) >= resident_bytes() / 2
    assert memory.measure(limit_bytes=1, now=0.0) <= resident_bytes()


def test_a_worker_knows_from_its_environment_that_it_was_forked() -> None:
    assert not WorkerSettings.from_environment({}).is_forked
    assert WorkerSettings.from_environment({"TOWLINE_FORKED": "1"}).is_forked
