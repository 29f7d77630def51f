"""Keeps pools at their size: turns at a cadence, and at once when a worker ends or a task meets an empty pool.

Owns the order of things: adoption at the start, signals, lead, reload, stop. What a turn does is `reconcile`'s.
"""

import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock, SystemMonotonicClock
from orchestrator.config.pools import PoolSpec, SupervisorSettings
from orchestrator.launch import Launch
from orchestrator.log_once import LogOnce
from orchestrator.runtime import Runtime
from orchestrator.source import WorkSource
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.leader import LeaderElection, holder_of
from orchestrator.supervisor.reconciler import Reconciler
from orchestrator.supervisor.reload import Pools, ReloadedSettings, ReloadHandler, Reloads
from orchestrator.supervisor.snapshot import SnapshotWriter
from orchestrator.supervisor.systemd import Notices, status_of
from orchestrator.supervisor.view import Heartbeat, Phase
from orchestrator.supervisor.wakeups import ArrivalWatch
from orchestrator.unix_signals import handling_signals

log = structlog.get_logger()

PASS_SECONDS: Final = 1.0
"""The longest sleep between two passes: how late a changed file or a lost lead is noticed."""
KILLED_SECONDS: Final = 10.0
"""How long a stop waits for workers that were ended: one in an uninterruptible wait must not hold it for ever."""

_IDENTITY_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_IDENTITY_CHARS: Final = 6


