"""The fleet as commands show it: what its supervisor last published, with the figures that the queues have now.

`pools`, `workers` and `top` read it here. Where the queues don't answer, the figures are the supervisor's last ones,
and `ShownFleet.age` says how old they are, and why.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias, Unpack, cast

from orchestrator.base.clock import MonotonicClock, SystemMonotonicClock
from orchestrator.cli.fleet_events import not_in_force
from orchestrator.cli.project_file import load_project
from orchestrator.cli.store_leader import NoFleetError, StoreLeader, leader_at, leader_of
from orchestrator.fleet.certificates import is_failure
from orchestrator.fleet.figures import DRAINED, FleetFigures, figures_of
from orchestrator.settings_file import DEFAULT_FILE, state_of
from orchestrator.sources.live_fleet import observed_now, outside_pools, present_json, refreshed
from orchestrator.state.directory import StateDir
from orchestrator.state.templates import TemplateRecord, template_in
from queue_core.cli import exits
from queue_core.cli.commands.health import probe
from queue_core.cli.credentials import bearer_token
from queue_core.cli.failure import CommandError, failure_of
from queue_core.cli.target import Target, TargetOptions, check_token_stays, find_target
from queue_core.client.connect import SERVER_SCHEMES, open_queues
from queue_core.client.http.caller import Retries
from queue_core.client.http.probe import is_listening
from queue_core.client.queue import Queues
from queue_core.errors import PermissionDeniedError, QueueError, UnauthenticatedError
from queue_core.process.wording import iso_instant, shown_seconds
from queue_core.stores import sqlite_path

Json: TypeAlias = dict[str, object]

FLEET: Final = "/v1/fleet"
"""The path of a supervisor's fleet (see `http_api.fleet`)."""
STALE_SECONDS: Final = 15.0
"""Age of a living supervisor's snapshot from which on it is said to be stuck."""
CALL_SECONDS: Final = 3.0
"""Timeout of one call to the queues: a person waits for the figures."""
DECISIONS: Final = 20
"""The newest decisions that are shown with a fleet, at most."""
MAX_ENDED: Final = 1_000
"""Ended workers among which those that failed are looked for."""
_TIMES: Final = frozenset({"at", "ends_at", "next_start_at", "shown_at", "since", "spawned_at", "started_at"})
_NO_SUPERVISOR: Final = "start it with `towline up`, or name another settings file with -f"


@dataclass(frozen=True, slots=True)
class ShownFleet:
    """A supervisor's snapshot, with the figures of now unless `trouble` says why they are not.

    `age_seconds` is the age of the snapshot; `shown_at` is when this was read, in seconds since the epoch by the clock
    of the supervisor's host. `decisions` and `deaths` are the newest, newest first; `templates` is by pool.
    `elsewhere` says where another supervisor leads that can't be asked; `absence` why there is no snapshot.
    """

    snapshot: Json
    is_alive: bool
    age_seconds: float
    shown_at: float = 0.0
    is_drained: bool = False
    trouble: str = ""
    decisions: Sequence[Json] = ()
    deaths: Sequence[Json] = ()
    templates: Mapping[str, TemplateRecord] = field(default_factory=dict)
    elsewhere: str = ""
    absence: str = ""

    @property
    def pools(self) -> dict[str, Json]:
        """The pools by name."""
        return cast("dict[str, Json]", self.snapshot.get("pools", {}))

    @property
    def workers(self) -> list[Json]:
        """The workers, oldest first."""
        return cast("list[Json]", self.snapshot.get("workers", []))

    def sentences(self, pool: str | None = None) -> list[str]:
        """Return what a person has to know beside the figures, of all pools or of one, the host's state first."""
        drained = [DRAINED] if self.is_drained else []
        return [*drained, *(self.figures.sentences(pool) if self.is_alive else ())]

    @property
    def figures(self) -> FleetFigures:
        """The same as typed figures."""
        return figures_of(self.snapshot, now_seconds=self.shown_at)

    @property
    def figures_age_seconds(self) -> float:
        """The age of counts, waits and workers' states: 0 when they are of now."""
        return self.age_seconds if self.trouble else 0.0

    @property
    def not_in_force(self) -> list[str]:
        """A sentence for each setting that is changed in the file and waits for the next start."""
        found = self.snapshot.get("not_in_force")
        return [not_in_force(str(setting)) for setting in found] if self.is_alive and isinstance(found, list) else []

    @property
    def age(self) -> str:
        """A sentence on how old the figures are; "" when they are of now and their supervisor lives."""
        if self.absence:
            return self.absence
        seconds = shown_seconds(self.age_seconds)
        reason = f" ({self.trouble})" if self.trouble else ""
        if not self.is_alive and self.elsewhere:
            return f"data is {seconds} old{reason}: the current leader runs {self.elsewhere}"
        if not self.is_alive and self.trouble:
            return f"no supervisor is running: data is {seconds} old{reason}"
        if not self.is_alive:
            return f"no supervisor is running: task counts are current, workers and targets {seconds} old"
        if self.trouble:
            return f"data is {seconds} old{reason}"
        if self.age_seconds > STALE_SECONDS:
            return f"the supervisor has published nothing for {seconds}: is it stuck?"
        return ""


