"""The Pods of a fleet in one namespace, as they were last seen, and the exits that are not collected yet. Thread-safe.

All figures are derived from what is listed and watched: nothing is counted beside it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.placement import ANYWHERE, Placement
from orchestrator.runtime import Exit, WorkerHandle
from orchestrator.runtimes.docker.container_state import mapping
from orchestrator.runtimes.kubernetes import pods
from orchestrator.runtimes.kubernetes.pods import Json, PodEnding, PodState

NEVER: Final = Monotonic(float("-inf"))
LOST_MARGIN_SECONDS: Final = 30.0
"""Time after a Pod's grace until its node counts as lost: a kubelet that lives has ended it by then."""
UNKNOWN_SECONDS: Final = 60.0
"""How long a Pod of ours stays that nobody asked for; the start that made it may be repeated."""
GONE_SECONDS: Final = 2.0
"""How long a Pod that the apiserver does not have may still be reported by the watch, with its end."""
RESEND_SECONDS: Final = 2.0
"""Pause before a request that was not delivered is sent again."""
MAX_REFUSALS: Final = 3
"""Refusals by nodes in a row from which a start has failed."""

ExitRequest = Literal["", "drain", "kill"]
_URGENCY: Final[Mapping[ExitRequest, int]] = {"": 0, "drain": 1, "kill": 2}


@dataclass(frozen=True, slots=True)
class PodWorker:
    """A worker and its Pod. `state` is the Pod as it was last seen; None before.

    `is_claimed`: the supervisor knows of it. `is_begun`: its start was ours. `confirmed_at`: since when the Pod is
    known to have been made; None while it only may have been, by a create at `tried_at` (`is_asked`: it is not
    answered yet). `requested` is what we asked of it, `sent` the part that the apiserver knows of, tried last at
    `sent_at`; `is_allowed`: we led when we asked, so it is delivered even if another leads by then. `leaves_since`:
    when it was first seen to be leaving; `is_taken`: by something other than us. `fails_since`: since when it can't
    be started. `was_gated`: it has waited for its admission. `gone_since`: since when the apiserver has said that
    there is no such Pod.
    """

    handle: WorkerHandle
    name: str
    nonce: str = ""
    uid: str = ""
    state: PodState | None = None
    is_claimed: bool = False
    is_begun: bool = False
    tried_at: Monotonic = NEVER
    is_asked: bool = False
    confirmed_at: Monotonic | None = None
    requested: ExitRequest = ""
    sent: ExitRequest = ""
    sent_at: Monotonic = NEVER
    is_allowed: bool = False
    leaves_since: Monotonic | None = None
    is_taken: bool = False
    fails_since: Monotonic | None = None
    was_gated: bool = False
    gone_since: Monotonic | None = None

    @property
    def placement(self) -> Placement:
        """Its place; it is only leaving there if something other than us ends it."""
        if self.state is None:
            return ANYWHERE
        place = self.state.placement
        if (place.is_leaving, place.was_gated) == (self.is_taken, self.was_gated):
            return place
        return replace(place, is_leaving=self.is_taken, was_gated=self.was_gated)

    @property
    def ended(self) -> bool:
        """True once its worker has ended."""
        return self.state is not None and self.state.ending is not None


@dataclass(slots=True)
class _Findings:
    """The news of one call: whether the supervisor is to be woken, and Pods that are to be removed."""

    is_news: bool = False
    remains: list[tuple[str, str, bool]] = field(default_factory=list)


