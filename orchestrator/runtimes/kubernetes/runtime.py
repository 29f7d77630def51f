"""Run workers as Pods: one bare Pod each, made and ended by name, found again by the fleet's label.

No verb waits longer than `ANSWER_SECONDS`; calls are made by a few threads, as many for one Pod as for a thousand.
While the apiserver is away all workers are assumed to live. A Pod is ended only after the queue has fenced its worker:
by the supervisor, or here for those that it does not know.
"""

import os
import random
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from typing import Final, Literal

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock, SystemMonotonicClock
from orchestrator.base.errors import (
    QuotaError,
    RuntimeUnavailableError,
    SourceUnavailableError,
    SpawnError,
    StartPendingError,
)
from orchestrator.config.kubernetes import KubernetesSettings
from orchestrator.fleet.placement import Placement
from orchestrator.runtime import Exit, SpawnRequest, Usage, WorkerHandle
from orchestrator.runtimes.docker.container_state import at, text
from orchestrator.runtimes.elsewhere import WorkersElsewhere
from orchestrator.runtimes.kubernetes import body
from orchestrator.runtimes.kubernetes.access import Access
from orchestrator.runtimes.kubernetes.api import Api, ApiBusyError, ApiError, Json
from orchestrator.runtimes.kubernetes.pace import CallPace
from orchestrator.runtimes.kubernetes.pods import PodState
from orchestrator.runtimes.kubernetes.registry import PodRegistry, PodWorker
from orchestrator.runtimes.kubernetes.watch import PodWatch, WatchTimes
from orchestrator.runtimes.thread_pool import EngineThreads
from queue_core.log import get_logger

log = get_logger()

ANSWER_SECONDS: Final = 1.0
"""How long a start waits for the apiserver."""
ADOPT_SECONDS: Final = 5.0
"""How long an adoption waits for the first list."""
CLOSE_SECONDS: Final = 2.0
DEFAULT_PATIENCE_SECONDS: Final = 30.0
"""`image_patience` of a pool of which nothing was started yet."""
BUSY_SECONDS: Final = 1.0
"""Pause after an apiserver that asks to be left alone, where it does not say for how long."""
KILL_GRACE_SECONDS: Final = 1
"""The shortest grace: 0 would remove the object while the worker runs on."""
REF: Final = "kubernetes:"
MAX_NAMES: Final = 3
"""Names that one start tries."""
_IDENTITY_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_QUOTA: Final = "exceeded quota"


def _keep(_worker: str) -> bool:
    return False


def _nothing(_worker: str) -> object:
    return None