class FleetSource(Protocol):
    """A place in which a supervisor publishes its fleet: a state directory of this host, or a server."""

    @property
    def files(self) -> StateDir | None:
        """The state directory, where it is on this host."""

    def published(self, *, deaths: int) -> ShownFleet:
        """Return the fleet as last published, with at most this many workers that failed. Raises `CommandError`."""

    def target(self) -> Target:
        """Return the server or store of its queues. Raises `CommandError`."""


class LocalFleet:
    """The fleet of a state directory."""

    def __init__(
        self, files: StateDir, where: TargetOptions, *, clock: MonotonicClock, leader: StoreLeader | None = None
    ) -> None:
        """`leader`: the supervisor that leads the store from elsewhere, and can't be asked."""
        self.files: StateDir | None = files
        self._leader = leader
        self._files = files
        self._where = where
        self._clock = clock
        self._url = ""

    def published(self, *, deaths: int) -> ShownFleet:
        """See `FleetSource.published`."""
        snapshot = self._files.read_snapshot()
        if snapshot is None:
            if self._leader is not None:
                raise self._leader.error()
            message = "no supervisor has run here"
            raise NoFleetError(message, code=exits.UNAVAILABLE, where=str(self._files.path), fix=_NO_SUPERVISOR)
        self._url = str(snapshot.get("url") or "")
        now, shown_at = self._clock.wall_seconds(), snapshot.get("shown_at")
        return ShownFleet(
            snapshot,
            self._files.is_supervised(),
            max(0.0, now - shown_at) if isinstance(shown_at, int | float) else 0.0,
            shown_at=now,
            is_drained=self._files.is_drained(),
            decisions=self._files.read_decisions(limit=DECISIONS),
            deaths=self._failures(deaths) if deaths else (),
            templates=self._files.read_templates(),
            elsewhere="" if self._leader is None else self._leader.supervisor.place,
        )

    def _failures(self, limit: int) -> list[Json]:
        return [death for death in self._files.read_deaths(limit=MAX_ENDED) if is_failure(death)][:limit]

    def target(self) -> Target:
        """Return what the options name, else the server that the supervisor itself uses, else that of the settings."""
        named = self._where["url"] or self._where["store"]
        if not named and self._url.startswith(SERVER_SCHEMES) and is_listening(self._url):
            token = bearer_token(self._where["token_file"])
            if not self._files.is_supervised():  # else it is ours, which was started with this address
                check_token_stays(self._url, origin=str(self._files.path), token=token)
            return Target(self._url, "the supervisor's", token)
        return find_target(**self._where)


class RemoteFleet:
    """The fleet of a supervisor behind a server."""

    files: StateDir | None = None

    def __init__(self, target: Target, *, queues: Target | None = None) -> None:
        """`queues`: where its queues are, unless they are at the same server."""
        self._target = target
        self._queues = queues or target

    def published(self, *, deaths: int) -> ShownFleet:
        """See `FleetSource.published`."""
        found = probe(self._target, FLEET, what="the supervisor", missing="fine")
        if found is None:
            leader = leader_at(self._target, token=None)
            if leader is not None:
                raise leader.error()
            raise NoFleetError(
                "this server has no supervisor",
                code=exits.UNAVAILABLE,
                where=self._target.shown,
                fix="give the URL of a `towline up`, or of supervisor.listen; or -f with its settings file",
            )
        snapshot = cast("Json", found["snapshot"])
        age_seconds = float(cast("float", found["age_seconds"]))
        shown_at, templates = snapshot.get("shown_at"), cast("Json", found["templates"])
        return ShownFleet(
            snapshot,
            is_alive=bool(found["alive"]),
            age_seconds=age_seconds,
            shown_at=float(shown_at) + age_seconds if isinstance(shown_at, int | float) else 0.0,
            is_drained=bool(found["drained"]),
            decisions=cast("list[Json]", found["decisions"]),
            deaths=cast("list[Json]", found["deaths"])[:deaths],
            templates={pool: one for pool, data in templates.items() if (one := template_in(data)) is not None},
        )

    def target(self) -> Target:
        """Return the server or store of its queues."""
        return self._queues


