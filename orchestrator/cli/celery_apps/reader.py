"""A program that imports an app of Celery's and prints its settings as JSON. It runs in the app's own Python.

It imports nothing of ours: that Python may have Celery only. Arguments: the app, as `celery -A` takes it; the seconds
to wait for running workers, 0: they are not asked.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

WATCHED = (
    "accept_content",
    "broker_connection_retry",
    "broker_connection_retry_on_startup",
    "result_expires",
    "task_acks_late",
    "task_acks_on_failure_or_timeout",
    "task_always_eager",
    "task_default_delivery_mode",
    "task_reject_on_worker_lost",
    "task_serializer",
    "task_time_limit",
    "worker_cancel_long_running_tasks_on_connection_loss",
    "worker_max_tasks_per_child",
    "worker_pool",
    "worker_prefetch_multiplier",
)


def main(name: str, wait_seconds: float) -> int:
    """Print what the app is set to. Prints the error in its place, and returns 1, where it can't be imported."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the app prints as it is imported is no answer
    try:
        found = read(name, wait_seconds)
    except BaseException as error:  # noqa: BLE001  whatever it raises is the answer
        found = {"error": f"{type(error).__name__}: {error}"}
    answers.write(json.dumps(found, default=str))
    answers.close()
    return 1 if "error" in found else 0


def read(name: str, wait_seconds: float) -> dict[str, Any]:
    """Return the app's settings, those of its tasks, and those that running workers have."""
    sys.path.insert(0, str(Path.cwd()))
    import celery
    from celery.app.utils import find_app

    app = find_app(name)
    app.loader.import_default_modules()
    app.finalize(auto=True)
    options = dict(app.conf.broker_transport_options or {})
    return {
        "app": name,
        "version": celery.__version__,
        "broker": str(app.conf.broker_read_url or app.conf.broker_url or "").partition(":")[0],
        "backend": str(app.conf.result_backend or "").partition(":")[0],
        "visibility_seconds": options.get("visibility_timeout"),
        "settings": {key: plain(app.conf.get(key)) for key in WATCHED},
        "tasks": [
            {
                "name": task.name,
                "acks_late": bool(task.acks_late),
                "acks_on_failure_or_timeout": bool(task.acks_on_failure_or_timeout),
                "reject_on_worker_lost": bool(task.reject_on_worker_lost),
                "time_limit": plain(task.time_limit),
            }
            for task in app.tasks.values()
            if not task.name.startswith("celery.")
        ],
        "queues": {queue.name: arguments_of(queue) for queue in app.amqp.queues.values()},
        "workers": running(app, wait_seconds) if wait_seconds else {},
    }


def running(app: Any, seconds: float) -> dict[str, Any]:
    """Return the watched settings of each running worker that answers; none where the broker does not."""
    try:
        with app.connection_for_write(connect_timeout=seconds) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
            answers = app.control.inspect(timeout=seconds, connection=connection).conf(with_defaults=True) or {}
    except Exception:  # noqa: BLE001  a broker that is away is found by others
        return {}
    return {node: {key: conf.get(key) for key in WATCHED if key in conf} for node, conf in answers.items()}


def arguments_of(queue: Any) -> list[str]:
    """Return the names of a queue's arguments, as RabbitMQ has them; `x-expires` of a durable queue only."""
    from kombu.transport.base import to_rabbitmq_queue_arguments

    own = {name: getattr(queue, name, None) for name in ("expires", "message_ttl", "max_length", "max_length_bytes")}
    names = set(to_rabbitmq_queue_arguments(queue.queue_arguments or {}, **own))
    return sorted(names if queue.durable and not queue.exclusive else names - {"x-expires"})


def plain(value: Any) -> Any:
    """Return a setting as JSON has it: durations are seconds."""
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    if isinstance(value, (set, frozenset, tuple)):
        return [str(one) for one in value]
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