class KubernetesRuntime(WorkersElsewhere):
    """A `Runtime` of Pods in one namespace. All but `wake` belong to one thread."""

    def __init__(
        self,
        access: Access | Callable[[], Access] | None = None,
        *,
        namespace: str | None = None,
        context: str | None = None,
        retire: Callable[[str], bool] = _keep,
        disown: Callable[[str], object] = _nothing,
        may_act: Callable[[], bool] = lambda: True,
        on_exit: Callable[[], None] = lambda: None,
        clock: MonotonicClock | None = None,
        times: WatchTimes | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Args:
        access: how the cluster is reached; by default as `context` says: None for the cluster that we run in, or the
            kubeconfig's current context.
        namespace: None for the access's own.
        retire: fences a worker at the queue if it holds no lease, and returns whether it did; may raise
            `SourceUnavailableError`. For Pods that the supervisor does not know, and for starts that have failed.
        disown: makes the queue take back a worker's leases and refuse it; may raise `SourceUnavailableError`.
        may_act: tells, before each call that changes something, whether it may be made now.
        on_exit: called from another thread when there is an exit to reap.
        """
        self._access = access
        self._context = context
        self._namespace = namespace
        self._retire = retire
        self._disown = disown
        self._may_act = may_act
        self._on_exit = on_exit
        self._clock = clock or SystemMonotonicClock()
        self._rng = rng or random.Random()  # noqa: S311  it spreads calls
        self._closed = threading.Event()
        self._pace = CallPace(self._clock)
        self._threads = EngineThreads(name="kubernetes", expected=(ApiError,))
        self._registry = PodRegistry(handle_of=self._handle_of, on_news=self._news, remove=self._remove)
        self._watch = PodWatch(
            self._open_api,
            self._registry,
            clock=self._clock,
            times=times or WatchTimes(),
            on_taken=self._check_anchor,
            on_news=self._news,
            rng=self._rng,
        )
        self._bodies: dict[str, Json] = {}
        self._patience: dict[str, float] = {}

    # -- verbs ------------------------------------------------------------------------------------------------------

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:  # noqa: ARG002  as the protocol has it
        """See `Runtime.spawn`: the handle may be that of an earlier start that was not answered in time.

        Raises `RuntimeUnavailableError` while the apiserver is away or the fleet has no anchor, `QuotaError` if a quota
        is used up, and `StartPendingError` while the apiserver is slow or the pace of calls is reached.
        """
        pool, settings = request.pool, request.pool.runtime.kubernetes
        if settings is None:
            raise SpawnError(f"pool {pool.name} is not of runtime kubernetes: its runtime is {pool.runtime.kind}")
        self._patience[pool.name] = settings.image_patience
        digest = request.environment["TOWLINE_SPEC"]
        fleet = self._ready()
        if not self._may_act():
            raise RuntimeUnavailableError("another supervisor leads, or none is known to")
        found = self._registry.claim(pool.name, digest)
        if found is not None:
            return found
        known = self._registry.unanswered(pool.name, digest)
        if known is not None and known.is_asked:
            raise StartPendingError(self._slow())
        if seconds := self._pace.take():
            raise StartPendingError("as many starts and ends are asked for as an apiserver bears", seconds=seconds)
        member = known or self._begun(request, settings, fleet=fleet, digest=digest)
        made = self._threads.do(member.handle.worker, lambda: self._make(member.handle.worker))
        return self._answered(made, member, pool=pool.name, digest=digest)

    def _ready(self) -> str:
        """Return the fleet's identity once Pods can be made. Raises `RuntimeUnavailableError`."""
        self._watch.start()
        if not self._watch.wait_until_listed(ANSWER_SECONDS) and not self._watch.unavailable_reason:
            raise StartPendingError("the apiserver is slow: it is still asked for the fleet's Pods")
        if why := self._watch.missing or self._watch.unavailable_reason:
            raise RuntimeUnavailableError(why)
        return self._watch.fleet

    def _begun(self, request: SpawnRequest, settings: KubernetesSettings, *, fleet: str, digest: str) -> PodWorker:
        name, nonce = body.pod_name(request.worker), secrets.token_hex(8)
        marks = body.PodMarks(name, fleet, nonce, self._clock.wall_seconds())
        pod = body.pod_body(request, settings, marks)
        now = self._clock.monotonic()
        handle = WorkerHandle(request.worker, request.pool.name, self._ref(name), digest, now)
        member = PodWorker(handle, name, nonce, tried_at=now, is_asked=True)
        self._bodies[request.worker] = pod
        self._registry.begin(member)
        return member

    def _answered(self, made: "Future[None]", member: PodWorker, *, pool: str, digest: str) -> WorkerHandle:
        """Wait a moment for the answer to a create, and return its handle."""
        try:
            made.result(ANSWER_SECONDS)
        except NotYetError:
            raise StartPendingError(self._slow()) from None
        except ApiError as error:
            if error.status == 403 and _QUOTA in str(error):
                raise QuotaError(str(error)) from error
            raise SpawnError(f"can't start a worker of pool {pool}: {error}") from error
        handle = self._registry.claim(pool, digest)
        if handle is None:  # it has been ended from outside within that moment
            raise StartPendingError(f"Pod {member.name} was removed as soon as it was made")
        return handle

    def drain(self, worker: str) -> None:
        """See `Runtime.drain`: the Pod is deleted, which sends SIGTERM, with the grace that it was made with."""
        self._registry.request(worker, "drain", is_allowed=self._may_act())
        self._deliver()

    def insist(self, worker: str, signal: str) -> None:
        """See `Runtime.insist`: no effect, as a Pod gets no other signal without the right to run programs in it."""

    def kill(self, worker: str) -> None:
        """See `Runtime.kill`: the Pod is deleted with the shortest grace."""
        self._registry.request(worker, "kill", is_allowed=self._may_act())
        self._deliver()

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:  # noqa: ARG002  as the protocol has it
        """See `Runtime.examine`: only whether its node answers."""
        member = self._registry.get(worker)
        return member.placement.words if member is not None and member.placement.is_silent else ""

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        """See `Runtime.reap`. Also ends what has failed to start, and gives up workers whose node is lost."""
        if self._may_act() and not self._watch.unavailable_reason:
            try:
                self._end_failed(now)
                self._end_strangers(now)
            except SourceUnavailableError:
                pass  # the next pass tries again
        if not self._watch.unavailable_reason:
            self._deliver()
        self._give_up_lost(now)
        self._registry.end_gone(now=now)
        return self._registry.collect(at=now)

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt`: may be called again, and returns what was not known yet.

        While the apiserver is away all remembered workers are assumed to live. One that has ended unseen is returned,
        then reported by `reap`.
        """
        self._watch.start()
        ours = [handle for handle in remembered if handle.ref.startswith(REF)]
        self._watch.wait_until_listed(0.0 if self._watch.unavailable_reason else ADOPT_SECONDS)
        found = self._registry.adopt(ours)
        if self._watch.unavailable_reason or not self._watch.wait_until_listed(0.0):
            assumed = [one for one in ours if self._registry.assume(one, one.ref.rpartition("#")[2], at=now)]
            found = [*found, *assumed]
        return sorted(found, key=lambda handle: handle.spawned_at)

    def let_go(self, workers: Collection[str]) -> None:
        """See `Runtime.let_go`: nothing is sent for them, as only a leader sends anything."""
        self._registry.let_go(workers)

    def usage(self) -> Mapping[str, Usage]:
        """See `Runtime.usage`: empty, as the workers use other hosts."""
        return {}

    def placements(self) -> Mapping[str, Placement]:
        """See `Runtime.placements`."""
        return self._registry.placements()

    @property
    def unavailable_reason(self) -> str:
        """Why the apiserver can't be used; empty while it answers."""
        return self._watch.missing or self._watch.unavailable_reason

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """See `Runtime.wait_for_exit`."""
        return self._registry.wait(timeout_seconds=timeout_seconds)

    def wake(self) -> None:
        """See `Runtime.wake`."""
        self._registry.wake()

    def close(self) -> None:
        """See `Runtime.close`."""
        self._closed.set()
        self._threads.close(seconds=0.0 if self._watch.unavailable_reason else CLOSE_SECONDS)
        self._watch.close()

    # -- in each pass -----------------------------------------------------------------------------------------------

    def _end_failed(self, now: Monotonic) -> None:
        """End Pods that can't be started; each is fenced first, as it may have become a worker meanwhile."""
        failing = self._registry.failing(now=now, patience=self._patience, default=DEFAULT_PATIENCE_SECONDS)
        for member in failing:
            if self._retire(member.handle.worker):
                self._registry.fail(member.handle.worker)

    def _end_strangers(self, now: Monotonic) -> None:
        """End Pods of ours that nobody knows, once they hold no lease."""
        for member in self._registry.strangers(now=now):
            worker = member.handle.worker
            if self._retire(worker):
                log.warning(events.POD_DISCARDED, worker=worker, pod=member.name, why="it is no known worker")
                self._registry.request(worker, "drain")

    def _give_up_lost(self, now: Monotonic) -> None:
        for member in self._registry.lost(now=now):
            try:
                self._disown(member.handle.worker)
            except SourceUnavailableError:
                return
            self._registry.give_up(member.handle.worker)

    def _deliver(self) -> None:
        for worker in self._registry.undelivered(now=self._clock.monotonic()):
            self._threads.do(worker, lambda worker=worker: self._send(worker))  # type: ignore[misc]

    # -- inside the calling threads ---------------------------------------------------------------------------------

    def _make(self, worker: str) -> None:
        """Create a worker's Pod, once. Raises `ApiError` if it was refused, and then there is none."""
        api, pod = self._watch.api, self._bodies.get(worker)
        if api is None or pod is None or not self._may_act():
            self._registry.unknown(worker, at=self._clock.monotonic())
            raise RuntimeUnavailableError("another supervisor leads, or none is known to")
        for _ in range(MAX_NAMES):
            began_at = self._clock.monotonic()
            self._registry.creating(worker, at=began_at)
            try:
                made = api.create("pods", pod)
            except ApiError as error:
                if not error.is_conflict:
                    self._bodies.pop(worker, None)
                    self._registry.drop(worker)
                    raise
                try:
                    known = api.get("pods", text(at(pod, "metadata", "name")))
                except ApiError:  # gone meanwhile
                    known = {}
                except RuntimeUnavailableError:
                    self._registry.unknown(worker, at=self._clock.monotonic())
                    raise
                if at(known, "metadata", "annotations", body.CREATE) == at(pod, "metadata", "annotations", body.CREATE):
                    made = known
                else:
                    pod = self._renamed(worker, pod)
                    continue
            except RuntimeUnavailableError as error:
                self._registry.unknown(worker, at=self._clock.monotonic())
                if isinstance(error, ApiBusyError):
                    self._pace.hold(error.seconds or BUSY_SECONDS)
                    raise StartPendingError(str(error), seconds=error.seconds or BUSY_SECONDS) from error
                raise
            self._bodies.pop(worker, None)
            self._registry.made(worker, made, at=self._clock.monotonic())
            return
        self._registry.drop(worker)
        raise ApiError(409, "AlreadyExists", f"{MAX_NAMES} names in a row are taken in namespace {api.namespace}")

    def _renamed(self, worker: str, pod: Json) -> Json:
        """Return a Pod with another name: the first is that of somebody else's."""
        ending = "".join(secrets.choice(_IDENTITY_ALPHABET) for _ in range(6))
        name = f"{text(at(pod, 'metadata', 'name')).rpartition('-')[0]}-{ending}"
        renamed = body.merged(pod, {"metadata": {"name": name}})
        self._bodies[worker] = renamed
        self._registry.rename(worker, name, ref=self._ref(name))
        return renamed

    def _send(self, worker: str) -> None:
        """Delete a worker's Pod as was requested; `reap` has it tried again where it could not be said."""
        member, api = self._registry.get(worker), self._watch.api
        if member is None or api is None or member.requested == member.sent:
            return
        what = member.requested
        if not self._pace.wait(self._closed):
            return
        grace = KILL_GRACE_SECONDS if what == "kill" else None
        try:
            api.delete("pods", member.name, uid=member.uid, grace_seconds=grace)
        except ApiBusyError as error:
            self._pace.hold(error.seconds or BUSY_SECONDS)
        except RuntimeUnavailableError:
            return
        except ApiError as error:
            if error.is_missing or error.is_conflict:
                self._registry.mark_gone(worker, at=self._clock.monotonic())
            else:
                log.warning(events.CLUSTER_CALL_FAILED, worker=worker, error=str(error))
        else:
            self._registry.mark_sent(worker, what)

    def _clean_up(self, name: str, uid: str, *, is_allowed: bool) -> None:
        """Delete the Pod of a worker that has ended; if that can't be done now, the next sight of it tries again."""
        api = self._watch.api
        if api is None or not self._pace.wait(self._closed) or not (is_allowed or self._may_act()):
            self._registry.not_removed(uid)
            return
        try:
            api.delete("pods", name, uid=uid)
        except RuntimeUnavailableError as error:
            self._registry.not_removed(uid)
            if isinstance(error, ApiBusyError):
                self._pace.hold(error.seconds or BUSY_SECONDS)
        except ApiError as error:
            if not (error.is_missing or error.is_conflict):
                self._registry.not_removed(uid)
                log.warning(events.CLUSTER_CALL_FAILED, pod=name, error=str(error))

    def _read_anchor(self) -> None:
        try:
            self._watch.read_anchor()
        except (ApiError, RuntimeUnavailableError) as error:
            log.debug(events.CLUSTER_CALL_FAILED, error=str(error))

    # -- helpers, for any thread ------------------------------------------------------------------------------------

    def _open_api(self) -> Api:
        access = self._access
        if access is None:
            access = Access.found(self._context, environment=os.environ)
        elif not isinstance(access, Access):
            access = access()
        return Api(access, self._namespace)

    def _handle_of(self, state: PodState) -> WorkerHandle:
        age_seconds = max(0.0, self._clock.wall_seconds() - state.spawned_at) if state.spawned_at else 0.0
        spawned_at = Monotonic(self._clock.monotonic() - age_seconds)
        return WorkerHandle(state.worker, state.pool, self._ref(state.name), state.spec_digest, spawned_at)

    def _ref(self, name: str) -> str:
        api = self._watch.api
        return f"{REF}{api.access.context}/{api.namespace}#{name}" if api is not None else f"{REF}#{name}"

    def _remove(self, name: str, uid: str, is_allowed: bool) -> None:  # noqa: FBT001  as the registry calls it
        self._threads.do(name, lambda: self._clean_up(name, uid, is_allowed=is_allowed))

    def _check_anchor(self) -> None:
        self._threads.do("anchor", self._read_anchor)

    def _slow(self) -> str:
        api = self._watch.api
        return f"the apiserver at {api.url if api else '?'} is slow: it has not answered in {ANSWER_SECONDS:.0f} s"

    def _news(self) -> None:
        self._registry.wake()
        self._on_exit()
