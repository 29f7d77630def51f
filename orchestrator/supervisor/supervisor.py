"""Keep pools at their size: run turns at an interval, and at once after a worker's end or a task's arrival.

Owns the sequence: adoption, signals, leader election, reload, stop. A turn itself is the reconciler's.
"""

import os
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock, SystemMonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.config.diff import PoolChange
from orchestrator.config.pools import PoolSpec, SupervisorSettings
from orchestrator.launch import Launch
from orchestrator.runtime import Runtime, WorkerHandle, is_led_from_anywhere, is_shared
from orchestrator.runtimes.procfs import boot
from orchestrator.source import TickAdder, WorkSource
from orchestrator.state.directory import StateDir
from orchestrator.state.private_files import identity_of_folder
from orchestrator.supervisor.leader import LeaderElection, holder_of
from orchestrator.supervisor.log_once import LogOnce
from orchestrator.supervisor.pool import AT_ONCE
from orchestrator.supervisor.reconciler import Reconciler
from orchestrator.supervisor.reload import Pools, ReloadedSettings, ReloadHandler, ReloadRequests
from orchestrator.supervisor.snapshot import SnapshotWriter
from orchestrator.supervisor.succession import FleetIdentity, Legacy, Succession
from orchestrator.supervisor.systemd import ServiceNotifier, status_of
from orchestrator.supervisor.unix_signals import handling_signals
from orchestrator.supervisor.unserved import UnservedWatch
from orchestrator.supervisor.view import Heartbeat, Phase
from queue_core.log import get_logger
from queue_core.process.own_terminal import OwnTerminal

log = get_logger()

PASS_SECONDS: Final = 1.0
"""The longest sleep between two passes: how late a changed file or lost leadership is noticed."""
KILLED_SECONDS: Final = 10.0
"""How long a stop waits for killed workers: one in an uninterruptible wait must not block it for ever."""
ADOPT_AGAIN_SECONDS: Final = (5.0, 15.0, 45.0)
"""When workers are looked for again, after the lead began."""
GIVE_WAY_SECONDS: Final = 2.0
"""Interval at which a supervisor that led looks whether the leader has adopted its workers."""
MAX_NAMED: Final = 10
"""Workers that a log entry names, at most."""
CLUSTER_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
"""Set in every container of a cluster."""
POD_REF: Final = "kubernetes:"
ARRIVAL_WAIT_SECONDS: Final = 1.0
"""Length of one wait at the source: a stop may have to wait for this long."""

_IDENTITY_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_IDENTITY_CHARS: Final = 6


