"""Run a program on Google's stub and on our server, and compare each answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any  # protobuf messages have no types

from queue_core.clock import MICROSECONDS, ManualClock
from queue_core.store import Store
from tests.differential.answers import OK, AddAnswer, Answer, Leased, Method, StatsAnswer
from tests.differential.facts import MINUTE, TaskFacts
from tests.differential.google_stub import GoogleStub, StubCopy
from tests.differential.messages import Writer
from tests.differential.operations import BOUNDED, PLAIN, RETRY_LIMIT, Call, Pass, PassTo, Program, Stats
from tests.differential.our_server import OurServer
from tests.differential.rules import RULES, Rule
from tests.differential.trial import After, StubTrial, touched

QUEUES: Mapping[str, int | None] = {PLAIN: None, BOUNDED: RETRY_LIMIT}
RECENT_FIGURES = "figures of the last minute"
"""The one difference without a `Rule`: the stub draws these figures at random, so ours are checked separately."""
CHOSEN_NAMES = "names that are chosen"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first answers that no rule explains."""

    step: int
    call: Call
    request: str
    google: Answer
    expected: Answer
    ours: Answer


@dataclass(slots=True)
class ComparisonTally:
    """Counts of what was compared."""

    calls: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, other: "ComparisonTally") -> None:
        """Add another's counts."""
        self.calls += other.calls
        self.same += other.same
        self.kinds += other.kinds
        self.rules += other.rules


def compare(program: Program, store: Store) -> tuple[ComparisonTally, Difference | None]:
    """Run both to the end, or to the first unexplained difference. Closes the store."""
    clock = ManualClock()
    with OurServer(store, QUEUES, clock) as server:
        comparison = StubComparison(GoogleStub(QUEUES, clock), server, clock)
        for number, step in enumerate(program):
            if isinstance(step, Pass):
                comparison.let_pass(step.microseconds)
            elif isinstance(step, PassTo):
                comparison.let_pass_to(step)
            else:
                difference = comparison.call(number, step)
                if difference is not None:
                    return comparison.tally, difference
        return comparison.tally, None


