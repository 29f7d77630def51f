"""The allowed differences between our answers and those of Google's stub: each rule says why.

A rule changes the call or the stub's contents before the call, or its answer afterwards. The rest of the answer stays
the stub's, so that a rule allows one difference and no other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.differential.answers import Answer, Leased, Modified
from tests.differential.facts import RETENTION, limit_of
from tests.differential.operations import Add, LeaseCall, Modify
from tests.differential.refusals import (
    bounds_of_calls,
    checks_of_clients,
    far_etas,
    names_of_queues,
    names_that_queues_choose,
    pull_only,
)
from tests.differential.trial import After, StubTrial


@dataclass(frozen=True, slots=True)
class Rule:
    """An allowed difference. `apply` returns None where it doesn't apply to the call."""

    name: str
    reason: str
    apply: Callable[[StubTrial], After | None]
    is_silent: bool = False
    """Whether it changes the stub's contents without a trace in the answer."""


def _same(answer: Answer) -> Answer:
    return answer


def _paused(trial: StubTrial) -> After | None:
    if not isinstance(trial.call, LeaseCall) or trial.stub.queue(trial.queue) is None:
        return None
    if not trial.stub.queue(trial.queue).paused:
        return None
    return lambda answer: trial.undone(Leased(())) if isinstance(answer, Leased) else answer


def _rounded(trial: StubTrial) -> After | None:
    if not isinstance(trial.call, (LeaseCall, Modify)):
        return None
    seconds = trial.request.lease_seconds
    if not 0 <= seconds < 1e12 or int(seconds * 1e6) == round(seconds * 1e6):
        return None
    trial.request.lease_seconds = (round(seconds * 1e6) + 0.5) / 1e6
    return _same


def _own_queues(trial: StubTrial) -> After | None:
    if not isinstance(trial.call, Add) or len({one.queue_name for one in trial.request.add_request}) < 2:
        return None
    if not all(trial.stub.accepts(one) for one in trial.request.add_request):
        return None
    trial.apart = True
    return _same


def _new_ends(trial: StubTrial) -> After | None:
    if not isinstance(trial.call, (LeaseCall, Modify)):
        return None

    def end_of(name: bytes, end: int) -> int:
        had = trial.facts.known[trial.queue][name].etas
        while end > trial.now and end in had:
            end += 1
        return end

    def after(answer: Answer) -> Answer:
        if isinstance(answer, Modified):
            name = bytes(trial.request.task_name)
            if all(task.retry_count == 0 for task in trial.stub.tasks(trial.queue) if task.task_name == name):
                return answer  # it was never leased
        return trial.moved(answer, end_of)

    return after


def _past_etas(trial: StubTrial) -> After | None:
    raised = {}
    for queue in trial.queues:
        for task in trial.stub.tasks(queue):
            added_at = trial.known(queue, task).added_at
            if task.eta_usec < added_at:
                raised[queue, bytes(task.task_name)] = task.eta_usec
                task.eta_usec = added_at
    if not raised:
        return None
    trial.reindex()

    def after(answer: Answer) -> Answer:
        for queue in trial.queues:
            for task in trial.stub.tasks(queue):
                eta = raised.get((queue, bytes(task.task_name)))
                if eta is not None and not task.retry_count and task.eta_usec == trial.known(queue, task).added_at:
                    task.eta_usec = eta
        trial.reindex()
        return answer

    return after


def _own_limits(trial: StubTrial) -> After | None:
    kept = {}
    for queue in trial.queues:
        for task in trial.stub.tasks(queue):
            if not task.HasField("retry_parameters"):
                continue
            parameters = task.retry_parameters
            if parameters.HasField("retry_limit") and not parameters.HasField("age_limit_sec"):
                continue
            kept[queue, bytes(task.task_name)] = parameters.SerializeToString()
            if parameters.HasField("retry_limit"):
                parameters.ClearField("age_limit_sec")
            else:
                task.ClearField("retry_parameters")
    if not kept:
        return None

    def after(answer: Answer) -> Answer:
        for queue in trial.queues:
            for task in trial.stub.tasks(queue):
                own = kept.get((queue, bytes(task.task_name)))
                if own is not None:
                    task.retry_parameters.ParseFromString(own)
        return answer

    return after


def _exhausted(trial: StubTrial) -> After | None:
    gone = {}
    for queue in trial.queues:
        held = trial.stub.queue(queue)
        kept = []
        for task in trial.stub.tasks(queue):
            limit = limit_of(task, held)
            if limit is not None and 0 < task.retry_count >= limit and task.eta_usec <= trial.now:
                gone[bytes(task.task_name)] = task.eta_usec
            else:
                kept.append(task)
        trial.stub.reindex(queue, kept)
    if not gone:
        return None
    trial.gone.update(gone)
    return _same


