"""The delay before a task that failed may be leased again. Pure: jitter is an argument."""

from typing import Literal

from queue_core.task import QueueSpec


def retry_delay_seconds(spec: QueueSpec, *, leases: int, jitter: float) -> float:
    """Seconds to wait after the `leases`-th charged lease failed.

    Doubles from `retry_min_seconds` up to `retry_max_seconds`; `jitter` in [0, 1) takes off up to a tenth, so that
    tasks which failed together do not come back together.

    Source: App Engine's `retry_parameters` (min_backoff, max_backoff), with doublings unbounded.
    """
    doublings = min(max(leases - 1, 0), 60)
    longest = min(spec.retry_max_seconds, spec.retry_min_seconds * 2.0**doublings)
    return longest * (1.0 - 0.1 * jitter)


def release_delay_seconds(
    spec: QueueSpec,
    *,
    asked_seconds: float | None,
    charge: Literal["counted", "uncounted"],
    leases: int,
    jitter: float,
) -> float | None:
    """Seconds until a task that is given back may be leased again.

    What the caller asked for; else the queue's back-off. A lease that is not counted never was: None, the task takes
    its old place.
    """
    if asked_seconds is not None:
        return asked_seconds
    return None if charge == "uncounted" else retry_delay_seconds(spec, leases=leases, jitter=jitter)
