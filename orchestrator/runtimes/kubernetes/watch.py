"""Watch the Pods of a fleet: one list, then one watch for all of them, renewed for ever; and the fleet's anchor.

The list is the truth. A watch goes on from the last version that it has shown, and is opened again when it breaks;
after an error of the apiserver, or three breaks, there is a new list.
"""

import random
import threading
from collections.abc import Callable
from typing import Final, Literal

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.base.values import value
from orchestrator.runtimes.docker.container_state import at, text
from orchestrator.runtimes.kubernetes.api import SILENT_SECONDS, Api, ApiError, Watch
from orchestrator.runtimes.kubernetes.body import ANCHOR, FLEET_LABEL
from orchestrator.runtimes.kubernetes.registry import PodRegistry
from queue_core.log import get_logger

log = get_logger()

MAX_BREAKS: Final = 3
"""Watches in a row that broke before they showed anything, until all Pods are listed again."""
_FACTOR: Final = 2.0
_BRIEF_SECONDS: Final = 1.0


@value
class WatchTimes:
    """The times of a watch, in seconds.

    A watch lasts between `shortest` and `longest`, so that those of several supervisors do not end together, and is
    opened again after `silent` without a word. Errors back off from `first_pause` to `last_pause`. `compare` is the
    interval at which a list of metadata is compared with what is known.
    """

    shortest: float = 240.0
    longest: float = 300.0
    silent: float = SILENT_SECONDS
    first_pause: float = 0.1
    last_pause: float = 10.0
    compare: float = 600.0