class StubComparison:
    """Both sides, and the facts about their tasks."""

    def __init__(self, stub: GoogleStub, server: OurServer, clock: ManualClock) -> None:
        self._stub = stub
        self._server = server
        self._clock = clock
        self._facts = TaskFacts.of(QUEUES)
        self._writer = Writer(stub, self._facts)
        self.tally = ComparisonTally()

    def let_pass(self, microseconds: int) -> None:
        """Advance the clock of both."""
        self._server.note_leases()
        self._clock.advance(microseconds / MICROSECONDS)

    def let_pass_to(self, step: PassTo) -> None:
        """Advance the clock to the next eta of a queue, or a microsecond beside that."""
        ahead = [task.eta_usec - self._clock.now() for task in self._stub.tasks(step.queue)]
        next_one = min((eta for eta in ahead if eta > 0), default=None)
        if next_one is not None:
            self.let_pass(max(0, next_one + step.beside))

    def call(self, number: int, call: Call) -> Difference | None:
        """Make one call on both; then bring the stub to the state it should have."""
        method, request = self._writer.write(call)
        start = self._stub.copy(touched(call))
        google, _ = self._try(call, method, request, start, ())
        as_google = self._stub.copy(touched(call))
        expected, trial = self._try(call, method, request, start, RULES)
        as_expected = self._stub.copy(touched(call))
        given = self._server.call(method, self._writer.in_our_names(call, request))
        ours = self._in_their_names(call, given)
        self.tally.calls[method.name] += 1
        self.tally.kinds[_kind(ours)] += 1
        if ours != expected or not self._are_recent(call, ours):
            return Difference(number, call, str(request), google, expected, ours)
        concerned = [rule for rule in RULES if rule.name in trial.concerned]
        if google == ours and not any(rule.is_silent for rule in concerned):
            self._stub.restore(as_google)
            self.tally.same[method.name] += 1
        else:
            for rule in self._needed(call, method, request, start, ours, concerned):
                self.tally.rules[rule.name] += 1
            self._stub.restore(as_expected)
        self._note(call, expected, trial, given)
        return None

    def _try(
        self, call: Call, method: Method, request: Any, start: StubCopy, rules: Sequence[Rule]
    ) -> tuple[Answer, StubTrial]:
        self._stub.restore(start)
        own = type(request)()
        own.CopyFrom(request)
        trial = StubTrial(call, method, own, self._stub, self._facts, start)
        afters: list[After] = []
        for rule in rules:
            after = rule.apply(trial)
            if after is not None:
                trial.concerned.append(rule.name)
                afters.append(after)
        return trial.run(afters), trial

    def _needed(
        self, call: Call, method: Method, request: Any, start: StubCopy, ours: Answer, concerned: Sequence[Rule]
    ) -> Sequence[Rule]:
        """Return the smallest set of rules concerned that explains an answer."""
        for count in range(len(concerned)):
            for rules in combinations(concerned, count):
                if self._try(call, method, request, start, rules)[0] == ours:
                    return rules or [rule for rule in concerned if rule.is_silent]
        return concerned

    # -- what we answer -------------------------------------------------------------------------------------------

    def _in_their_names(self, call: Call, answer: Answer) -> Answer:
        if not isinstance(answer, Leased) or isinstance(call, Stats):
            return answer
        theirs = self._facts.theirs(call.queue)
        return Leased(tuple(replace(task, name=theirs.get(task.name, task.name)) for task in answer.tasks))

    def _are_recent(self, call: Call, answer: Answer) -> bool:
        """Return whether the figures that the stub draws at random are true in our answer."""
        if not isinstance(call, Stats) or not isinstance(answer, StatsAnswer):
            return True
        now = self._clock.now()
        for queue, recent in zip(call.queues, answer.recent, strict=True):
            self.tally.rules[RECENT_FIGURES] += 1
            if recent is None:
                return False
            if queue not in QUEUES:
                if (recent.last_minute, recent.last_hour, recent.in_flight) != (0, 0, 0):
                    return False
                continue
            live = sum(task.retry_count > 0 and task.eta_usec > now for task in self._stub.tasks(queue))
            hour = self._facts.leased_since(queue, now - 60 * MINUTE)
            most = self._facts.leased_since(queue, now - 61 * MINUTE)
            exact = (self._facts.leased_since(queue, now - MINUTE), live, 0.0)
            if (recent.last_minute, recent.in_flight, recent.enforced_rate) != exact:
                return False
            if not hour <= recent.last_hour <= most:
                return False
        return True

    def _note(self, call: Call, expected: Answer, trial: StubTrial, given: Answer) -> None:
        now = self._clock.now()
        if isinstance(given, AddAnswer):
            assert isinstance(expected, AddAnswer)
            for one, (code, is_chosen), theirs, ours in zip(
                trial.request.add_request, given.results, expected.chosen, given.chosen, strict=True
            ):
                if code == OK:
                    self.tally.rules[CHOSEN_NAMES] += is_chosen
                    name = theirs if is_chosen else bytes(one.task_name)
                    queue = one.queue_name.decode()
                    self._facts.note_added(queue, name, chosen=ours if is_chosen else None, now=now)
        elif isinstance(given, Leased) and not isinstance(call, Stats):
            assert isinstance(expected, Leased)
            self._facts.leased_at[call.queue] += [now] * len(given.tasks)
            for task in expected.tasks:
                known = self._facts.known[call.queue][task.name]
                known.leased_at = max(now, known.leased_at + 1)
        for queue in trial.queues:
            self._facts.note_tasks(self._stub, queue, trial.gone, now=now)


def _kind(answer: Answer) -> str:
    name = type(answer).__name__.lower()
    return f"{name} {answer.code}" if hasattr(answer, "code") else name
