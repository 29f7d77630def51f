"""C12: features that programs rely on: revoke, expires, priorities, rates, limits, retries, replacement, chords."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from celery import chord
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from tests.celery.claims import Claim, Conditions, Figure
from tests.celery.sites import PROGRAM, Site, a_site
from tests.support.eventually import eventually

CHORD_TASKS = 500
SECONDS = 120.0
WORKER = "one"
ALL_POOLS = ("prefork", "threads", "solo", "gevent")


def claims() -> list[Claim]:
    """Return this section's claims."""
    return [
        Claim("C12", "revoke, expires, priorities, rates, limits, retry, replace, chord", measure, of_versions=True)
    ]


def measure(conditions: Conditions) -> Figure:
    """Try each feature with each pool; one worker a pool."""
    notes: list[str] = []
    tried = 0
    for pool in conditions.pools:
        for name, error in try_features(conditions, pool, CHORD_TASKS).items():
            tried += 1
            if error:
                notes.append(f"{pool}: short: {name}: {error}")
    return Figure(f"{tried - len(notes)} of {tried}", "all", not notes, tuple(notes))


def try_features(conditions: Conditions, pool: str, chord_tasks: int) -> dict[str, str]:
    """Return what each feature of a pool lacked: "" for nothing."""
    found: dict[str, str] = {}
    with a_site(conditions.stores[0], conditions.folder, version=conditions.version) as site:
        site.start(WORKER, "-c", "2", "-E", pool=pool)
        for name, (pools, feature) in FEATURES.items():
            if pool not in pools:
                continue
            found[name] = ""
            try:
                feature(site, pool)
            except Exception as error:  # noqa: BLE001 - the next feature is another one
                found[name] = f"{type(error).__name__}: {str(error)[:160]}"
        try:
            chord_of(site, chord_tasks)
            found["chord"] = ""
        except Exception as error:  # noqa: BLE001
            found["chord"] = f"{type(error).__name__}: {str(error)[:160]}"
    return found


def revoked_by_id(site: Site, _pool: str) -> None:
    """A task that is revoked before it is sent does not run."""
    # A worker of gevent says that it is ready before it takes commands: what nobody has answered, nobody has heard.
    eventually(lambda: site.app.control.revoke("never", reply=True, timeout=5, limit=1))
    try:
        result(site.send("nap", "never", 0, task_id="never"))
    except TaskRevokedError:
        assert site.runs("never") == []
        return
    raise AssertionError("it ran")


def revoked_by_header(site: Site, _pool: str) -> None:
    """A task with a stamp that is revoked does not run."""
    site.app.control.revoke_by_stamped_headers({"batch": "bad"}, reply=True, timeout=5)
    signature = site.app.signature(f"{PROGRAM}.nap", ("stamped", 0), app=site.app)
    signature.stamp(batch="bad")
    try:
        result(signature.apply_async())
    except TaskRevokedError:
        assert site.runs("stamped") == []
        return
    raise AssertionError("it ran")


def revoked_while_it_runs(site: Site, _pool: str) -> None:
    """A running task that is revoked with `terminate` ends, and the worker goes on."""
    sent = site.send("hold", "terminated")
    site.begun("terminated")
    sent.revoke(terminate=True)
    with suppress(TaskRevokedError):
        result(sent)
    assert result(site.send("add", 1, 1)) == 2
    assert site.runs("terminated", "end") == []


def expired(site: Site, pool: str) -> None:
    """A task whose time is over is revoked."""
    blocks = _block(site, pool)
    ends_at = site.app.now() + timedelta(seconds=0.5)
    late = site.send("nap", "late", 0, expires=ends_at)
    eventually(lambda: site.app.now() > ends_at)
    _unblock(site, blocks)
    try:
        result(late)
    except TaskRevokedError:
        assert site.runs("late") == []
        return
    raise AssertionError("it ran")


