"""Run Celery's worker with Towline as its broker: `python -m queue_core.kombu.worker -A proj worker ...`.

It is Celery's own command. Only before it begins is the transport registered, and the broker, the token and the node's
name are taken from the variables that a supervisor gives its workers; so an app needs no line of code for it.
"""

import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

from queue_core.errors import InvalidSettingError

EXIT_MISCONFIGURED: Final = 78
"""Celery can't load the app, or does not know an argument (EX_CONFIG of sysexits.h)."""
_USAGE: Final = 2
"""The exit code of Celery's command for an app or an argument that it can't use."""
CHILDREN_SECONDS: Final = 0.5
"""Interval at which a prefork worker looks whether its children live."""
_NODE_OPTIONS: Final = ("-n", "--hostname")


def main() -> None:
    """Run Celery's command with this process's arguments."""
    try:
        from celery import maybe_patch_concurrency
    except ImportError as error:
        sys.exit(_complaint(f"{sys.executable} has no Celery ({error}): install it there, or name another Python"))
    maybe_patch_concurrency()  # gevent and eventlet patch what is imported from here on

    import queue_core.kombu  # noqa: F401  registers the transport
    from queue_core.worker.settings import WorkerSettings

    try:
        settings = WorkerSettings.from_environment(os.environ)
    except InvalidSettingError as error:
        sys.exit(_complaint(str(error)))
    set_variables(os.environ, worker=settings.worker, url=settings.url, token=settings.token)
    sys.argv = ["celery", *named(sys.argv[1:], settings.worker)]

    from celery import signals
    from celery.bin.celery import celery

    signals.worker_ready.connect(look_after_children, weak=False)

    try:
        code = celery(prog_name="celery", auto_envvar_prefix="CELERY")
    except SystemExit as ended:
        code = ended.code
    sys.exit(EXIT_MISCONFIGURED if code == _USAGE else code)


def look_after_children(sender: Any, **_: Any) -> None:
    """Have the death of a prefork worker's child noticed soon; `sender` is Celery's consumer, which is ready.

    Celery looks at once, which may be a moment before the child can be collected; then it looks again after 5 s.
    """
    hub, maintain = getattr(sender, "hub", None), getattr(sender.pool, "maintain_pool", None)
    if hub is not None and maintain is not None:
        hub.call_repeatedly(CHILDREN_SECONDS, maintain)


def set_variables(environment: MutableMapping[str, str], *, worker: str, url: str, token: str | None) -> None:
    """Give Celery its broker by its own variable, unless it has one, and the transport the name and the token."""
    environment["TOWLINE_WORKER"] = worker
    environment["TOWLINE_URL"] = url
    if token:
        environment["TOWLINE_TOKEN"] = token
    environment.setdefault("CELERY_BROKER_URL", broker_url(url))


def broker_url(url: str) -> str:
    """Return the URL of a store or server as that of a broker."""
    return url if url.startswith("towline") else f"towline+{url}"


def named(arguments: Sequence[str], worker: str) -> list[str]:
    """Return the arguments of `celery` with the worker's name as that of its node, unless they name one."""
    if any(one.startswith(_NODE_OPTIONS) for one in arguments) or "worker" not in arguments:
        return list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:end], "-n", f"{worker}@%h", *arguments[end:]]


def _complaint(what: str) -> int:
    """Write what is wrong as a worker's last words; return the exit code."""
    sys.stderr.write(f"towline: {what}\n")
    return EXIT_MISCONFIGURED


if __name__ == "__main__":
    main()