class Supervisor:
    """One supervisor of one state directory. `run` belongs to one thread; requests may come from any."""

    def __init__(
        self,
        settings: SupervisorSettings,
        pools: Mapping[str, PoolSpec],
        *,
        source: WorkSource,
        runtime: Runtime,
        files: StateDir,
        url: str,
        shown_url: str = "",
        token: str | None = None,
        load: Callable[[], Pools | ReloadedSettings] | None = None,
        watched: Path | None = None,
        clock: MonotonicClock | None = None,
        pulse: Heartbeat | None = None,
        environment: Mapping[str, str] | None = None,
        identify: Callable[[str], str] | None = None,
    ) -> None:
        """Args:
        files: the folder of `settings.state_dir`.
        url: the server or store that workers lease from; `token` is what they present there.
        shown_url: the same for people, where `url` may have a password in it.
        load: reads the pools anew for a reload; raises `ReloadRefusedError` for a file that can't be used.
        watched: the file whose change is a reload.
        pulse: what other threads are shown.
        environment: where a service manager told its socket; the process's own by default.
        identify: makes a fresh worker identity from its pool's name.
        """
        self._files = files
        self._runtime = runtime
        self._clock = clock or SystemMonotonicClock()
        self._first_pools = dict(pools)
        self._notices = Notices(os.environ if environment is None else environment)
        self._reconciler = Reconciler(
            source=source,
            runtime=runtime,
            clock=self._clock,
            files=files,
            launch=Launch(url, str(files.path), str(files.lock_path), settings.orphan_grace, token=token),
            identify=identify or fresh_identity,
            may_act=self._leads,
        )
        self._lead = LeaderElection(source, holder=holder_of(files.path))
        self._reloads = Reloads(load=load, watched=watched, pools=pools)
        self._reload_desk = ReloadHandler(
            self._reloads,
            files=files,
            clock=self._clock,
            notices=self._notices,
            apply=self._reconciler.set_pools,
            status=self._status,
        )
        self._pulse = pulse or Heartbeat(now=self._clock.monotonic())
        self._showcase = SnapshotWriter(files, clock=self._clock, url=shown_url or url, pulse=self._pulse)
        self._arrivals = ArrivalWatch(source, on_arrival=self._arrive)
        self._arrived: deque[str] = deque()
        self._stops_asked = 0
        self._phase: Phase = "starting"
        self._told_why = ""
        self._leaves = False
        self._trouble = LogOnce()
        self.is_renewed = False

    # -- asked from any thread, or from a signal's handler --------------------------------------------------------

    def request_stop(self) -> None:
        """Stop gracefully: workers finish what they hold, within their grace. Asked twice: now."""
        self._stops_asked += 1
        self._runtime.wake()

    def request_reload(self, pools: Mapping[str, PoolSpec] | None = None) -> None:
        """Go on with these pools, or with those of the file as it is now."""
        self._reloads.ask(pools)
        self._runtime.wake()

    def request_leave(self, *, renew: bool = False) -> None:
        """End and leave the workers to the next supervisor of this state directory.

        renew: whoever runs us is to start that one in our place, see `is_renewed`.
        """
        self._leaves, self.is_renewed = True, renew
        self._runtime.wake()

    def snapshot(self) -> Mapping[str, object]:
        """The fleet as last shown (`snapshot.snapshot_of`), and how this supervisor is; also in `supervisor.json`."""
        return self._showcase.snapshot

    def _arrive(self, pool: str) -> None:
        self._arrived.append(pool)
        self._runtime.wake()

    # -- the life of it -------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Supervise until asked to stop; returns the exit code.

        Signals are handled when this is the main thread: SIGTERM and SIGINT stop, SIGHUP reloads, SIGUSR1 leaves,
        SIGUSR2 leaves to be renewed. Raises `AlreadySupervisedError`.
        """
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGTERM: self.request_stop,
            signal.SIGINT: self.request_stop,
            signal.SIGHUP: self.request_reload,
            signal.SIGUSR1: self.request_leave,
            signal.SIGUSR2: lambda: self.request_leave(renew=True),
        }
        with self._files.locked(), handling_signals(handlers):
            try:
                self._start()
                while not (self._stops_asked or self._leaves):
                    if self._pass():
                        self._sleep()
                    else:
                        time.sleep(PASS_SECONDS)  # not at the runtime: what broke may be what would wake us
                if self._stops_asked:
                    self.is_renewed = False
                    self._stop()
                else:
                    self._leave()
            finally:
                self._arrivals.stop()
        return 0

    def _start(self) -> None:
        self._reconciler.set_pools(self._first_pools, learned=self._showcase.learned())
        self._reconciler.adopt(self._showcase.roster(), memories=self._showcase.memories())
        self._arrivals.start()
        log.info(
            events.SUPERVISOR_STARTED,
            pools=sorted(self._first_pools),
            adopted=len(self._reconciler.workers),
            state_dir=str(self._files.path),
        )
        self._notices.ready(self._status())

    def _status(self) -> str:
        pools = self._reconciler.pools.values()
        leaving = sum(len(pool.fleet.leaving) for pool in pools)
        return status_of(self._phase, pools=len(pools), workers=len(self._reconciler.workers), leaving=leaving)

    def _pass(self) -> bool:
        """Once round: what was asked, who ended, whose turn it is. False when it broke down half-way."""
        try:
            is_well = self._do_what_is_due()
        except Exception as error:  # noqa: BLE001  the top of a pass
            self._tell(error)
            return False
        if self._trouble.recovers():
            log.info(events.TURN_RECOVERED)
        if is_well:
            self._feed_watchdog()
        return True

    def _do_what_is_due(self) -> bool:
        """False when a pool's turn failed."""
        is_well = True
        self._reconciler.reap()
        self._take_the_lead()
        self._reload_desk.attend()
        while self._arrived:
            self._reconciler.arrived(self._arrived.popleft())
        if self._phase == "leading":
            is_well = self._turns()
            self._arrivals.wait_for(self._reconciler.waiting_pools())
        else:
            self._arrivals.wait_for(())
            self._reconciler.end_overdue()
        self._show()
        return is_well

    def _show(self) -> None:
        self._showcase.update(self._reconciler.pools.values(), phase=self._phase)
        self._notices.status(self._status())

    def _turns(self) -> bool:
        began_at, due_at = self._clock.monotonic(), self._reconciler.next_turn_at()
        is_well = self._reconciler.turns()
        if due_at is not None and due_at <= began_at:
            self._pulse.took(self._clock.monotonic() - began_at, is_well=is_well)
        return is_well

    def _sleep(self) -> None:
        """Until the next turn, an exit, an arrival or a request, whichever is first."""
        seconds = PASS_SECONDS
        next_turn_at = self._reconciler.next_turn_at() if self._phase == "leading" else None
        if next_turn_at is not None:
            seconds = min(seconds, max(0.0, next_turn_at - self._clock.monotonic()))
        if not (self._stops_asked or self._leaves):
            self._runtime.wait_for_exit(timeout_seconds=seconds)

    def _leads(self) -> bool:
        return self._lead.is_live(now=self._clock.monotonic())

    def _take_the_lead(self) -> None:
        """Act only as the leader of the store; where another one leads, its workers count, and ours go.

        Where nobody can be asked, ours stay: they may be all there are.
        """
        before = self._phase
        drained_at = self._reconciler.drained_at()
        if drained_at is not None:
            self._phase = "draining"
            if before != "draining":
                log.warning(events.SUPERVISOR_DRAINING, why="this host is drained", since=round(drained_at, 3))
            self._lead.give_up()
            self._reconciler.drain_host()
            return
        self._lead.hold(now=self._clock.monotonic())
        self._phase = "leading" if self._leads() else "standby"
        if self._phase == "leading":
            if before != "leading":
                log.info(events.SUPERVISOR_LEADING)
            self._told_why = ""
            return
        why = "another supervisor leads this store"
        if self._lead.is_anothers:
            self._reconciler.drain_all(why=why)
        else:
            why = "the store can't be asked who leads; its workers go on"
        if self._told_why != why:
            self._told_why = why
            log.warning(events.SUPERVISOR_STANDBY, why=why)

    def _feed_watchdog(self) -> None:
        now = self._clock.monotonic()
        self._pulse.passed(now=now)
        self._notices.finished_turns(now=now)

    def _leave(self) -> None:
        """End without asking any worker anything: they work on, and what was begun with them is shown to the next."""
        self._keep()
        self._phase = "stopping"
        if self.is_renewed:
            self._notices.reloading(now=self._clock.monotonic())
        else:
            self._notices.stopping("leaving: the workers stay for the next supervisor")
        self._show()
        log.info(events.SUPERVISOR_LEFT, workers=sorted(self._reconciler.workers), renewed=self.is_renewed)

    def _keep(self) -> None:
        self._arrivals.wait_for(())
        self._showcase.keep_learned(self._reconciler.pools.values())
        self._reconciler.keep_usage()

    def _stop(self) -> None:
        self._phase = "stopping"
        self._notices.stopping(self._status())
        self._keep()
        self._reconciler.drain_all(why="the supervisor stops")
        give_up_at: Monotonic | None = None
        while self._reconciler.workers:
            now = self._clock.monotonic()
            if self._stops_asked > 1 and give_up_at is None:
                give_up_at = Monotonic(now + KILLED_SECONDS)
                self._reconciler.kill_all(why="asked twice to stop")
            elif give_up_at is not None and now >= give_up_at:
                break
            if not self._stopping_pass():
                time.sleep(PASS_SECONDS)
        self._phase = "stopped"
        self._show()
        self._lead.give_up()
        log.info(events.SUPERVISOR_STOPPED, left=sorted(self._reconciler.workers))

    def _stopping_pass(self) -> bool:
        """Once round while workers finish; False when it broke down half-way."""
        try:
            self._reconciler.end_overdue()
            self._show()
            self._notices.finishing(self._status())
            self._feed_watchdog()
            self._runtime.wait_for_exit(timeout_seconds=PASS_SECONDS)
            self._reconciler.reap()
        except Exception as error:  # noqa: BLE001  the top of a pass
            self._tell(error)
            return False
        return True

    def _tell(self, error: Exception) -> None:
        if self._trouble.is_new(error):
            log.error(events.TURN_FAILED, exc_info=error)


def fresh_identity(pool: str) -> str:
    """A name for a worker that no worker had before: `resize-7f3k2q`."""
    return f"{pool}-{''.join(secrets.choice(_IDENTITY_ALPHABET) for _ in range(_IDENTITY_CHARS))}"