def of_priority(site: Site, pool: str) -> None:
    """A task of higher priority is first."""
    blocks = _block(site, pool)
    sent = [site.send("nap", f"priority-{number}", 0.2, priority=number) for number in (0, 3, 9, 6)]
    _unblock(site, blocks)
    for one in sent:
        result(one)
    order = sorted((0, 3, 6, 9), key=lambda number: site.runs(f"priority-{number}")[0].at, reverse=True)
    count = 1 if pool == "solo" else 2
    assert 9 in order[-count:] and 0 in order[:count], f"from last to first: {order}"


def at_a_rate(site: Site, _pool: str) -> None:
    """A rate limit spaces the runs of a task."""
    site.app.control.rate_limit(f"{PROGRAM}.nap", "2/s", reply=True, timeout=5)
    try:
        for one in [site.send("nap", f"rate-{number}", 0) for number in range(5)]:
            result(one)
    finally:
        site.app.control.rate_limit(f"{PROGRAM}.nap", "0", reply=True, timeout=5)
    at = sorted(site.runs(f"rate-{number}")[0].at for number in range(5))
    assert at[-1] - at[0] > 1.0, f"{at[-1] - at[0]:.1f} s for five"


def softly_limited(site: Site, _pool: str) -> None:
    """A soft time limit raises within the task."""
    assert result(site.send("limited", "soft", 30, soft_time_limit=1)) == "softly"


def hard_limited(site: Site, _pool: str) -> None:
    """A hard time limit ends the task's process, and the task is not run again for ever."""
    try:
        result(site.send("nap", "hard", 30, time_limit=1))
    except TimeLimitExceeded:
        assert len(site.runs("hard")) == 1
        site.wait_quiet()
        return
    raise AssertionError("it was not limited")


def retried(site: Site, _pool: str) -> None:
    """A task that retries with a countdown runs three times."""
    assert result(site.send("third_time_lucky", "lucky")) == 2
    assert len(site.runs("lucky")) == 3


def replaced(site: Site, _pool: str) -> None:
    """A task that is replaced has the other's result."""
    assert result(site.send("replaced", 2, 3)) == 5


def with_countdown(site: Site, _pool: str) -> None:
    """A task with a countdown begins no sooner."""
    sent_at = result(site.send("nap", "before", 0)) and site.runs("before")[0].at
    result(site.send("nap", "counted", 0, countdown=1.5))
    assert site.runs("counted")[0].at - sent_at >= 1.5


def chord_of(site: Site, count: int) -> None:
    """A chord's callback gets all results."""
    header = [site.app.signature(f"{PROGRAM}.add", (number, 1), app=site.app) for number in range(count)]
    answer = chord(header, app=site.app)(site.app.signature(f"{PROGRAM}.total", app=site.app))
    assert result(answer) == sum(range(count)) + count
    site.wait_quiet()


Feature = Callable[[Site, str], None]
FEATURES: dict[str, tuple[tuple[str, ...], Feature]] = {
    "revoke by id": (ALL_POOLS, revoked_by_id),
    "revoke by header": (ALL_POOLS, revoked_by_header),
    "expires": (ALL_POOLS, expired),
    "priorities": (ALL_POOLS, of_priority),
    "rate limit": (ALL_POOLS, at_a_rate),
    "retry": (ALL_POOLS, retried),
    "replace": (ALL_POOLS, replaced),
    "countdown": (ALL_POOLS, with_countdown),
    "soft time limit": (("prefork",), softly_limited),
    "hard time limit": (("prefork",), hard_limited),
    "revoke and terminate": (("prefork",), revoked_while_it_runs),
}
"""Each with the pools that Celery has it for."""


def result(sent: Any) -> Any:
    """Wait for a task's result."""
    return sent.get(timeout=SECONDS, interval=0.02)


def _block(site: Site, pool: str) -> list[Any]:
    """Occupy the worker."""
    count = 1 if pool == "solo" else 2
    number = len(list(site.folder.glob("block-*.go")))
    names = [f"block-{number + one}" for one in range(count)]
    blocks = [(name, site.send("hold", name)) for name in names]
    for name in names:
        site.begun(name)
    return blocks


def _unblock(site: Site, blocks: list[Any]) -> None:
    for name, _ in blocks:
        site.let_end(name)
    for _, sent in blocks:
        result(sent)
