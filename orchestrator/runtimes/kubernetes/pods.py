"""A Pod as the apiserver describes it, as values: what it waits for, whether it runs, and how it ended. Pure.

The container `worker` counts, not the Pod's phase: its end is known a second sooner, and a helper that does not end
holds nothing up. Sentences of the scheduler and of a kubelet are shown, never parsed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Literal, TypeAlias

from orchestrator.base.values import value
from orchestrator.fleet.exits import Fate
from orchestrator.fleet.placement import ANYWHERE, Placement, WaitsFor
from orchestrator.runtimes.docker.container_state import at, ending_by_code, failed_start, mapping, text
from orchestrator.runtimes.kubernetes import body

Json: TypeAlias = Mapping[str, object]
Patience: TypeAlias = Literal["", "image", "none"]
"""How long a Pod that can't start may go on trying: the pool's `image_patience`, or not at all."""

CANNOT_START: Final = 125
"""The exit code of `docker run` for a container that could not be started."""
TIMED_OUT: Final = 124
"""The exit code of `timeout` for a program that ran for too long."""
MAX_LINES: Final = 20
MAX_LINE_CHARS: Final = 500
MAX_WORDS_CHARS: Final = 500

_TRYING: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"})
_REGISTRY: Final = frozenset({"RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed"})
_HOPELESS: Final = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerError", "RunContainerError"})
_DISRUPTED: Final = frozenset({"PreemptionByScheduler", "EvictionByEvictionAPI", "TerminationByKubelet"})
_NODE_GONE: Final = frozenset({"DeletionByTaintManager", "DeletionByPodGC"})
_SHUTDOWN: Final = frozenset({"Terminated", "NodeShutdown", "Shutdown"})
_NOT_EXECUTED: Final = frozenset({126, 127})
_UNITS: Final[Mapping[str, int]] = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


@value
class PodEnding:
    """How a worker ended. Either `code` or `signal` is known, or neither. `fate` says what else ended it.

    `is_refused`: its node did not take it, so it never ran.
    """

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    memory_limit_bytes: int | None = None
    reason: str = ""
    fate: Fate = ""
    last_lines: tuple[str, ...] = ()
    is_refused: bool = False


@value
class PodState:
    """One Pod of the fleet. `worker`, `pool`, `spec_digest`, `spawned_at` and `nonce` are from its labels.

    `failure` says what keeps it from starting, with how much `patience`. `is_running`: its worker's container runs.
    `is_leaving`: somebody has asked it to end (`deletionTimestamp`), within `grace_seconds`. `is_lost`: its node is.
    `ending`: how its worker ended; None while that lives. `scheduled_after` and `started_after` are seconds since its
    creation, by the cluster's clocks.
    """

    name: str
    uid: str
    version: str
    worker: str
    pool: str
    spec_digest: str
    spawned_at: float
    nonce: str
    placement: Placement = ANYWHERE
    failure: str = ""
    patience: Patience = ""
    is_running: bool = False
    is_leaving: bool = False
    grace_seconds: float = 0.0
    is_lost: bool = False
    ending: PodEnding | None = None


def pod_state(pod: Json) -> PodState | None:
    """Read a Pod; None for one that has not our labels."""
    metadata = mapping(at(pod, "metadata"))
    labels, notes = mapping(metadata.get("labels")), mapping(metadata.get("annotations"))
    name, worker = text(metadata.get("name")), text(labels.get(body.WORKER_LABEL))
    pool, digest = text(labels.get(body.POOL_LABEL)), text(labels.get(body.SPEC_LABEL))
    if not (name and worker and pool and digest):
        return None
    grace = at(pod, "spec", "terminationGracePeriodSeconds")
    asked = metadata.get("deletionGracePeriodSeconds")
    state = PodState(
        name,
        text(metadata.get("uid")),
        text(metadata.get("resourceVersion")),
        worker,
        pool,
        digest,
        _number(text(notes.get(body.SPAWNED_AT))),
        text(notes.get(body.CREATE)),
        is_leaving="deletionTimestamp" in metadata,
        grace_seconds=float(asked if isinstance(asked, int) else grace if isinstance(grace, int) else 0),
    )
    ending = _ending(pod)
    if ending is not None:
        return replace(state, ending=ending, placement=Placement(node=_node(pod)))
    if _is_node_lost(pod):
        return replace(state, is_lost=True, placement=Placement(node=_node(pod), is_leaving=True, is_silent=True))
    running = mapping(at(_worker_status(pod), "state", "running"))
    failure, patience = _failure(pod)
    return replace(
        state,
        is_running=bool(running),
        failure=failure,
        patience=patience,
        placement=_placement(pod, is_running=bool(running), failure=failure),
    )


def ending_of_deleted(state: PodState, pod: Json) -> PodEnding:
    """Return how the worker of a Pod ended that is no more: by the state that it carried last, or from outside."""
    if state.ending is not None:
        return state.ending
    disruption = _disruption(pod)
    if state.is_lost or disruption in _NODE_GONE:
        return PodEnding(reason=_disruption_words(pod), fate="node lost")
    if disruption:
        return PodEnding(reason=_disruption_words(pod), fate="disrupted")
    return PodEnding(fate="removed", reason="" if state.is_running else "it had not run")


def lost_ending(state: PodState) -> PodEnding:
    """Return the end of a worker whose node does not answer: nobody saw it."""
    node = f"its node {state.placement.node}" if state.placement.node else "its node"
    return PodEnding(fate="node lost", reason=f"{node} does not answer")


def failed_ending(failure: str, *, pool: str) -> PodEnding:
    """Return the end of a worker that could not be started, in the kubelet's words."""
    return PodEnding(code=CANNOT_START, reason=f"can't start a worker of pool {pool}: {failure}")