class FleetReader:
    """Reads the fleet of now, as often as it is asked; keeps its connection to the queues. Use it in one thread."""

    def __init__(self, source: FleetSource) -> None:
        self.source = source
        self._queues: Queues | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def read(self, *, deaths: int = 0) -> ShownFleet:
        """Return the fleet with the figures of now; with the last ones where the queues don't answer.

        Raises `CommandError` when no supervisor ever published it.
        """
        shown = self.source.published(deaths=deaths)
        try:
            queues = self._queues = self._queues or _opened(self.source.target())
            snapshot = refreshed(shown.snapshot, observed_now(queues, shown.snapshot), now_seconds=shown.shown_at)
            snapshot |= outside_pools(queues, shown.snapshot)
        except CommandError as error:
            self.close()
            return replace(shown, trouble=error.lines[0])
        except (QueueError, OSError) as error:
            self.close()
            return replace(shown, trouble=_trouble(error))
        return replace(shown, snapshot=snapshot)

    def read_workers(self, *, deaths: int = 0) -> ShownFleet:
        """Return the fleet; without a supervisor that can be asked, the workers that its queues know.

        Raises `CommandError` where there are none.
        """
        try:
            return self.read(deaths=deaths)
        except NoFleetError as error:
            try:
                queues = self._queues = self._queues or _opened(self.source.target())
                found = [present_json(one) for one in queues.present_workers()]
            except (CommandError, QueueError, OSError):
                raise error from None
            if not found:
                raise
            now = SystemMonotonicClock().wall_seconds()
            return ShownFleet(
                {"unsupervised": found}, is_alive=False, age_seconds=0.0, shown_at=now, absence=error.lines[0]
            )

    def close(self) -> None:
        """Close the connection; the next `read` opens it again."""
        if self._queues is not None:
            with suppress(QueueError):
                self._queues.close()
        self._queues = None


def fleet_source(**where: Unpack[TargetOptions]) -> FleetSource:
    """Return where the options find a fleet: at a server that `--url` names, else in the settings file's state folder,
    else at the supervisor that leads the store.

    Raises `CommandError`.
    """
    clock, leader = SystemMonotonicClock(), None
    has_file = where["file"] is not None or Path(DEFAULT_FILE).is_file()
    if where["file"] is None and (where["url"] or not has_file):
        target = find_target(**where)
        if target.is_server:
            return RemoteFleet(target)
    files = state_of(load_project(where["file"])) if has_file else None
    if files is None or where["store"] or not files.is_supervised():
        leader = leader_of(**where)
        if leader is not None and leader.api is not None:
            return RemoteFleet(leader.api, queues=leader.queues)
    return LocalFleet(files or state_of(load_project(where["file"])), where, clock=clock, leader=leader)


def _trouble(error: Exception) -> str:
    """Return why the queues did not answer, with what helps where that is a token."""
    failure = failure_of(error)
    if isinstance(error, UnauthenticatedError | PermissionDeniedError) and failure is not None:
        return f"{error}: {failure.fix}"
    return str(error)


def json_times(value: object) -> object:
    """Return JSON with the times of a snapshot, in seconds since the epoch, as ISO 8601 with their zone."""
    if isinstance(value, dict):
        return {
            name: iso_instant(one) if name in _TIMES and isinstance(one, int | float) else json_times(one)
            for name, one in value.items()
        }
    return [json_times(one) for one in value] if isinstance(value, list | tuple) else value


def shown_fleet(files: StateDir) -> ShownFleet:
    """Return the fleet of a state directory as last published, without asking its queues. Raises `CommandError`."""
    where: TargetOptions = {"url": None, "store": None, "token_file": None, "file": None}
    return LocalFleet(files, where, clock=SystemMonotonicClock()).published(deaths=0)


def _opened(target: Target) -> Queues:
    """Open the queues of a target. Raises `CommandError`, also for a store that is not there: none is made to read."""
    if target.url.startswith("sqlite:") and not sqlite_path(target.url).exists():
        raise CommandError(f"no such store: {sqlite_path(target.url)}", code=exits.NO_INPUT)
    retries = Retries(tries=1, timeouts=1)
    return open_queues(
        target.url, token=target.token, durability=target.durability, retries=retries, timeout_seconds=CALL_SECONDS
    )