class PodRegistry:
    """All Pods of one fleet. Any thread may call it.

    `handle_of` makes the handle of a Pod that was found; `on_news` is called when there is an exit to collect, or a
    Pod is taken away; `remove` is called with the name and uid of a Pod whose worker has ended, and whether we had
    asked for that while we led.
    """

    def __init__(
        self,
        *,
        handle_of: Callable[[PodState], WorkerHandle],
        on_news: Callable[[], None],
        remove: Callable[[str, str, bool], None],
    ) -> None:
        self._handle_of = handle_of
        self._on_news = on_news
        self._remove = remove
        self._changed = Condition()
        self._members: dict[str, PodWorker] = {}
        self._exits: list[Exit] = []
        self._left: set[str] = set()
        self._removed: set[str] = set()
        self._refusals: dict[tuple[str, str], int] = {}
        self._is_woken = False
        self._has_adopted = False
        self._places: Mapping[str, Placement] | None = None

    # -- starts ---------------------------------------------------------------------------------------------------

    def begin(self, member: PodWorker) -> None:
        """Add a worker whose Pod is about to be made."""
        with self._changed:
            self._has_adopted = True
            self._members[member.handle.worker] = replace(member, is_begun=True)

    def claim(self, pool: str, digest: str) -> WorkerHandle | None:
        """Claim a Pod with these settings that the supervisor does not know of; None without one.

        A start of ours that has ended already is claimed too, and reported.
        """
        findings = _Findings()
        with self._changed:
            for worker, member in self._members.items():
                handle = member.handle
                if (
                    member.is_claimed
                    or member.confirmed_at is None
                    or (handle.pool, handle.spec_digest) != (pool, digest)
                ):
                    continue
                is_taken_over = not member.is_begun and (
                    member.ended or (member.state is not None and member.state.is_leaving)
                )
                if not (is_taken_over or member.requested):
                    self._set(worker, is_claimed=True)
                    self._end_claimed(worker, findings)
                    break
            else:
                return None
        self._announce(findings)
        return handle

    def unanswered(self, pool: str, digest: str) -> PodWorker | None:
        """Return a start with these settings of which it is unknown whether it has been made."""
        with self._changed:
            return next(
                (
                    one
                    for one in self._members.values()
                    if one.confirmed_at is None
                    and not one.is_claimed
                    and (one.handle.pool, one.handle.spec_digest) == (pool, digest)
                ),
                None,
            )

    def creating(self, worker: str, *, at: Monotonic) -> None:
        """Record that its create was sent."""
        with self._changed:
            self._set(worker, tried_at=at, is_asked=True)

    def unknown(self, worker: str, *, at: Monotonic) -> None:
        """Record that its create was not answered: the Pod may exist."""
        with self._changed:
            self._set(worker, tried_at=at, is_asked=False)

    def made(self, worker: str, pod: Json, *, at: Monotonic) -> None:
        """Record that its Pod exists."""
        with self._changed:
            member = self._members.get(worker)
            if member is None:
                return  # it has ended meanwhile
            self._set(worker, is_asked=False, confirmed_at=member.confirmed_at if member.state else at)
            if member.state is not None:
                return  # the watch was faster, and may have seen later states of it
        self.observe(pod, at=at)

    def rename(self, worker: str, name: str, *, ref: str) -> None:
        """Record that its Pod is to have another name."""
        with self._changed:
            member = self._members.get(worker)
            if member is not None:
                self._set(worker, name=name, handle=replace(member.handle, ref=ref))

    def drop(self, worker: str) -> None:
        """Forget a worker whose Pod was certainly not made."""
        with self._changed:
            self._members.pop(worker, None)
            self._places = None

    def adopt(self, remembered: Iterable[WorkerHandle]) -> list[WorkerHandle]:
        """Claim all living Pods, and those ended ones that are remembered; remove the other ended ones."""
        known = {handle.worker for handle in remembered}
        findings, found = _Findings(), []
        with self._changed:
            self._has_adopted = True
            for worker, member in list(self._members.items()):
                if member.is_claimed or member.confirmed_at is None:
                    continue
                if member.ended and worker not in known:
                    self._forget(member, findings)
                    continue
                self._set(worker, is_claimed=True)
                found.append(member.handle)
                self._end_claimed(worker, findings)
        self._announce(findings)
        return found

    def let_go(self, workers: Iterable[str]) -> None:
        """Know these no more as our workers; their Pods stay known, to be claimed when we lead again."""
        with self._changed:
            for worker in workers:
                if worker in self._members:
                    self._set(worker, is_claimed=False)

    def assume(self, handle: WorkerHandle, name: str, *, at: Monotonic) -> bool:
        """Add a remembered worker while it can't be asked for; False when it is known."""
        with self._changed:
            if handle.worker in self._members:
                return False
            self._members[handle.worker] = PodWorker(handle, name, is_claimed=True, confirmed_at=at)
            return True

    # -- what is seen ---------------------------------------------------------------------------------------------

    def observe(self, pod: Json, *, at: Monotonic, deleted: Literal["yes", "no"] = "no") -> bool:
        """Take in a Pod as an event or a call shows it; return whether it is removed though we did not ask for it."""
        state = pods.pod_state(pod)
        if state is None:
            return False
        findings = _Findings()
        with self._changed:
            before = self._members.get(state.worker)
            is_removed = state.uid in self._removed and state.ending is not None  # our own DELETE changes it once more
            if is_removed or state.uid in self._left or (before is not None and before.uid and before.uid != state.uid):
                return False
            if before is None:
                if deleted == "yes":
                    return False
                handle = self._handle_of(state)
                before = PodWorker(handle, state.name, state.nonce, tried_at=at, confirmed_at=at)
            member = _seen(before, state, at=at)
            self._members[state.worker] = member
            self._places = None
            findings.is_news = member.placement.is_leaving != before.placement.is_leaving or (
                member.placement.is_silent != before.placement.is_silent
            )
            if state.is_running:
                self._refusals.pop((state.pool, state.spec_digest), None)
            if deleted == "yes":
                self._gone(member, pods.ending_of_deleted(state, pod), findings)
            elif state.ending is not None and member.is_claimed:
                self._end(member, state.ending, findings)
            elif state.ending is not None and self._has_adopted and not member.is_begun:
                self._forget(member, findings)
            is_taken = member.is_taken and not state.placement.is_silent
        self._announce(findings)
        return is_taken

    def review(self, listed: Sequence[Json], *, began_at: Monotonic, at: Monotonic) -> None:
        """Take in all Pods as a list shows them that began at `began_at`; what it lacks has ended."""
        names = {str(mapping(pod.get("metadata")).get("name")) for pod in listed}
        with self._changed:
            self._removed.clear()  # what is still there was not removed
        for pod in listed:
            self.observe(pod, at=at)
        findings = _Findings()
        with self._changed:
            for worker, member in list(self._members.items()):
                if member.name in names:
                    continue
                if member.confirmed_at is None:
                    if not member.is_asked and member.tried_at < began_at:
                        del self._members[worker]
                elif member.confirmed_at < began_at:
                    ending = PodEnding(fate="removed", reason="it has vanished: nobody saw its end")
                    self._gone(member, ending, findings)
            uids = {str(mapping(pod.get("metadata")).get("uid")) for pod in listed}
            self._left &= uids
            self._places = None
        self._announce(findings)

    def differs(self, listed: Sequence[Json], *, began_at: Monotonic) -> list[str]:
        """Return the names of Pods of which an event was lost, as a list of metadata shows that began at `began_at`."""
        there = {str(one.get("name")): str(one.get("uid")) for one in (mapping(pod.get("metadata")) for pod in listed)}
        with self._changed:
            known = {one.name for one in self._members.values()}
            missing = [
                one.name
                for one in self._members.values()
                if one.confirmed_at is not None and one.confirmed_at < began_at and one.name not in there
            ]
            self._removed &= set(there.values())
            settled = self._left | self._removed
            extra = [name for name, uid in there.items() if name not in known and uid not in settled]
        return sorted([*missing, *extra]) if self._has_adopted else []

    # -- what is asked of them --------------------------------------------------------------------------------------

    def request(self, worker: str, what: ExitRequest, *, is_allowed: bool = True) -> None:
        """Request a worker's end; no effect on an unknown one. A repeated kill is sent again.

        `is_allowed`: we lead as we ask. A standby's request has no effect, not even later: the leader may have given
        that worker work meanwhile.
        """
        with self._changed:
            member = self._members.get(worker)
            if member is None or _URGENCY[what] < _URGENCY[member.requested]:
                return
            if not (is_allowed or member.is_allowed):
                return
            sent = "" if what == "kill" else member.sent
            if what == "drain" and member.state is not None and member.state.is_leaving:
                sent = "drain"  # it is told already
            self._set(worker, requested=what, sent=sent, sent_at=NEVER, is_allowed=True)

    def undelivered(self, *, now: Monotonic) -> list[str]:
        """Return the workers to which a request is to be sent, or sent again; each is taken as sent now."""
        with self._changed:
            due = [
                worker
                for worker, one in self._members.items()
                if one.requested != one.sent and one.uid and now >= one.sent_at + RESEND_SECONDS
            ]
            for worker in due:
                self._set(worker, sent_at=now)
        return due

    def mark_sent(self, worker: str, what: ExitRequest) -> None:
        """Record that the apiserver knows of a request."""
        with self._changed:
            self._set(worker, sent=what)

    def mark_gone(self, worker: str, *, at: Monotonic) -> None:
        """Record that the apiserver has no such Pod."""
        with self._changed:
            member = self._members.get(worker)
            if member is not None and member.gone_since is None:
                self._set(worker, gone_since=at, sent=member.requested)

    # -- what has become of them ------------------------------------------------------------------------------------

    def end_gone(self, *, now: Monotonic) -> None:
        """Report the ends of Pods that are gone, and of which the watch has not told the end."""
        findings = _Findings()
        with self._changed:
            for member in list(self._members.values()):
                if member.gone_since is not None and now - member.gone_since >= GONE_SECONDS:
                    self._gone(member, PodEnding(fate="removed"), findings)
        self._announce(findings)

    def lost(self, *, now: Monotonic) -> list[PodWorker]:
        """Return the workers whose node is lost: as the cluster says, or as they should have ended long ago."""
        with self._changed:
            return [one for one in self._members.values() if one.is_claimed and _is_lost(one, now=now)]

    def give_up(self, worker: str) -> None:
        """Report the end of a worker whose node is lost; its Pod is left alone."""
        findings = _Findings()
        with self._changed:
            member = self._members.get(worker)
            if member is not None and member.state is not None:
                self._left.add(member.uid)
                self._gone(member, pods.lost_ending(member.state), findings)
        self._announce(findings)

    def failing(self, *, now: Monotonic, patience: Mapping[str, float], default: float) -> list[PodWorker]:
        """Return the workers that can't be started: with one of them all of its settings that fail in the same way."""
        with self._changed:
            trying = [one for one in self._members.values() if one.fails_since is not None and one.state is not None]
            over = {
                (one.handle.pool, one.handle.spec_digest)
                for one in trying
                if (one.state is not None and one.state.patience == "none")
                or now - (one.fails_since or now) >= patience.get(one.handle.pool, default)
            }
            return [one for one in trying if (one.handle.pool, one.handle.spec_digest) in over]

    def fail(self, worker: str) -> None:
        """Report the failed start of a worker, and have its Pod removed."""
        findings = _Findings()
        with self._changed:
            member = self._members.get(worker)
            if member is not None and member.state is not None and member.fails_since is not None:
                ending = pods.failed_ending(member.state.failure, pool=member.handle.pool)
                self._end(member, ending, findings)
        self._announce(findings)

    def not_removed(self, uid: str) -> None:
        """Record that the Pod of an ended worker could not be removed: the next sight of it tries again."""
        with self._changed:
            self._removed.discard(uid)

    def strangers(self, *, now: Monotonic) -> list[PodWorker]:
        """Return the living Pods that nobody has claimed for so long that no start can be under way that would."""
        with self._changed:
            if not self._has_adopted:
                return []
            return [
                one
                for one in self._members.values()
                if not one.is_claimed
                and one.confirmed_at is not None
                and not one.requested
                and now - one.confirmed_at >= UNKNOWN_SECONDS
            ]

    def collect(self, *, at: Monotonic) -> list[Exit]:
        """Return the exits since the last call."""
        with self._changed:
            exits, self._exits = self._exits, []
        return [replace(ended, at=at) for ended in exits]

    def get(self, worker: str) -> PodWorker | None:
        """Return a worker."""
        with self._changed:
            return self._members.get(worker)

    def members(self) -> list[PodWorker]:
        """Return all workers whose end is not reported yet."""
        with self._changed:
            return list(self._members.values())

    def placements(self) -> Mapping[str, Placement]:
        """Return the place of each worker that the supervisor knows."""
        with self._changed:
            if self._places is None:
                on_node = Counter(one.placement.node for one in self._members.values() if not one.ended)
                self._places = {
                    name: replace(one.placement, neighbours=on_node[one.placement.node] if one.placement.node else 0)
                    for name, one in self._members.items()
                    if one.is_claimed
                }
            return self._places

    def wait(self, *, timeout_seconds: float) -> bool:
        """Sleep until there is an exit to collect (True), `wake` is called, or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._exits or self._is_woken, timeout=max(0.0, timeout_seconds))
            self._is_woken = False
            return bool(self._exits)

    def wake(self) -> None:
        """End a `wait` in another thread early."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    # -- with the lock ----------------------------------------------------------------------------------------------

    def _set(self, worker: str, **changes: object) -> None:
        if worker in self._members:
            self._members[worker] = replace(self._members[worker], **changes)  # type: ignore[arg-type]
            self._places = None

    def _end_claimed(self, worker: str, findings: _Findings) -> None:
        member = self._members[worker]
        if member.state is not None and member.state.ending is not None:
            self._end(member, member.state.ending, findings)

    def _gone(self, member: PodWorker, ending: PodEnding, findings: _Findings) -> None:
        """Report an end after which there is no Pod that we would remove."""
        self._report(member, ending, findings)

    def _end(self, member: PodWorker, ending: PodEnding, findings: _Findings) -> None:
        """Report an end after which the Pod is to be removed."""
        self._removed.add(member.uid)
        findings.remains.append((member.name, member.uid, member.is_allowed))
        self._report(member, ending, findings)

    def _forget(self, member: PodWorker, findings: _Findings) -> None:
        self._removed.add(member.uid)
        findings.remains.append((member.name, member.uid, member.is_allowed))
        self._members.pop(member.handle.worker, None)
        self._places = None

    def _report(self, member: PodWorker, ending: PodEnding, findings: _Findings) -> None:
        self._members.pop(member.handle.worker, None)
        self._places = None
        if member.is_claimed:
            self._exits.append(_exit_of(member, self._counted(member, ending)))
            findings.is_news = True
            self._changed.notify_all()

    def _counted(self, member: PodWorker, ending: PodEnding) -> PodEnding:
        """Return the ending; a failed start if nodes have refused the pool's Pods several times in a row."""
        if not ending.is_refused:
            return ending
        key = (member.handle.pool, member.handle.spec_digest)
        self._refusals[key] = self._refusals.get(key, 0) + 1
        if self._refusals[key] < MAX_REFUSALS:
            return ending
        why = f"{ending.reason} ({self._refusals[key]} nodes in a row have refused it)"
        return pods.failed_ending(why, pool=member.handle.pool)

    def _announce(self, findings: _Findings) -> None:
        """Tell the news, without the lock."""
        for name, uid, is_allowed in findings.remains:
            self._remove(name, uid, is_allowed)
        if findings.is_news:
            self._on_news()