def wait_seconds(pod: Json) -> float | None:
    """Return how long a Pod has waited for a node, by the cluster's clocks; None while it has none."""
    created, scheduled = _stamp(at(pod, "metadata", "creationTimestamp")), _condition(pod, "PodScheduled")
    placed = _stamp(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    return None if created is None or placed is None else max(0.0, placed - created)


def _placement(pod: Json, *, is_running: bool, failure: str) -> Placement:
    waits_for: WaitsFor = ""
    words = ""
    if not is_running:
        waits_for, words = _wait(pod, failure)
    is_leaving = bool(at(pod, "metadata", "deletionTimestamp"))
    ready = _condition(pod, "Ready")
    is_silent = (
        is_running
        and text(ready.get("status")) == "False"
        and not ready.get("reason")
        and text(_condition(pod, "ContainersReady").get("status")) != "False"
    )
    if is_silent and not words:
        words = "its node does not answer"
    if is_leaving:
        words = _disruption_words(pod) or "its Pod is removed by somebody else"
    return Placement(_node(pod), waits_for, words, wait_seconds(pod), is_leaving=is_leaving, is_silent=is_silent)


def _wait(pod: Json, failure: str) -> tuple[WaitsFor, str]:
    """Return what a Pod that does not run waits for, and the cluster's words about it."""
    scheduled = _condition(pod, "PodScheduled")
    message = text(scheduled.get("message"))[:MAX_WORDS_CHARS]
    if scheduled.get("status") == "False":
        if scheduled.get("reason") == "SchedulingGated":
            return "admission", _gates(pod) or message
        return "node", message
    if not _node(pod) and scheduled.get("status") != "True":
        return "node", ""
    if failure:
        return "image", failure
    for status in _statuses(pod, "initContainerStatuses"):
        if "running" in mapping(at(status, "state")) and at(status, "started") is not True:
            return "start", f"its init container {text(at(status, 'name'))} runs"
    return "start", ""


def _gates(pod: Json) -> str:
    gates = at(pod, "spec", "schedulingGates")
    names = [text(at(one, "name")) for one in gates] if isinstance(gates, list) else []
    return f"by {', '.join(name for name in names if name)}" if names else ""


def _failure(pod: Json) -> tuple[str, Patience]:
    """Return what keeps a Pod's containers from starting, in the kubelet's words, and with how much patience."""
    for status in (*_statuses(pod, "initContainerStatuses"), *_statuses(pod, "containerStatuses")):
        waiting = mapping(at(status, "state", "waiting"))
        reason, message = text(waiting.get("reason")), text(waiting.get("message"))
        said = f"{reason}: {message}" if message else reason
        if reason in _HOPELESS:
            return said[:MAX_WORDS_CHARS], "none"
        if reason in _TRYING or reason in _REGISTRY:
            return said[:MAX_WORDS_CHARS], "image"
    return "", ""


def _ending(pod: Json) -> PodEnding | None:
    """Return how a Pod's worker ended; None while it lives, or when that is not known."""
    ended = mapping(at(_worker_status(pod), "state", "terminated"))
    if ended and text(ended.get("reason")) != "ContainerStatusUnknown":
        return _of_container(pod, ended)
    phase, reason, message = (text(at(pod, "status", key)) for key in ("phase", "reason", "message"))
    if phase == "Succeeded":
        return PodEnding(code=0)
    if phase != "Failed":
        return None
    if fate := _fate(pod):
        return PodEnding(fate=fate, reason=_disruption_words(pod))
    if reason == "DeadlineExceeded":
        return PodEnding(code=TIMED_OUT, reason=_deadline(message))
    if (init := _failed_init(pod)) is not None:
        return init
    if ended:
        return PodEnding(fate="node lost", reason=text(ended.get("message"))[:MAX_WORDS_CHARS])
    # Its node refused it after the scheduler had chosen it: OutOfcpu, NodeAffinity, UnexpectedAdmissionError ...
    said = f"{reason}: {message}" if reason and message else reason or message or "its node did not start it"
    return PodEnding(fate="disrupted", reason=said[:MAX_WORDS_CHARS], is_refused=True)


def _of_container(pod: Json, ended: Json) -> PodEnding:
    """Return how a worker ended, from the state of its container."""
    code, reason = ended.get("exitCode"), text(ended.get("reason"))
    lines = _last_lines(text(ended.get("message")))
    limit = memory_limit(pod)
    pool = text(at(pod, "metadata", "labels", body.POOL_LABEL))
    if reason == "OOMKilled":
        return PodEnding(signal=9, out_of_memory=True, memory_limit_bytes=limit, last_lines=lines)
    if reason in {"StartError", "ContainerCannotRun"} or (code in _NOT_EXECUTED and reason == "Error"):
        said = text(ended.get("message")) if reason != "Error" else f"exit code {code}: {' '.join(lines)}".rstrip(": ")
        why = failed_start(said, program=_program(pod), pool=pool)
        return PodEnding(code=code if isinstance(code, int) and code else CANNOT_START, reason=why, last_lines=lines)
    by_code = ending_by_code(code if isinstance(code, int) else None)
    number = ended.get("signal")
    if isinstance(number, int) and number > 0:
        by_code = replace(by_code, code=None, signal=number)
    ending = PodEnding(by_code.code, by_code.signal, memory_limit_bytes=limit, last_lines=lines)
    if text(at(pod, "status", "reason")) == "DeadlineExceeded":
        return replace(ending, code=TIMED_OUT, signal=None, reason=_deadline(text(at(pod, "status", "message"))))
    if _fate(pod):  # its node has reported its end, so that is not lost
        return replace(ending, fate="disrupted", reason=_disruption_words(pod))
    return ending


def _failed_init(pod: Json) -> PodEnding | None:
    pool = text(at(pod, "metadata", "labels", body.POOL_LABEL))
    for status in _statuses(pod, "initContainerStatuses"):
        ended = mapping(at(status, "state", "terminated"))
        code = ended.get("exitCode")
        if isinstance(code, int) and code:
            what = f"its init container {text(at(status, 'name'))} ended with exit code {code}"
            ending = failed_ending(what, pool=pool)
            return replace(ending, last_lines=_last_lines(text(ended.get("message"))))
    return None


def _fate(pod: Json) -> Fate:
    """Return what the cluster did to a Pod that has ended; "" when nothing is known."""
    disruption, reason = _disruption(pod), text(at(pod, "status", "reason"))
    if disruption in _NODE_GONE or reason == "NodeLost":
        return "node lost"
    if disruption in _DISRUPTED or disruption or reason in {"Evicted", "Preempting"}:
        return "disrupted"
    if reason in _SHUTDOWN:
        return "disrupted"
    return ""


def _is_node_lost(pod: Json) -> bool:
    """Return whether a Pod's node is gone or silent for good; one that still says that the Pod is ready is neither."""
    if text(at(pod, "status", "phase")) == "Unknown" or text(at(pod, "status", "reason")) == "NodeLost":
        return True
    return _disruption(pod) in _NODE_GONE and text(_condition(pod, "Ready").get("status")) != "True"


def _disruption(pod: Json) -> str:
    """Return the reason of a Pod's condition DisruptionTarget; "" without one in force."""
    found = _condition(pod, "DisruptionTarget")
    return (text(found.get("reason")) or "DisruptionTarget") if found.get("status") == "True" else ""


def _disruption_words(pod: Json) -> str:
    """Return what the cluster says of why it ends a Pod: the kubelet's sentence, or the condition's."""
    found = _condition(pod, "DisruptionTarget")
    reason = text(at(pod, "status", "reason")) or _disruption(pod)
    message = text(at(pod, "status", "message")) or (
        text(found.get("message")) if found.get("status") == "True" else ""
    )
    return (f"{reason}: {message}" if reason and message else reason or message)[:MAX_WORDS_CHARS].strip()


def _deadline(message: str) -> str:
    said = message or "Pod was active on the node longer than the specified deadline"
    return f"{said} (its template's activeDeadlineSeconds)"


def memory_limit(pod: Json) -> int | None:
    """Return the limit of the worker's memory in bytes; None without one."""
    for container in _statuses(pod, "containers", of="spec"):
        if text(at(container, "name")) == body.WORKER:
            return quantity(text(at(container, "resources", "limits", "memory")))
    return None


def quantity(written: str) -> int | None:
    """Return the bytes of a quantity of Kubernetes, as 512Mi; None for what is none."""
    unit = next((unit for unit in _UNITS if written.endswith(unit)), "")
    number = written.removesuffix(unit)
    try:
        return int(float(number) * _UNITS.get(unit, 1))
    except (ValueError, OverflowError):
        return None


def _program(pod: Json) -> str:
    for container in _statuses(pod, "containers", of="spec"):
        command = at(container, "command")
        if text(at(container, "name")) == body.WORKER and isinstance(command, list) and command:
            return text(command[0])
    return ""


def _node(pod: Json) -> str:
    return text(at(pod, "spec", "nodeName"))


def _worker_status(pod: Json) -> Json:
    found = _statuses(pod, "containerStatuses")
    return next((one for one in found if text(one.get("name")) == body.WORKER), {})


def _statuses(pod: Json, key: str, *, of: str = "status") -> Iterator[Json]:
    found = at(pod, of, key)
    return (one for one in (found if isinstance(found, list) else ()) if isinstance(one, Mapping))


def _condition(pod: Json, kind: str) -> Json:
    return next((one for one in _statuses(pod, "conditions") if text(one.get("type")) == kind), {})


def _last_lines(message: str) -> tuple[str, ...]:
    lines: Sequence[str] = message.splitlines()
    return tuple(line[:MAX_LINE_CHARS] for line in lines[-MAX_LINES:])


def _number(written: str) -> float:
    try:
        return float(written)
    except ValueError:
        return 0.0


def _stamp(written: object) -> float | None:
    try:
        return datetime.fromisoformat(text(written)).timestamp()
    except ValueError:
        return None
