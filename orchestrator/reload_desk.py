"""Where reloads are asked for, by signal, file or command, carried out, and answered: each of them in the same way."""

from collections.abc import Callable, Mapping

import structlog

from orchestrator import events
from orchestrator.changes import PoolChange
from orchestrator.clock import Clock
from orchestrator.reload import Pools, Refused, Reloads
from orchestrator.sd_notify import Notices
from orchestrator.state import StateDir

log = structlog.get_logger()


class ReloadDesk:
    """The reloads of one supervisor. Belongs to its thread."""

    def __init__(
        self,
        reloads: Reloads,
        *,
        files: StateDir,
        clock: Clock,
        notices: Notices,
        apply: Callable[[Pools], list[PoolChange]],
        status: Callable[[], str],
    ) -> None:
        """`apply` makes pools the ones to work with; `status` is what the supervisor is about, in a line."""
        self._reloads = reloads
        self._files = files
        self._clock = clock
        self._notices = notices
        self._apply = apply
        self._status = status
        self._asked = files.reload_asked()  # whoever asked before we were there has us now

    def attend(self) -> None:
        """Reload, if somebody asked or the file is another one."""
        asked = self._files.reload_asked()
        if asked != self._asked:
            self._asked = asked
            self._reloads.ask()
        now = self._clock.monotonic()
        if not self._reloads.is_due(now=now):
            return
        found = self._reloads.outcome()
        if found is None:
            return
        self._notices.reloading(now=now)
        if isinstance(found, Refused):
            log.error(events.SUPERVISOR_RELOAD_REFUSED, mistakes=list(found.mistakes))
            self._answer({"mistakes": list(found.mistakes)})
            self._notices.ready(f"settings refused, as before; {self._status()}")
            return
        changes = [change.to_json() for change in self._apply(found.pools)]
        answer = {"changes": changes, "queues": list(found.queues), "next_start": list(found.waiting)}
        log.info(events.SUPERVISOR_RELOADED, pools=sorted(found.pools), **answer)
        self._answer(answer)
        self._notices.ready(self._status())

    def _answer(self, answer: Mapping[str, object]) -> None:
        at = round(self._clock.wall_seconds(), 3)
        try:
            self._files.answer_reload({"request": self._asked, "at": at, **answer})
        except OSError as error:
            log.warning(events.STATE_NOT_WRITTEN, path=str(self._files.path), error=error.strerror)