def _seen(member: PodWorker, state: PodState, *, at: Monotonic) -> PodWorker:
    """Return a worker after its Pod was seen in this state."""
    leaves_since, is_taken = member.leaves_since, member.is_taken
    if state.is_leaving and leaves_since is None:
        leaves_since = at
        # A Pod that leaves already when it is found was asked to by an earlier supervisor, unless its cluster says so.
        is_known = member.state is not None or member.is_claimed
        is_taken = not member.requested and (is_known or bool(state.placement.is_silent))
    if state.placement.is_silent and state.is_lost:
        is_taken = is_taken or not member.requested
    fails_since = None if not state.failure else (member.fails_since if member.fails_since is not None else at)
    return replace(
        member,
        name=state.name,
        uid=state.uid or member.uid,
        state=state,
        is_asked=False,
        confirmed_at=member.confirmed_at if member.confirmed_at is not None else at,
        leaves_since=leaves_since,
        is_taken=is_taken,
        fails_since=fails_since,
        was_gated=member.was_gated or state.placement.waits_for == "admission",
    )


def _is_lost(member: PodWorker, *, now: Monotonic) -> bool:
    state = member.state
    if state is None or member.ended:
        return False
    if state.is_lost:
        return True
    is_late = member.leaves_since is not None and (
        now - member.leaves_since >= state.grace_seconds + LOST_MARGIN_SECONDS
    )
    return is_late and bool(state.placement.node)


def _exit_of(member: PodWorker, ending: PodEnding) -> Exit:
    """Return the exit that a worker's ending is; `removed` only if we had not asked for it."""
    fate = ending.fate
    if fate == "removed" and member.requested and not member.is_taken:
        fate = ""
    elif not fate and member.is_taken:
        fate = "removed"
    handle = member.handle
    peak = ending.memory_limit_bytes if ending.out_of_memory else None  # it reached its limit
    return Exit(
        handle.worker,
        handle.pool,
        handle.ref,
        NEVER,
        code=ending.code,
        signal=ending.signal,
        out_of_memory=ending.out_of_memory,
        memory_limit_bytes=ending.memory_limit_bytes,
        memory_peak_bytes=peak,
        reason=ending.reason,
        is_stopped=member.is_taken or fate == "removed",
        fate=fate,
        last_lines=ending.last_lines,
    )
