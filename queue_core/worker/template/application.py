"""Import a pool's application as its workers would, and tell what stands in their way."""

import contextlib
import importlib
import importlib.util
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_core.attempts.failures import is_library
from queue_core.attempts.redaction import redacted_traceback
from queue_core.client.connect import SERVER_SCHEMES
from queue_core.errors import QueueError
from queue_core.verbs.served_tags import ServedTags, tags_served_by
from queue_core.worker.app import App, load_app
from queue_core.worker.settings import WorkerSettings
from queue_core.worker.template.imported_files import FileVersion, imported_files, version_of

_STORES: Final = {
    "sqlite": "queue_core.stores.sqlite.store",
    "postgresql": "queue_core.stores.postgres.store",
    "redis": "queue_core.stores.redis.store",
}


@dataclass(frozen=True, slots=True)
class Imported:
    """An application after the attempt to import it.

    `failure` says why workers can't use it, in a sentence or with a traceback; "" when they can. `files` are those to
    look at for a change: the application's own, and those in which the import failed. `handlers` counts those for the
    pool's tasks, `served` are the tags that its workers lease; `schedules` are those of its functions, as JSON.
    """

    failure: str
    files: Mapping[str, FileVersion]
    handlers: int = 0
    served: ServedTags | None = None
    schedules: Sequence[Mapping[str, object]] = ()


def import_application(environment: Mapping[str, str]) -> Imported:
    """Import what a worker with this environment imports, and check that it has a handler for each of its tags."""
    from queue_core.worker import __main__ as _main  # noqa: F401 - so that no worker has to

    url = environment.get("TOWLINE_URL", "")
    folder = environment.get("TOWLINE_APP_FOLDER", "")
    target = environment.get("TOWLINE_APP", "")
    try:
        if url and not url.startswith(SERVER_SCHEMES):
            with contextlib.suppress(ImportError):  # a worker says it in a sentence
                importlib.import_module(_STORES.get(url.partition(":")[0], "queue_core.stores"))
        app = load_app(target, app_folder=Path(folder) if folder else None)
        handlers, served = _check_handlers(app, WorkerSettings.from_environment(environment))
        schedules = _schedules(app, target)
    except QueueError as error:
        return Imported(str(error), {**imported_files(), **_failed_files(error, target)})
    except BaseException as error:  # noqa: BLE001 - whatever an import may raise
        text = redacted_traceback(error, limit=5)
        return Imported(text, {**imported_files(), **_failed_files(error, target)})
    return Imported("", imported_files(), handlers, served, schedules)


def _schedules(app: App, target: str) -> list[dict[str, object]]:
    found = app.schedules(origin=target)
    if not found:
        return []
    from queue_core.schedules.book import schedule_json  # most applications have no schedule

    return [schedule_json(one) for one in found]


def _check_handlers(app: App, settings: WorkerSettings) -> tuple[int, ServedTags | None]:
    if not settings.queue:  # the worker takes the app's only queue
        return 0, None
    offer = app.offer(settings.queue, settings.tags)
    handlers = app.serving(settings.queue, settings.tags)
    app.prepare(handlers)
    return len(handlers), tags_served_by(offer.tags)


def _failed_files(error: BaseException, target: str) -> dict[str, FileVersion]:
    """Return the files that the error names: a module that failed is no longer among the imported ones."""
    paths = set()
    found: BaseException | None = error
    while found is not None:
        paths |= {frame.filename for frame in traceback.extract_tb(found.__traceback__)}
        if isinstance(found, SyntaxError) and found.filename:
            paths.add(found.filename)
        found = found.__cause__ or found.__context__
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec(target.partition(":")[0])
        if spec is not None and spec.origin:
            paths.add(spec.origin)
    own = {os.path.abspath(path) for path in paths if not is_library(path)}  # noqa: PTH100
    return {path: version for path in own if (version := version_of(path)) is not None}