def _free_names(trial: StubTrial) -> After | None:
    found = False
    for queue in trial.queues:
        live = {bytes(task.task_name) for task in trial.stub.tasks(queue)}
        for name, known in trial.facts.known[queue].items():
            gone_at = known.gone_at if known.gone_at is not None else trial.gone.get(name)
            if name in live or gone_at is None or known.is_chosen or gone_at + RETENTION > trial.now:
                continue
            trial.stub.queue(queue).task_name_archive.discard(name.decode())
            found = True
    return _same if found else None


def _no_tag(trial: StubTrial) -> After | None:
    emptied = set()
    for queue in trial.queues:
        for task in trial.stub.tasks(queue):
            if task.HasField("tag") and not task.tag:
                task.ClearField("tag")
                emptied.add((queue, bytes(task.task_name)))
    if not emptied:
        return None
    trial.reindex()

    def after(answer: Answer) -> Answer:
        for queue in trial.queues:
            for task in trial.stub.tasks(queue):
                if (queue, bytes(task.task_name)) in emptied:
                    task.tag = b""
        trial.reindex()
        return answer

    return after


def _insertion(trial: StubTrial) -> After | None:
    if not isinstance(trial.call, LeaseCall) or not trial.stub.tasks(trial.queue):
        return None
    names = {}
    for task in trial.stub.tasks(trial.queue):
        place = b"%09d" % trial.known(trial.queue, task).sequence
        names[place] = bytes(task.task_name)
        task.task_name = place
    trial.reindex()

    def after(answer: Answer) -> Answer:
        for task in trial.stub.tasks(trial.queue):
            task.task_name = names[bytes(task.task_name)]
        trial.reindex()
        if not isinstance(answer, Leased):
            return answer
        return Leased(tuple(replace(task, name=names[task.name]) for task in answer.tasks))

    return after


def _over_at_eta(trial: StubTrial) -> After | None:
    if not isinstance(trial.call, (LeaseCall, Modify)):
        return None
    trial.stub.ahead = 1
    return lambda answer: trial.moved(answer, lambda _name, end: end - 1)


def _filled(trial: StubTrial) -> After | None:
    call = trial.call
    if not isinstance(call, LeaseCall) or not call.by_tag or call.tag or trial.stub.queue(trial.queue) is None:
        return None
    held = trial.stub.queue(trial.queue)
    first = next((task for eta, _, task in held._sorted_by_eta if eta < trial.stub.now), None)
    if first is None or first.HasField("tag"):
        return None
    held._sorted_by_eta = [row for row in held._sorted_by_eta if not row[-1].HasField("tag")]

    def after(answer: Answer) -> Answer:
        trial.reindex()
        return answer

    return after


RULES = (
    Rule("bounds of a call", "the stub leaves to the clients what the service's documentation bounds", bounds_of_calls),
    Rule(
        "names of queues",
        "a malformed name is INVALID_QUEUE_NAME, where the stub finds none of that name",
        names_of_queues,
    ),
    Rule("a paused queue", "leases nothing, with OK: a worker would die of an error", _paused),
    Rule("pull tasks only", "the stub looks at the mode of the first task alone", pull_only),
    Rule(
        "names like a chosen one",
        "whoever knows such a name had it from the queue: it was deleted, not unknown",
        names_that_queues_choose,
    ),
    Rule("etas beyond the calendar", "are INVALID_ETA; the stub breaks", far_etas),
    Rule("checks of the clients", "names, tags, bodies and limits that clients refuse to send", checks_of_clients),
    Rule("whole microseconds", "a lease's length is rounded to the microsecond; the stub cuts it off", _rounded),
    Rule(
        "its own queue",
        "each task is added where it says; the stub adds all to the queue of the first",
        _own_queues,
        is_silent=True,
    ),
    Rule("no end comes twice", "the end is the lease's token: a later lease must not have it", _new_ends),
    Rule("past etas are now", "silently increased to the present, says the protocol", _past_etas),
    Rule("a task's own limit", "alone counts of its retry parameters: ages are for push queues", _own_limits),
    Rule("exhausted is gone", "when its last lease ends, not when somebody asks for it", _exhausted),
    Rule("names come free", "nine days after the task is gone; the stub remembers them for ever", _free_names),
    Rule("no tag of no bytes", "an empty tag is none; the stub breaks on it", _no_tag),
    Rule("ties by insertion", "tasks of one eta come in the order in which they were added", _insertion),
    Rule(
        "over at its eta",
        "a lease is over, a task leasable, at its eta; in the stub a microsecond later",
        _over_at_eta,
    ),
    Rule(
        "untagged tasks fill up",
        "a group without a tag is filled to max_tasks; the stub looks at the first few",
        _filled,
    ),
)
"""In the order in which they change the call; they change the answer in reverse order."""
