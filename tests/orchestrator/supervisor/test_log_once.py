"""What lasts is told once."""

import errno

from orchestrator.supervisor.log_once import LogOnce


def test_a_failure_is_news_until_it_is_over_or_another_one() -> None:
    trouble = LogOnce()
    assert not trouble.recovers()
    assert trouble.is_new(ValueError("one"))
    assert not trouble.is_new(ValueError("one"))
    assert trouble.is_new(ValueError("another"))
    assert trouble.recovers()
    assert not trouble.recovers()
    assert trouble.is_new(ValueError("another"))


def test_what_the_kernel_refuses_is_one_failure_whatever_file_it_was() -> None:
    trouble = LogOnce()
    assert trouble.is_new(OSError(errno.EMFILE, "Too many open files", "/proc/1/stat"))
    assert not trouble.is_new(OSError(errno.EMFILE, "Too many open files", "/proc/2/stat"))
    assert trouble.is_new(OSError(errno.ENOSPC, "No space left on device", "/proc/2/stat"))
