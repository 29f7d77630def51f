"""What lasts is told once."""

import errno

from orchestrator.log_once import LogOnce


def test_a_failure_is_news_until_it_is_over_or_another_one() -> None:
    trouble = LogOnce()
    assert not trouble.ends()
    assert trouble.is_news(ValueError("one"))
    assert not trouble.is_news(ValueError("one"))
    assert trouble.is_news(ValueError("another"))
    assert trouble.ends()
    assert not trouble.ends()
    assert trouble.is_news(ValueError("another"))


def test_what_the_kernel_refuses_is_one_failure_whatever_file_it_was() -> None:
    trouble = LogOnce()
    assert trouble.is_news(OSError(errno.EMFILE, "Too many open files", "/proc/1/stat"))
    assert not trouble.is_news(OSError(errno.EMFILE, "Too many open files", "/proc/2/stat"))
    assert trouble.is_news(OSError(errno.ENOSPC, "No space left on device", "/proc/2/stat"))
