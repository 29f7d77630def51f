"""Django's tasks on Towline: `queue_core.django.Backend` in `TASKS`, and `queue_core.django:app` for its workers.

Both are imported when they are first used: the backend by Django's settings, the app by `towline work`.
"""

from typing import TYPE_CHECKING

from queue_core.process.extras import needs_extra

if TYPE_CHECKING:
    from queue_core.django.backend import Backend
    from queue_core.worker.app import App

    app: App

__all__ = ["Backend", "app", "use_queues"]


def __getattr__(name: str) -> object:
    with needs_extra("django", "queue_core.django"):
        return _imported(name)


def _imported(name: str) -> object:
    if name == "Backend":
        from queue_core.django.backend import Backend

        return Backend
    if name == "app":
        from queue_core.django.handlers import app_of_settings

        found = globals()["app"] = app_of_settings()
        return found
    if name == "use_queues":
        from queue_core.django.opened import use_queues

        return use_queues
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
