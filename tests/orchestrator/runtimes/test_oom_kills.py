"""Whom the kernel ended for want of memory: by its log, and by what it counts for all of a control group."""

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.runtimes.oom_kills import RECENT_SECONDS, OomKills, is_killed_in, killed_perhaps

RECORD = (
    b"3,2034,3593084057,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:91644kB, "
    b"anon-rss:61840kB, file-rss:8448kB, shmem-rss:0kB, UID:0 pgtables:180kB oom_score_adj:0\n"
)


@pytest.mark.parametrize(
    ("pid", "since", "is_killed"),
    [
        pytest.param(4711, 3500.0, True, id="this one"),
        pytest.param(471, 3500.0, False, id="another, whose number begins so"),
        pytest.param(4711, 3600.0, False, id="an earlier process of that number"),
    ],
)
def test_the_kernels_log_says_whom_it_ended(pid: int, since: float, *, is_killed: bool) -> None:
    other = b"6,2035,3593084100,-;oom_reaper: reaped process 471 (python3), now anon-rss:0kB\n"
    assert is_killed_in([b"6,1,0,-;Linux version 6.1\n", RECORD, other], pid, since_boot_seconds=since) == is_killed


def test_a_kill_is_recent_for_some_seconds_and_then_nobodys_any_more() -> None:
    counts = iter([3, 3, 4, 4, 6, 6])
    kills = OomKills(count=lambda: next(counts))
    told = []
    for now in (0.0, 1.0, 1.0 + RECENT_SECONDS, 20.0, 20.1 + RECENT_SECONDS):
        kills.watch(now=Monotonic(now))
        told.append(kills.recent)
    assert told == [0, 1, 1, 2, 0]


def test_a_perhaps_says_how_many_the_kernel_ended() -> None:
    assert killed_perhaps(0) == ""
    assert killed_perhaps(1) == (
        "perhaps by the kernel: it ended 1 process of this control group at that time because it ran out of memory"
    )
    assert "ended 2 processes" in killed_perhaps(2)