class Supervisor:
    """A supervisor of one state directory. `run` belongs to one thread; requests may come from any."""

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
        heartbeat: Heartbeat | None = None,
        environment: Mapping[str, str] | None = None,
        identify: Callable[[str], str] | None = None,
        terminal: OwnTerminal | None = None,
        ticks: TickAdder | None = None,
        fleet: FleetIdentity | None = None,
        on_pools: Callable[[Collection[PoolSpec]], None] = lambda _pools: None,
    ) -> None:
        """Args:
        files: the folder `settings.state_dir`.
        url: the server or store that workers lease from; `token` authenticates them there.
        shown_url: the same for people, if `url` contains a password.
        load: reads the pools again for a reload; raises `ReloadRefusedError` for an invalid file.
        watched: the file whose change causes a reload.
        heartbeat: what other threads can read.
        environment: has the service manager's variables; the process's own by default.
        identify: makes a new worker name from its pool's name.
        terminal: the terminal whose hang-up ends the supervisor.
        ticks: adds the tasks of schedules while this supervisor leads.
        fleet: gets the id of the store's fleet.
        on_pools: called with the pools of the settings, before workers are adopted.
        """
        self._on_pools = on_pools
        self._ticks = ticks
        self._terminal = terminal
        self._files = files
        self._runtime = runtime
        self._clock = clock or SystemMonotonicClock()
        self._first_pools = dict(pools)
        variables = os.environ if environment is None else environment
        self._notifier = ServiceNotifier(variables)
        self._is_in_cluster = CLUSTER_VARIABLE in variables
        self._reconciler = Reconciler(
            source=source,
            runtime=runtime,
            clock=self._clock,
            files=files,
            launch=Launch(
                url,
                str(files.path),
                str(files.lock_path),
                settings.orphan_grace,
                token=token,
                identity=identity_of_folder(files.path),
            ),
            identify=identify or fresh_identity,
            may_act=self.is_leading,
            may_end=self._may_end,
            on_schedules=None if ticks is None else ticks.set_application,
        )
        holder = holder_of(files.path)
        self._election = LeaderElection(source, holder=holder, lead_seconds=settings.lead)
        self._succession = Succession(source, files, holder=holder, clock=self._clock, boot=boot(), fleet=fleet)
        self._rest_of_roster: tuple[WorkerHandle, ...] = ()
        self._adopt_again_at: list[Monotonic] = []
        self._look_at = AT_ONCE
        self._left_to_us: frozenset[str] = frozenset()
        self._left_pods: frozenset[str] = frozenset()
        self._ends_shared = False
        self._reloads = ReloadRequests(load=load, watched=watched, pools=pools)
        self._reload_handler = ReloadHandler(
            self._reloads,
            files=files,
            clock=self._clock,
            notifier=self._notifier,
            apply=self._set_pools,
            schedules=ticks.set_file if ticks is not None else None,
            status=self._status,
        )
        self._heartbeat = heartbeat or Heartbeat(now=self._clock.monotonic())
        self._snapshots = SnapshotWriter(files, clock=self._clock, url=shown_url or url, heartbeat=self._heartbeat)
        self._unserved = UnservedWatch(source, clock=self._clock)
        self._arrivals = ArrivalWatch(source, on_arrival=self._on_arrival)
        self._arrived: deque[str] = deque()
        self._stop_requests = 0
        self._phase: Phase = "starting"
        self._logged_why = ""
        self._is_leaving = False
        self._has_hung_up = False
        self._pass_errors = LogOnce()
        self.is_renewed = False

    # -- requests, from any thread or a signal handler ------------------------------------------------------------

    def request_stop(self) -> None:
        """Stop: workers finish what they hold, within their grace. A second request kills them."""
        self._stop_requests += 1
        self._runtime.wake()

    def request_reload(self, pools: Mapping[str, PoolSpec] | None = None) -> None:
        """Reload with these pools, or with those of the file as it is now."""
        self._reloads.request(pools)
        self._runtime.wake()

    def request_leave(self, *, renew: bool = False) -> None:
        """Exit and leave the workers running for the next supervisor of this state directory.

        renew: the caller of `run` starts that supervisor in our place (ADR 15), see `is_renewed`.
        """
        self._is_leaving, self.is_renewed = True, renew
        self._runtime.wake()

    def snapshot(self) -> Mapping[str, object]:
        """Return the last snapshot of the fleet and of this supervisor; as in `supervisor.json`."""
        return self._snapshots.snapshot

    def _hung_up_or_reload(self) -> None:
        if not self._stop_if_hung_up():
            self.request_reload()

    def _stop_if_hung_up(self) -> bool:
        """Stop if the terminal hung up; return whether it did. The kernel and a shell may both signal that."""
        if self._terminal is None or not self._terminal.is_gone():
            return False
        if not self._has_hung_up:
            self._has_hung_up = True
            self.request_stop()
        return True

    def _on_arrival(self, pool: str) -> None:
        self._arrived.append(pool)
        self._runtime.wake()

    # -- the run --------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Supervise until asked to stop; return the exit code.

        In the main thread signals are handled: SIGTERM, SIGINT and a hang-up of its terminal stop, SIGHUP else reloads,
        SIGUSR1 leaves, SIGUSR2 leaves
        to be renewed. Raises `AlreadySupervisedError`.
        """
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGTERM: self.request_stop,
            signal.SIGINT: self.request_stop,
            signal.SIGHUP: self._hung_up_or_reload,
            signal.SIGUSR1: self.request_leave,
            signal.SIGUSR2: lambda: self.request_leave(renew=True),
        }
        with self._files.locked(), handling_signals(handlers):
            try:
                self._start()
                # Also looked at in each round: it may have hung up while signals were ignored.
                while not (self._stop_if_hung_up() or self._stop_requests or self._may_leave()):
                    if self._pass():
                        self._sleep()
                    else:
                        time.sleep(PASS_SECONDS)  # not in the runtime: it may be what is broken
                if self._stop_requests:
                    self.is_renewed = False
                    self._stop()
                else:
                    self._leave()
            finally:
                self._arrivals.stop()
        return 0

    def _start(self) -> None:
        if self._ticks is not None:
            self._ticks.set_pools(self._first_pools.values())
        self._on_pools(self._first_pools.values())
        self._reconciler.set_pools(self._first_pools, learned=self._snapshots.learned())
        roster = self._snapshots.roster()
        self._rest_of_roster = tuple(handle for handle in roster if is_led_from_anywhere(handle.ref))
        own = [handle for handle in roster if not is_led_from_anywhere(handle.ref)]
        self._reconciler.adopt_own(own, memories=self._snapshots.memories())
        self._arrivals.start()
        log.info(
            events.SUPERVISOR_STARTED,
            pools=sorted(self._first_pools),
            adopted=len(self._reconciler.workers),
            state_dir=str(self._files.path),
        )
        self._notifier.ready(self._status())

    def _set_pools(self, pools: Pools) -> list[PoolChange]:
        if self._ticks is not None:
            self._ticks.set_pools(pools.values())
        self._on_pools(pools.values())
        changes = self._reconciler.set_pools(pools)
        if changes and self.is_leading():
            self._reconciler.adopt()  # there may be workers where none of the pools had any so far
        return changes

    def _status(self) -> str:
        pools = self._reconciler.pools.values()
        leaving = sum(len(pool.fleet.leaving) for pool in pools)
        return status_of(self._phase, pools=len(pools), workers=len(self._reconciler.workers), leaving=leaving)

    def _pass(self) -> bool:
        """Run one pass: requests, ended workers, turns that are due. False when it raised half-way."""
        try:
            is_well = self._do_what_is_due()
        except Exception as error:  # noqa: BLE001  the top of a pass
            self._log_error(error)
            return False
        if self._pass_errors.recovers():
            log.info(events.TURN_RECOVERED)
        if is_well:
            self._feed_watchdog()
        return True

    def _do_what_is_due(self) -> bool:
        """Return False when a pool's turn failed."""
        is_well = True
        self._reconciler.reap()
        self._lead_or_stand_by()
        self._reload_handler.reload_if_due()
        while self._arrived:
            self._reconciler.arrived(self._arrived.popleft())
        self._reconciler.heed_worker_requests()
        if self._phase == "leading":
            if self._ticks is not None:
                self._ticks.run(now=self._clock.monotonic())
            self._look_for_workers()
            is_well = self._turns()
            self._succession.keep_if_due(self._reconciler.pools.values())
            self._unserved.look(self._reconciler.works)
            self._arrivals.wait_for(self._reconciler.waiting_pools())
        else:
            self._arrivals.wait_for(())
            self._reconciler.end_overdue()
        self._show()
        return is_well

    def _show(self) -> None:
        self._snapshots.not_in_force = self._reload_handler.not_in_force
        self._snapshots.update(self._reconciler.pools.values(), phase=self._phase, unserved=self._unserved.found)
        self._notifier.status(self._status())

    def _turns(self) -> bool:
        began_at, due_at = self._clock.monotonic(), self._reconciler.next_turn_at()
        is_well = self._reconciler.turns()
        if due_at is not None and due_at <= began_at:
            self._heartbeat.record_round(self._clock.monotonic() - began_at, is_well=is_well)
        return is_well

    def _sleep(self) -> None:
        """Sleep until the next turn, an exit, an arrival or a request."""
        seconds = PASS_SECONDS
        due_at: Monotonic | None = None
        if self._phase == "leading":
            due_at = self._reconciler.next_turn_at()
            if self._ticks is not None:
                due_at = self._ticks.due_at if due_at is None else min(due_at, self._ticks.due_at)
        elif self._phase == "standby":
            due_at = self._election.due_at
        if due_at is not None:
            seconds = min(seconds, max(0.0, due_at - self._clock.monotonic()))
        if not (self._stop_requests or self._is_leaving):
            self._runtime.wait_for_exit(timeout_seconds=seconds)

    def is_leading(self) -> bool:
        """Return whether this supervisor may change workers at this instant; any thread may ask."""
        return self._election.is_live(now=self._clock.monotonic())

    def _lead_or_stand_by(self) -> None:
        """Lead, or stand by. Where another supervisor leads, its workers count and ours are drained.

        While the store is unavailable our workers stay: they may be the only ones.
        """
        before = self._phase
        drained_at = self._reconciler.drained_at()
        if drained_at is not None:
            self._ends_shared = self._ends_shared if before == "draining" else before == "leading"
            self._phase = "draining"
            if before != "draining":
                log.warning(events.SUPERVISOR_DRAINING, why="this host is drained", since=round(drained_at, 3))
            self._election.give_up()
            self._reconciler.drain_host()
            return
        self._election.hold(now=self._clock.monotonic())
        self._phase = "standby"
        if self.is_leading() and (before == "leading" or self._begin_to_lead()):
            self._phase = "leading"
            self._logged_why = ""
            return
        if before == "leading":
            self._reconciler.let_go(())
        why = "another supervisor leads this store"
        if self._election.is_led_by_another:
            self._give_way()
            self._reconciler.drain_all(why=why)
        else:
            why = "the store is unavailable, so the leader is unknown; the workers continue"
        if self._logged_why != why:
            self._logged_why = why
            log.warning(events.SUPERVISOR_STANDBY, why=why)

    def _begin_to_lead(self) -> bool:
        """Take over what the last leader kept, and the workers that exist; False when the store does not answer."""
        try:
            kept = self._succession.take_over()
        except SourceUnavailableError:
            return False
        roster, memories = self._rest_of_roster, self._snapshots.memories()
        if kept is not None:
            self._reconciler.take_up(kept.learned)
            roster, memories = tuple(one for one in kept.handles if is_led_from_anywhere(one.ref)), kept.memories
        self._files.hold_workers()
        found = self._reconciler.adopt(roster, memories=memories)
        now = self._clock.monotonic()
        self._adopt_again_at = [Monotonic(now + seconds) for seconds in ADOPT_AGAIN_SECONDS]
        self._rest_of_roster, self._left_to_us = (), frozenset()
        log.info(events.SUPERVISOR_LEADING, adopted=len(found))
        if kept is not None:
            self._log_elsewhere(kept)
        self._succession.keep(self._reconciler.pools.values())
        return True

    def _log_elsewhere(self, kept: Legacy) -> None:
        elsewhere = sorted(kept.names - self._reconciler.workers.keys())
        if elsewhere:
            why = "processes, and containers of a local engine, belong to the supervisor of their own host and folder"
            log.warning(
                events.WORKER_ELSEWHERE,
                supervisor=kept.by,
                workers=elsewhere[:MAX_NAMED],
                total=len(elsewhere),
                why=f"{why}: they finish by themselves, at the latest after supervisor.orphan_grace",
            )

    def _look_for_workers(self) -> None:
        """Adopt again a few times: the last leader may have been starting some, or an engine did not answer."""
        if self._adopt_again_at and self._clock.monotonic() >= self._adopt_again_at[0]:
            del self._adopt_again_at[0]
            self._files.hold_workers()
            self._reconciler.adopt()

    def _give_way(self) -> None:
        """Let go of the workers that the leader has adopted; those that it has not, as it can't reach them, are ours.

        Until it has kept which are its own, none of them is touched.
        """
        now = self._clock.monotonic()
        if now < self._look_at or not (shared := self._reconciler.shared):
            return
        self._look_at = Monotonic(now + GIVE_WAY_SECONDS)
        try:
            kept = self._succession.of_another()
        except SourceUnavailableError:
            return
        if kept is not None:
            self._reconciler.let_go(kept.names & shared.keys())
            self._left_to_us = frozenset(ref for name, ref in shared.items() if name not in kept.names)

    def _may_end(self, ref: str) -> bool:
        """Return whether a worker may be ended: of one that another supervisor may lead, only the leader says so."""
        if ref in self._left_pods:
            return False
        return not is_shared(ref) or ref in self._left_to_us or self.may_act_on_shared()

    def may_act_on_shared(self) -> bool:
        """Return whether we may start and end workers that another supervisor could lead; safe in any thread.

        A leader that stops has given up its lead, and still ends those that it asked to finish.
        """
        return self.is_leading() or (self._ends_shared and self._phase in ("draining", "stopping"))

    def _feed_watchdog(self) -> None:
        now = self._clock.monotonic()
        self._heartbeat.beat(now=now)
        self._notifier.finished_turns(now=now)

    def _may_leave(self) -> bool:
        """Return whether to leave now; go on where the supervisor in our place would refuse the settings and exit."""
        if self._is_leaving and self.is_renewed and (errors := self._reloads.load_errors()):
            self._is_leaving = self.is_renewed = False
            log.error(events.SUPERVISOR_RELOAD_REFUSED, mistakes=list(errors))
        return self._is_leaving

    def _leave(self) -> None:
        """Exit without touching any worker: the next supervisor continues from the snapshot."""
        self._keep()
        if self.is_leading():
            self._succession.keep(self._reconciler.pools.values())
        self._phase = "stopping"
        if self.is_renewed:
            self._notifier.reloading(now=self._clock.monotonic())
        else:
            self._notifier.stopping("leaving: the workers stay for the next supervisor")
        self._show()
        log.info(events.SUPERVISOR_LEFT, workers=sorted(self._reconciler.workers), renewed=self.is_renewed)

    def _keep(self) -> None:
        self._arrivals.wait_for(())
        self._snapshots.keep_learned(self._reconciler.pools.values())
        self._reconciler.keep_usage()

    def _stop(self) -> None:
        self._ends_shared = self._ends_shared if self._phase == "draining" else self.is_leading()
        has_led = self.is_leading()
        self._phase = "stopping"
        self._notifier.stopping(self._status())
        self._keep()
        self._left_pods = self._pods_to_leave()
        self._reconciler.drain_all(why="the supervisor stops")
        if has_led:
            self._succession.keep(self._reconciler.pools.values())
        self._reconciler.let_go({name for name, ref in self._reconciler.shared.items() if not self._may_end(ref)})
        # Before the workers' end: the next leader starts its own while ours still finish what they hold.
        self._election.give_up()
        self._log_stopping()
        give_up_at: Monotonic | None = None
        while self._reconciler.workers:
            now = self._clock.monotonic()
            if self._stop_requests > 1 and give_up_at is None:
                give_up_at = Monotonic(now + KILLED_SECONDS)
                self._reconciler.kill_all(why="you asked twice")
            elif give_up_at is None and self._reconciler.has_killed_all:
                give_up_at = Monotonic(now + KILLED_SECONDS)
            elif give_up_at is not None and now >= give_up_at:
                break
            if not self._stopping_pass():
                time.sleep(PASS_SECONDS)
        self._phase = "stopped"
        self._show()
        log.info(events.SUPERVISOR_STOPPED, left=sorted(self._reconciler.workers))

    def _pods_to_leave(self) -> frozenset[str]:
        """Return the `ref` of each worker that a stop leaves to the next leader.

        These are Pods, if ours runs in a cluster: a rollout, a drain or an eviction of its own Pod stops no fleet.
        """
        pods = [ref for ref in self._reconciler.shared.values() if ref.startswith(POD_REF)]
        return frozenset(pods if self._is_in_cluster and self._phase == "stopping" else ())

    def _log_stopping(self) -> None:
        """Log which tasks are being finished, and for how long at most."""
        held, total = self._reconciler.tasks_in_progress()
        names = {one["pool"] for one in held}
        grace = [
            pool.spec.grace if pool.spec else pool.grace_seconds
            for pool in self._reconciler.pools.values()
            if pool.name in names or not names
        ]
        log.info(events.SUPERVISOR_STOPPING, held=held, held_total=total, grace_seconds=max(grace, default=0.0))

    def _stopping_pass(self) -> bool:
        """Run one pass while workers finish; False when it raised half-way."""
        try:
            self._reconciler.end_overdue()
            self._show()
            self._notifier.finishing(self._status())
            self._feed_watchdog()
            self._runtime.wait_for_exit(timeout_seconds=PASS_SECONDS)
            self._reconciler.reap()
        except Exception as error:  # noqa: BLE001  the top of a pass
            self._log_error(error)
            return False
        return True

    def _log_error(self, error: Exception) -> None:
        if self._pass_errors.is_new(error):
            log.error(events.TURN_FAILED, exc_info=error)


