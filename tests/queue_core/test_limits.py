"""Every named limit refuses the value beyond it with a message that has the value and the limit."""

from collections.abc import Callable

import pytest

from queue_core import errors, limits
from queue_core.clock import Instant

NOW = Instant(1_700_000_000_000_000)


@pytest.mark.parametrize(
    ("check", "good", "bad", "error"),
    [
        pytest.param(limits.check_queue_name, "a", "", errors.InvalidQueueNameError, id="empty queue name"),
        pytest.param(limits.check_queue_name, "a" * 100, "a" * 101, errors.InvalidQueueNameError, id="long queue"),
        pytest.param(limits.check_queue_name, "a-Z", "a_b", errors.InvalidQueueNameError, id="queue letters"),
        pytest.param(limits.check_queue_name, "a", "a\n", errors.InvalidQueueNameError, id="trailing newline"),
        pytest.param(limits.check_task_name, "a" * 500, "a" * 501, errors.InvalidTaskNameError, id="long task name"),
        pytest.param(limits.check_task_name, "_a", "_42", errors.InvalidTaskNameError, id="a name the queue chooses"),
        pytest.param(limits.check_tag, "a" * 500, "a" * 501, errors.InvalidTagError, id="long tag"),
        pytest.param(limits.check_tag, "é" * 250, "é" * 251, errors.InvalidTagError, id="tags count bytes"),
        pytest.param(limits.check_tag, "a", "", errors.InvalidTagError, id="empty tag"),
        pytest.param(limits.check_tag, "a", "a\x00", errors.InvalidTagError, id="NUL in a tag"),
        pytest.param(limits.check_tags, ("a",) * 100, ("a",) * 101, errors.TooManyTagsError, id="many tags"),
        pytest.param(limits.check_payload, bytes(1 << 20), bytes((1 << 20) + 1), errors.TaskTooLargeError, id="1 MiB"),
        pytest.param(limits.check_lease_seconds, 604_800, 604_800.001, errors.InvalidLeaseTimeError, id="seven days"),
        pytest.param(limits.check_lease_seconds, 0, -0.001, errors.InvalidLeaseTimeError, id="negative lease"),
        pytest.param(limits.check_lease_seconds, 1, float("nan"), errors.InvalidLeaseTimeError, id="not a number"),
        pytest.param(limits.check_wait_seconds, 300, 301, errors.InvalidLeaseTimeError, id="long wait"),
        pytest.param(limits.check_lease_count, 1, 0, errors.InvalidCountError, id="no task"),
        pytest.param(limits.check_lease_count, 1000, 1001, errors.InvalidCountError, id="1,001 leases"),
        pytest.param(limits.check_add_count, 1000, 1001, errors.TooManyTasksError, id="1,001 tasks"),
        pytest.param(limits.check_token_count, 1000, 1001, errors.TooManyTasksError, id="1,001 tokens"),
        pytest.param(limits.check_delay_seconds, 0, -1, errors.InvalidEtaError, id="negative delay"),
    ],
)
def test_a_limit_takes_the_last_good_value_and_refuses_the_next(
    check: Callable[[object], None], good: object, bad: object, error: type[errors.QueueError]
) -> None:
    check(good)
    with pytest.raises(error):
        check(bad)
