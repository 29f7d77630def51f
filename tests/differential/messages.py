"""Turn an operation into the protocol's message, with the names and etas it picks."""

from typing import Any  # protobuf messages have no types

from tests.differential import answers
from tests.differential.answers import Method
from tests.differential.facts import TaskFacts
from tests.differential.google_stub import GoogleStub
from tests.differential.operations import (
    Add,
    Call,
    Delete,
    Eta,
    Given,
    LeaseCall,
    Modify,
    NewOne,
    Pause,
    Purge,
    Stats,
    Which,
)

NOBODY = b"never-added"
PULL, PUSH = 1, 0


class Writer:
    """Writes messages about the stub's present contents."""

    def __init__(self, stub: GoogleStub, facts: TaskFacts) -> None:
        self._stub = stub
        self._facts = facts

    def write(self, call: Call) -> tuple[Method, Any]:
        """Return the call in the stub's names."""
        if isinstance(call, Add):
            return answers.ADD, self._add(call)
        if isinstance(call, LeaseCall):
            return answers.LEASE, _lease(call)
        if isinstance(call, Modify):
            return answers.MODIFY, self._modify(call)
        if isinstance(call, Delete):
            names = [self._name(call.queue, which) for which in call.tasks]
            return answers.DELETE, answers.DELETE.request(queue_name=call.queue.encode(), task_name=names)
        if isinstance(call, Stats):
            return answers.STATS, answers.STATS.request(queue_name=[name.encode() for name in call.queues])
        if isinstance(call, Pause):
            return answers.PAUSE, answers.PAUSE.request(
                app_id=b"app", queue_name=call.queue.encode(), pause=call.paused
            )
        assert isinstance(call, Purge)
        return answers.PURGE, answers.PURGE.request(queue_name=call.queue.encode())

    def in_our_names(self, call: Call, request: Any) -> Any:
        """Return the same message for our server."""
        made = type(request)()
        made.CopyFrom(request)
        if isinstance(call, (Delete, Modify)):
            ours = self._facts.ours.get(call.queue, {})
            if isinstance(call, Modify):
                made.task_name = ours.get(made.task_name, made.task_name)
            else:
                del made.task_name[:]
                made.task_name.extend(ours.get(name, name) for name in request.task_name)
        return made

    def _add(self, call: Add) -> Any:
        request = answers.ADD.request()
        for new in call.tasks:
            self._new(call.queue, new, request.add_request.add())
        return request

    def _new(self, queue: str, new: NewOne, one: Any) -> None:
        one.queue_name = (queue if new.queue is None else new.queue).encode()
        one.task_name = b"" if new.name is None else self._given(queue, new.name)
        one.eta_usec = self._eta(new.eta)
        one.mode = PULL if new.mode == "pull" else PUSH
        if new.body is not None:
            one.body = new.body
        if new.tag is not None:
            one.tag = new.tag
        if new.mode == "push":
            one.url = b"/work"
        if new.retry is not None:
            one.retry_parameters.SetInParent()
            if new.retry.limit is not None:
                one.retry_parameters.retry_limit = new.retry.limit
            if new.retry.age_seconds is not None:
                one.retry_parameters.age_limit_sec = new.retry.age_seconds

    def _eta(self, eta: Eta) -> int:
        return eta.microseconds + (self._stub.clock.now() if eta.base == "now" else 0)

    def _name(self, queue: str, which: Which) -> bytes:
        if isinstance(which, Given):
            return which.name
        now = self._stub.clock.now()
        if which.among == "ever":
            names = list(self._facts.known.get(queue, {}))
        else:
            names = [
                bytes(task.task_name)
                for task in self._stub.tasks(queue)
                if which.among == "live" or (task.retry_count and task.eta_usec > now)
            ]
        return names[int(which.place * len(names))] if names else NOBODY

    def _given(self, queue: str, which: Which) -> bytes:
        """Return a name for an add: not one that a queue chose."""
        if isinstance(which, Given):
            return which.name
        names = [name for name, task in self._facts.known.get(queue, {}).items() if not task.is_chosen]
        return names[int(which.place * len(names))] if names else NOBODY

    def _modify(self, call: Modify) -> Any:
        name = self._name(call.queue, call.task)
        known = self._facts.known.get(call.queue, {})
        etas = known[name].etas if name in known and known[name].etas else [self._stub.clock.now()]
        others = [task.etas[-1] for other, task in known.items() if other != name and task.etas]
        eta = {
            "own": etas[-1],
            "stale": etas[0],
            "foreign": others[-1] if others else etas[-1] - 1,
            "beside": etas[-1] + 1,
        }[call.eta]
        return answers.MODIFY.request(
            queue_name=call.queue.encode(), task_name=name, eta_usec=max(0, eta), lease_seconds=call.seconds
        )


def _lease(call: LeaseCall) -> Any:
    request = answers.LEASE.request(
        queue_name=call.queue.encode(), lease_seconds=call.seconds, max_tasks=call.count, group_by_tag=call.by_tag
    )
    if call.tag is not None:
        request.tag = call.tag
    return request
