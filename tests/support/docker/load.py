"""A steady load of short tasks for container stories, added by a thread, and their outcome."""

import threading
from collections import Counter
from types import TracebackType
from typing import Self

from tests.support.docker.site import DockerSite
from tests.support.eventually import eventually

PAUSE_SECONDS = 0.05
REST_SECONDS = 0.05
SETTLE_SECONDS = 120.0


class ContainerLoad:
    """Adds a task of 50 ms every 50 ms while its context is open."""

    def __init__(self, site: DockerSite) -> None:
        self._site = site
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._add, daemon=True)
        self.names: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def settle(self) -> None:
        """Wait until every acknowledged task is finished; fail when one is dead."""
        eventually(self._site.is_done, seconds=SETTLE_SECONDS)
        missing = set(self.names) - {note.task for note in self._site.notes("end")}
        assert not missing, f"{len(missing)} of {len(self.names)} tasks were deleted and never finished"

    def run_twice(self) -> set[str]:
        """Return the tasks that were begun more than once."""
        counts = Counter(note.task for note in self._site.notes("begin"))
        return {name for name, count in counts.items() if count > 1}

    def _add(self) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            self.names += self._site.add(f"rest {REST_SECONDS}")