class PodWatch:
    """A thread that lists and watches the Pods of one namespace."""

    def __init__(
        self,
        open_api: Callable[[], Api],
        registry: PodRegistry,
        *,
        clock: MonotonicClock,
        times: WatchTimes,
        on_taken: Callable[[], None],
        on_news: Callable[[], None],
        rng: random.Random,
    ) -> None:
        """Args:
        open_api: makes the client; raises `RuntimeUnavailableError`.
        on_taken: called when a Pod is removed by something other than us.
        on_news: called when the apiserver answers again.
        """
        self._open_api = open_api
        self._registry = registry
        self._clock = clock
        self._times = times
        self._on_taken = on_taken
        self._on_news = on_news
        self._rng = rng
        self._closed = threading.Event()
        self._listed = threading.Event()
        self._thread: threading.Thread | None = None
        self._stream: Watch | None = None
        self._api: Api | None = None
        self._failures = 0
        self._compared_at = Monotonic(0.0)
        self.fleet = ""
        """The anchor's uid; "" while it is not known, or gone."""
        self.missing = ""
        """Why there is no anchor; "" while there is one."""
        self.unavailable_reason = ""
        """Why the apiserver can't be used; "" while it answers, and before the first try."""

    @property
    def api(self) -> Api | None:
        """The client; None before the first try."""
        return self._api

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="kubernetes-watch", daemon=True)
            self._thread.start()

    def wait_until_listed(self, seconds: float) -> bool:
        """Wait until all Pods have been listed once."""
        return self._listed.wait(seconds)

    def close(self) -> None:
        """End the thread, without waiting for an apiserver that does not answer."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.close()
        if self._thread is not None:
            self._thread.join(1.0)
        if self._api is not None:
            self._api.close()

    def read_anchor(self) -> None:
        """Read the fleet's ConfigMap. Raises `RuntimeUnavailableError`, and `ApiError` if we may not."""
        api = self._client()
        try:
            found = api.get("configmaps", ANCHOR)
        except ApiError as error:
            if not error.is_missing:
                raise
            if not self.missing:
                log.warning(events.CLUSTER_ANCHOR_MISSING, namespace=api.namespace, name=ANCHOR)
            self.fleet, self.missing = (
                "",
                (
                    f"namespace {api.namespace} has no ConfigMap {ANCHOR}, to which the fleet's Pods belong:"
                    f" `kubectl create configmap {ANCHOR} --namespace {api.namespace}` makes it"
                ),
            )
            return
        self.fleet, self.missing = text(at(found, "metadata", "uid")), ""

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                version = self._list()
                self._follow(version)
            except (RuntimeUnavailableError, ApiError) as error:
                self._lost(error)
            except Exception as error:
                log.exception(events.CLUSTER_CALL_FAILED)
                self._lost(RuntimeUnavailableError(f"the apiserver sent an answer that can't be read: {error}"))

    def _client(self) -> Api:
        if self._api is None:
            self._api = self._open_api()
        return self._api

    def _list(self) -> str:
        """List all Pods of the fleet; return the version of the list. Without a fleet there is nothing to list."""
        self.read_anchor()
        if not self.fleet:
            raise RuntimeUnavailableError(self.missing)
        began_at = self._clock.monotonic()
        listed = self._client().list("pods", selector=f"{FLEET_LABEL}={self.fleet}")
        now = self._clock.monotonic()
        self._registry.review(listed.items, began_at=began_at, at=now)
        self._compared_at = now
        self._found()
        self._listed.set()
        return listed.version

    def _follow(self, version: str) -> None:
        """Watch from this version on, until all Pods have to be listed again. Raises `RuntimeUnavailableError`."""
        breaks, fleet = 0, self.fleet
        while not self._closed.is_set() and breaks < MAX_BREAKS and fleet == self.fleet:
            opened_at = self._clock.monotonic()
            try:
                seen = self._watch_from(version)
            except ApiError as error:  # 410 by its status or as an event, or any other: the list shows what is true
                log.debug(events.CLUSTER_CALL_FAILED, error=str(error), status=error.status)
                if not error.is_expired:
                    self._pause()
                return
            except RuntimeUnavailableError as error:  # not opened: the apiserver is away
                self._lost(error)
                breaks += 1
                continue
            is_brief = seen == version and self._clock.monotonic() - opened_at < _BRIEF_SECONDS
            breaks = breaks + 1 if is_brief else 0
            if is_brief:
                self._pause()
            version = seen
            if self._clock.monotonic() - self._compared_at >= self._times.compare and not self._compare():
                return
            self.read_anchor()

    def _watch_from(self, version: str) -> str:
        """Watch until the apiserver ends it, or it breaks; return the last version that it showed."""
        seconds = self._rng.uniform(self._times.shortest, self._times.longest)
        selector = f"{FLEET_LABEL}={self.fleet}"
        stream = self._client().watch(
            "pods", selector=selector, version=version, seconds=seconds, silent_seconds=self._times.silent
        )
        self._stream = stream
        self._found()
        try:
            for kind, found in stream:
                if self._closed.is_set():
                    break
                version = text(at(found, "metadata", "resourceVersion")) or version
                if kind != "BOOKMARK":
                    deleted: Literal["yes", "no"] = "yes" if kind == "DELETED" else "no"
                    if self._registry.observe(found, at=self._clock.monotonic(), deleted=deleted):
                        self._on_taken()
        except RuntimeUnavailableError as error:
            log.debug(events.CLUSTER_CALL_FAILED, error=str(error))
        finally:
            self._stream = None
            stream.close()
        return version

    def _compare(self) -> bool:
        """Compare the names of all Pods with those that are known; return whether they agree."""
        began_at = self._clock.monotonic()
        listed = self._client().list("pods", selector=f"{FLEET_LABEL}={self.fleet}", part="metadata")
        self._compared_at = self._clock.monotonic()
        names = self._registry.differs(listed.items, began_at=began_at)
        if names:
            log.warning(events.CLUSTER_EVENTS_LOST, pods=names[:10], count=len(names))
        return not names

    def _pause(self) -> None:
        """Sleep before the next try: longer after each failure, and never the same for two supervisors."""
        times = self._times
        longest = min(times.last_pause, times.first_pause * _FACTOR ** min(self._failures, 20))
        self._failures += 1
        self._closed.wait(self._rng.uniform(longest / 2, longest))

    def _lost(self, error: Exception) -> None:
        if self._closed.is_set():
            return
        why = str(error) if isinstance(error, RuntimeUnavailableError) else f"the apiserver refuses: {error}"
        if not self.unavailable_reason and why != self.missing:
            log.warning(events.CLUSTER_LOST, error=why)
        self.unavailable_reason = why
        self._pause()

    def _found(self) -> None:
        self._failures = 0
        if self.unavailable_reason:
            log.info(events.CLUSTER_FOUND, url=self._client().url)
            self.unavailable_reason = ""
            self._on_news()