class ArrivalWatch:
    """A thread that waits for tasks of pools without workers: zero workers must not mean a slow start."""

    def __init__(self, source: WorkSource, *, on_arrival: Callable[[str], None]) -> None:
        """`on_arrival` is called in the thread with a pool's name; that pool is then no longer waited for."""
        self._source = source
        self._on_arrival = on_arrival
        self._changed = threading.Condition()
        self._pools: tuple[PoolSpec, ...] = ()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait_for(self, pools: Sequence[PoolSpec]) -> None:
        """Wait for these pools, which have neither a worker nor a ready task."""
        with self._changed:
            self._pools = tuple(pools)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; return when it has ended, or after two waits if the source blocks it."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * ARRIVAL_WAIT_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pools or self._is_stopping)
                if self._is_stopping:
                    return
                pools = self._pools
            try:
                arrived = self._source.wait_for_arrival(pools, timeout_seconds=ARRIVAL_WAIT_SECONDS)
            except SourceUnavailableError:  # the turns log it
                self._pause()
                continue
            except Exception:
                log.exception(events.TURN_FAILED, thread="arrivals")
                self._pause()
                continue
            if arrived is not None:
                self._wake_pool(arrived)

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, timeout=ARRIVAL_WAIT_SECONDS)

    def _wake_pool(self, arrived: str) -> None:
        with self._changed:
            waited_for = any(pool.name == arrived for pool in self._pools)
            self._pools = tuple(pool for pool in self._pools if pool.name != arrived)
        if waited_for:
            self._on_arrival(arrived)


def fresh_identity(pool: str) -> str:
    """Return a new, random worker name: `resize-7f3k2q`."""
    return f"{pool}-{''.join(secrets.choice(_IDENTITY_ALPHABET) for _ in range(_IDENTITY_CHARS))}"
