"""Settings of Celery's apps that lose tasks, or run them twice: a sentence each, and the line to write. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from orchestrator.cli.celery_apps.facts import DEFAULT_VISIBILITY_SECONDS, CeleryFacts
from queue_core.config.celery_names import expiry_refused, ignored_arguments, is_of_one_consumer
from queue_core.process.wording import counted, shown_setting

SHOWN_TASKS: Final = 3
TESTED_VERSIONS: Final = ("5.5", "5.6", "5.7")
_PICKLES: Final = frozenset({"pickle", "application/x-python-serialize"})
_TRANSIENT: Final = (1, "transient")
_COMPARED: Final = (
    "task_acks_late",
    "task_reject_on_worker_lost",
    "task_acks_on_failure_or_timeout",
    "worker_prefetch_multiplier",
    "worker_cancel_long_running_tasks_on_connection_loss",
)


@dataclass(frozen=True, slots=True)
class CeleryRisk:
    """A risk: what is lost and when, and the line of settings that ends it."""

    level: Literal["ok", "warn", "bad"]
    found: str
    fix: str = ""


def risks(facts: CeleryFacts, *, pool: str = "", grace_seconds: float | None = None) -> list[CeleryRisk]:
    """Return what is at risk; one that is `ok` where nothing is.

    Args:
        pool: the pool of ours that its workers run in; "": none.
        grace_seconds: how long a worker of it has to finish; None: it is not ours to stop.
    """
    found = [
        *_eager(facts),
        *_early(facts),
        *_lost_processes(facts),
        *_cut_tasks(facts),
        *_prefetched(facts),
        *_cancelled(facts),
        *_delivered_twice(facts),
        *_not_stored(facts),
        *_refused(facts),
        *_ignored(facts),
        *_beyond_grace(facts, pool, grace_seconds),
        *_results(facts),
        *_pickled(facts),
        *_starts(facts),
        *_versions(facts),
        *_other_workers(facts),
    ]
    if found:
        return found
    return [
        CeleryRisk(
            "ok", f"Celery {facts.version}, {counted(len(facts.tasks), 'task')}: those of a dead worker run again"
        )
    ]


def _eager(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    if facts.settings.get("task_always_eager"):
        said = "task_always_eager is on: tasks run inside the program that calls them, and none reaches a worker"
        yield CeleryRisk("bad", said, "task_always_eager = False")


def _early(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    """Find tasks that are acknowledged before they run: then no broker can give them again."""
    early = [one.name for one in facts.tasks if not one.acks_late]
    if facts.settings.get("task_acks_late"):
        if early:
            said = f"{_named(early)} acknowledged before {_run(early)}: a worker that dies has lost {_them(early)}"
            yield CeleryRisk(
                "warn", said, "leave acks_late=False out of @app.task, unless such a task must never run twice"
            )
    elif early or not facts.tasks:
        whole = f"tasks are acknowledged before {_run([])}"
        if len(early) < len(facts.tasks):
            whole = f"{_named(early)} acknowledged before {_run(early)}"
        said = f"{whole}: a worker that dies has lost what it ran and what it had fetched"
        yield CeleryRisk("warn", said, "task_acks_late = True, for tasks that may run twice")


def _lost_processes(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    """Find tasks that are acknowledged when their process dies, although the worker lives on."""
    if facts.settings.get("worker_pool", "prefork") != "prefork":
        return
    lost = [one.name for one in facts.tasks if one.acks_late and not one.is_run_again_when_lost]
    if lost or (not facts.tasks and facts.settings.get("task_acks_late") and not facts.settings.get(_LOST)):
        said = (
            f"{_named(lost) if lost else 'tasks are'} acknowledged as failed when {_their(lost)} process is killed, as"
            " for lack of memory: never run again"
        )
        poison = "" if facts.is_on_towline else "; one that kills each process it runs in then does so for ever"
        yield CeleryRisk("warn", said, f"{_LOST} = True{poison}")


_LOST: Final = "task_reject_on_worker_lost"


def _cut_tasks(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    """Find tasks that are acknowledged at their time limit; on Towline a rejected one is kept as dead."""
    general = facts.settings.get("task_time_limit")
    cut = [
        one.name for one in facts.tasks if one.acks_late and one.acks_on_failure and (one.time_limit_seconds or general)
    ]
    if cut and facts.is_on_towline:
        said = f"{_named(cut)} acknowledged when cut by {_their(cut)} time limit: not run again, and not kept as dead"
        yield CeleryRisk(
            "warn", said, "task_acks_on_failure_or_timeout = False keeps failed ones as dead, for `redrive`"
        )


def _prefetched(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    multiplier = facts.settings.get("worker_prefetch_multiplier")
    if not isinstance(multiplier, int) or multiplier == 1:
        return
    if multiplier == 0:
        said = "worker_prefetch_multiplier is 0: one worker fetches the whole queue, and the others idle"
    else:
        said = (
            f"worker_prefetch_multiplier is {multiplier}: a worker fetches {counted(multiplier - 1, 'task')} beside"
            " each that it runs, which wait behind it while others idle, and are late or lost when it dies"
        )
    yield CeleryRisk("warn", said, "worker_prefetch_multiplier = 1")


def _cancelled(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    name = "worker_cancel_long_running_tasks_on_connection_loss"
    is_on, has_late = bool(facts.settings.get(name)), any(one.acks_late for one in facts.tasks)
    if facts.is_on_towline and is_on:
        said = f"{name} is on: when the server is unavailable, running tasks are cancelled and restarted needlessly"
        yield CeleryRisk("warn", said, f"{name} = False")
    elif not facts.is_on_towline and has_late and not is_on:
        said = "a task that is running when the broker's connection is lost continues, and another worker runs it too"
        yield CeleryRisk("warn", said, f"{name} = True")


def _delivered_twice(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    """Find tasks that may run for longer than Redis waits for them."""
    if not facts.is_on_redis or not any(one.acks_late for one in facts.tasks):
        return
    visible = facts.visibility_seconds or DEFAULT_VISIBILITY_SECONDS
    limit = facts.longest_limit_seconds
    if limit is not None and limit < visible:
        return
    longest = "tasks have no time limit" if limit is None else f"a task may run for {shown_setting(limit)}"
    said = (
        f"{longest}, and one that is not done after {shown_setting(visible)} is run by another worker too; so is one"
        " with an eta or countdown beyond that"
    )
    seconds = round(1.2 * (limit or 10 * visible))
    fix = f"broker_transport_options = {{'visibility_timeout': {seconds}}}, above the longest task and countdown"
    yield CeleryRisk("warn", said, fix)


def _not_stored(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    if facts.broker in ("amqp", "amqps", "pyamqp") and facts.settings.get("task_default_delivery_mode") in _TRANSIENT:
        said = "task_default_delivery_mode is transient: tasks that wait are lost when RabbitMQ restarts"
        yield CeleryRisk("warn", said, "task_default_delivery_mode = 'persistent'")


def _refused(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    """Find durable queues that are to be deleted by themselves: declaring one fails."""
    for queue, arguments in sorted(facts.queues.items()) if facts.is_on_towline else ():
        if "x-expires" in arguments and not is_of_one_consumer(queue):
            yield CeleryRisk("bad", expiry_refused(queue), f"leave expires out of queue {queue}, or durable=False")


def _ignored(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    """Find arguments of queues that RabbitMQ honours, and Towline does not."""
    for queue, arguments in sorted(facts.queues.items()) if facts.is_on_towline else ():
        ignored = ignored_arguments(arguments)
        if not ignored:
            continue
        dead = any(one.startswith("x-dead-letter") for one in ignored)
        effect = "; dead tasks stay in their own queue" if dead else ""
        length = any(one.startswith("x-max-length") or one == "x-overflow" for one in ignored)
        effect += "; a queue has no limit of its own on its length" if length else ""
        said = f"queue {queue}: {', '.join(ignored)} has no effect in Towline{effect}"
        fixes = ["`towline redrive` runs dead tasks again"] if dead else []
        fixes += ["`total_storage_limit` bounds all tasks together"] if length else []
        yield CeleryRisk("warn", said, "; ".join(fixes) or "leave it out of queue_arguments")


def _beyond_grace(facts: CeleryFacts, pool: str, grace_seconds: float | None) -> Iterator[CeleryRisk]:
    limit = facts.longest_limit_seconds
    if grace_seconds is None or limit is None or limit <= grace_seconds:
        return
    said = (
        f"a task may run for {shown_setting(limit)}, and a worker that is to go has {shown_setting(grace_seconds)}:"
        " what is not done by then is cut, and begins again"
    )
    yield CeleryRisk("warn", said, f"pools.{pool}.grace: {round(limit + 10)}s")


def _results(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    if facts.backend == "rpc" and facts.is_on_towline:
        said = "results go by rpc://: those that nobody has read are lost when the server restarts"
        yield CeleryRisk("warn", said, "result_backend = a database or a Redis, if results matter")
    elif facts.backend and facts.backend not in ("rpc", "disabled") and not facts.settings.get("result_expires"):
        yield CeleryRisk("warn", "result_expires is off: results are kept for ever", "result_expires = 86400")


def _pickled(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    accepted = facts.settings.get("accept_content") or ()
    if _PICKLES & {str(one) for one in accepted} or facts.settings.get("task_serializer") in _PICKLES:
        said = "pickle is accepted: whoever can add a task can run any code in your workers"
        yield CeleryRisk("warn", said, "task_serializer = 'json'; accept_content = ['json']")


def _starts(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    retries = facts.settings.get("broker_connection_retry_on_startup")
    if retries is None:
        retries = facts.settings.get("broker_connection_retry", True)
    if not retries:
        said = "a worker that starts while its broker is unavailable exits at once"
        yield CeleryRisk("warn", said, "broker_connection_retry_on_startup = True")
    if facts.settings.get("worker_max_tasks_per_child") == 1:
        said = "worker_max_tasks_per_child is 1: each task starts a process, and imports what it needs anew"
        yield CeleryRisk("warn", said, "worker_max_tasks_per_child = 100, or worker_max_memory_per_child")


def _versions(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    if facts.is_on_towline and not facts.version.startswith(TESTED_VERSIONS):
        said = f"Celery {facts.version} is none of those that Towline is tested with: {', '.join(TESTED_VERSIONS)}"
        yield CeleryRisk("warn", said, "pip install 'celery>=5.5,<5.8'")


def _other_workers(facts: CeleryFacts) -> Iterator[CeleryRisk]:
    """Find workers that run with other settings than the app has now."""
    for node, settings in sorted(facts.workers.items()):
        for key in _COMPARED:
            if key in settings and settings[key] != facts.settings.get(key):
                said = f"{node} runs with {key} = {settings[key]!r}, and the app has {facts.settings.get(key)!r}"
                yield CeleryRisk("warn", said, "restart it; an option of its command line may say so, too")
                break


def _named(names: Sequence[str]) -> str:
    """Return the names as the subject of a sentence, with its verb."""
    shown = ", ".join(sorted(names)[:SHOWN_TASKS])
    more = f" and {len(names) - SHOWN_TASKS:,} more" if len(names) > SHOWN_TASKS else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'}"


def _run(names: Sequence[str]) -> str:
    return "it runs" if len(names) == 1 else "they run"


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _their(names: Sequence[str]) -> str:
    return "its" if len(names) == 1 else "their"
