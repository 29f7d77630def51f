"""One attempt of a call on the stub, with some of the rules in force."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias  # the stub and its messages have no types

from tests.differential.answers import ADD, AddAnswer, Answer, Leased, Method, Modified
from tests.differential.facts import Known, TaskFacts
from tests.differential.google_stub import GoogleStub, StubCopy
from tests.differential.operations import Add, Call, Stats

After: TypeAlias = Callable[[Answer], Answer]


def touched(call: Call) -> set[str]:
    """Return the names of the queues that a call is about."""
    if isinstance(call, Add):
        return {call.queue, *(task.queue for task in call.tasks if task.queue is not None)}
    return set(call.queues) if isinstance(call, Stats) else {call.queue}


@dataclass(slots=True)
class StubTrial:
    """The state of one attempt, which a rule may read and change.

    Args:
        request: the message, a separate copy for every attempt.
        start: the stub's contents before the call, in its queues.
        gone: tasks that went before this call, and when.
        concerned: names of the rules that applied.
        apart: whether the tasks of an add go to the stub queue by queue.
    """

    call: Call
    method: Method
    request: Any
    stub: GoogleStub
    facts: TaskFacts
    start: StubCopy
    gone: dict[bytes, int] = field(default_factory=dict)
    apart: bool = False
    concerned: list[str] = field(default_factory=list)

    @property
    def now(self) -> int:
        """The instant of the call."""
        return self.stub.clock.now()

    @property
    def queue(self) -> str:
        """The queue of the call; "" when it is about several."""
        return "" if isinstance(self.call, Stats) else self.call.queue

    @property
    def queues(self) -> list[str]:
        """The existing queues that the call may touch."""
        return list(self.start.queues)

    def known(self, queue: str, task: Any) -> Known:
        """Return the facts about a task of the stub."""
        return self.facts.known[queue][bytes(task.task_name)]

    def task(self, name: bytes) -> Any:
        """Return a task of the call's queue."""
        return next(task for task in self.stub.tasks(self.queue) if task.task_name == name)

    def reindex(self) -> None:
        """Restore the order after names, etas or tags of tasks were changed."""
        for queue in self.queues:
            self.stub.reindex(queue, self.stub.tasks(queue))

    def moved(self, answer: Answer, move: Callable[[bytes, int], int]) -> Answer:
        """Return the answer with other lease ends; the stub's tasks get them too."""
        if isinstance(answer, Modified):
            name = bytes(self.request.task_name)
            answer = Modified(move(name, answer.eta))
            self.task(name).eta_usec = answer.eta
        elif isinstance(answer, Leased):
            answer = Leased(tuple(replace(task, eta=move(task.name, task.eta)) for task in answer.tasks))
            by_name = {bytes(task.task_name): task for task in self.stub.tasks(self.queue)}
            for leased in answer.tasks:
                by_name[leased.name].eta_usec = leased.eta
        else:
            return answer
        self.reindex()
        return answer

    def undone(self, answer: Answer) -> Answer:
        """Return another answer than the stub's, and undo the call's changes."""
        self.stub.restore(self.start)
        self.gone.clear()
        return answer

    def run(self, afters: Sequence[After]) -> Answer:
        """Call the stub; then apply the rules' changes to its answer, last rule first."""
        answer = self._apart() if self.apart else self.stub.call(self.method, self.request)
        self.stub.ahead = 0
        for after in reversed(afters):
            answer = after(answer)
        return answer

    def _apart(self) -> Answer:
        results: dict[int, tuple[int, bool]] = {}
        chosen: dict[int, bytes] = {}
        requests = list(enumerate(self.request.add_request))
        for queue in dict.fromkeys(one.queue_name for _, one in requests):
            part = ADD.request()
            places = [place for place, one in requests if one.queue_name == queue]
            for place in places:
                part.add_request.add().CopyFrom(self.request.add_request[place])
            answer = self.stub.call(ADD, part)
            if not isinstance(answer, AddAnswer):
                return answer
            results.update(zip(places, answer.results, strict=True))
            chosen.update(zip(places, answer.chosen, strict=True))
        return AddAnswer(tuple(results[place] for place, _ in requests), tuple(chosen[place] for place, _ in requests))
