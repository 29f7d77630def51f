"""Rules about refusals: limits of the service that the stub leaves to the clients, or crashes on."""

import re
from collections.abc import Callable
from typing import Any  # protobuf messages have no types

from tests.differential import answers
from tests.differential.answers import AddAnswer, Answer, DeleteAnswer, Refused
from tests.differential.operations import Add, Delete, LeaseCall, Modify, Stats
from tests.differential.trial import After, StubTrial

MAX_TASKS = 1000
MAX_TASKS_PER_ADD = 100
MAX_LEASE_SECONDS = 604_800.0
MAX_TASK_BYTES = 1 << 20
MAX_TAG_BYTES = 500
LAST_ETA = 253_402_300_799_000_000
"""The last second of the year 9999."""

_QUEUE_NAME = re.compile(rb"[a-zA-Z0-9-]{1,100}")
_TASK_NAME = re.compile(rb"[a-zA-Z0-9_-]{1,500}")
_CHOSEN_NAME = re.compile(rb"_[0-9]+")

_BEFORE_ITS_TASK = (answers.UNKNOWN_QUEUE, answers.INVALID_QUEUE_NAME, answers.QUEUE_PAUSED)
"""Refusals of a modification before its seconds are checked."""


def bounds_of_calls(trial: StubTrial) -> After | None:
    """Limit the number of tasks and seconds, and require a valid tag."""
    code = None
    if isinstance(trial.call, Add) and len(trial.request.add_request) > MAX_TASKS_PER_ADD:
        return lambda _answer: trial.undone(Refused(answers.TOO_MANY_TASKS))
    if isinstance(trial.call, LeaseCall):
        code = _lease_refusal(trial.request)
    elif isinstance(trial.call, Modify) and not 0 <= trial.request.lease_seconds <= MAX_LEASE_SECONDS:
        code = answers.INVALID_REQUEST
    if code is None:
        return None
    refused = Refused(code)

    def after(answer: Answer) -> Answer:
        if isinstance(answer, Refused) and (isinstance(trial.call, LeaseCall) or answer.code in _BEFORE_ITS_TASK):
            return answer
        return trial.undone(refused)

    return after


def _lease_refusal(request: Any) -> int | None:
    if not 0 <= request.lease_seconds <= MAX_LEASE_SECONDS or not 1 <= request.max_tasks <= MAX_TASKS:
        return answers.INVALID_REQUEST
    return answers.INVALID_TAG if request.group_by_tag and _is_wrong_tag(request.tag) else None


def _is_wrong_tag(tag: bytes) -> bool:
    try:
        return len(tag) > MAX_TAG_BYTES or "\x00" in tag.decode()
    except UnicodeDecodeError:
        return True


def names_of_queues(trial: StubTrial) -> After | None:
    """Refuse an impossible queue name as INVALID_QUEUE_NAME, except where an unknown queue is no error."""
    if isinstance(trial.call, (Stats, Delete)):
        return None
    if isinstance(trial.call, Add):
        wrong = [one.queue_name and not _QUEUE_NAME.fullmatch(one.queue_name) for one in trial.request.add_request]
        if not any(wrong):
            return None
        return lambda answer: _with_codes(
            answer,
            lambda place, code: answers.INVALID_QUEUE_NAME if wrong[place] and code == answers.UNKNOWN_QUEUE else code,
        )
    if _QUEUE_NAME.fullmatch(trial.queue.encode()):
        return None
    return lambda answer: Refused(answers.INVALID_QUEUE_NAME) if answer == Refused(answers.UNKNOWN_QUEUE) else answer


def pull_only(trial: StubTrial) -> After | None:
    """Refuse a push task as an error of the whole call, after all other checks."""
    if not isinstance(trial.call, Add) or all(task.mode == "pull" for task in trial.call.tasks):
        return None

    def after(answer: Answer) -> Answer:
        if isinstance(answer, AddAnswer) and answer.is_done:
            return trial.undone(Refused(answers.INVALID_QUEUE_MODE))
        return answer

    return after


def names_that_queues_choose(trial: StubTrial) -> After | None:
    """Refuse names of `_` and digits."""
    if isinstance(trial.call, Delete):
        names = list(trial.request.task_name)
        if not any(_CHOSEN_NAME.fullmatch(name) for name in names):
            return None

        def after(answer: Answer) -> Answer:
            if not isinstance(answer, DeleteAnswer):
                return answer
            return DeleteAnswer(tuple(_tombstoned(name, code) for name, code in zip(names, answer.codes, strict=True)))

        return after
    if isinstance(trial.call, Modify) and _CHOSEN_NAME.fullmatch(trial.request.task_name):
        name = bytes(trial.request.task_name)
        return lambda answer: Refused(_tombstoned(name, answer.code)) if isinstance(answer, Refused) else answer
    return None


def _tombstoned(name: bytes, code: int) -> int:
    gone = code == answers.UNKNOWN_TASK and _CHOSEN_NAME.fullmatch(name)
    return answers.TOMBSTONED_TASK if gone else code


def far_etas(trial: StubTrial) -> After | None:
    """Refuse an eta after the year 9999 like one before 1970."""
    if not isinstance(trial.call, Add):
        return None
    far = [one for one in trial.request.add_request if one.eta_usec > LAST_ETA]
    for one in far:
        one.eta_usec = -1
    return (lambda answer: answer) if far else None


def checks_of_clients(trial: StubTrial) -> After | None:
    """Refuse the whole add for a task that only the clients check, like one that the stub refuses."""
    if not isinstance(trial.call, Add):
        return None
    codes = {}
    for place, one in enumerate(trial.request.add_request):
        code = _add_refusal(one) if trial.stub.accepts(one) else None
        if code is not None:
            codes[place] = code
            one.eta_usec = -1
    if not codes:
        return None
    return lambda answer: _with_codes(answer, codes.get)


def _add_refusal(one: Any) -> int | None:
    if one.ByteSize() > MAX_TASK_BYTES:
        return answers.TASK_TOO_LARGE
    if one.mode and not one.HasField("body"):
        return answers.INVALID_REQUEST
    retry = one.retry_parameters
    if retry.HasField("retry_limit") and retry.retry_limit < 1:
        return answers.INVALID_RETRY_PARAMETERS
    name = one.task_name
    if name and (not _TASK_NAME.fullmatch(name) or _CHOSEN_NAME.fullmatch(name)):
        return answers.INVALID_TASK_NAME
    return answers.INVALID_TAG if _is_wrong_tag(one.tag) else None


def _with_codes(answer: Answer, code_of: Callable[[int, int], int | None]) -> Answer:
    if not isinstance(answer, AddAnswer):
        return answer
    results = tuple((code_of(place, code) or 0, named) for place, (code, named) in enumerate(answer.results))
    return AddAnswer(results, answer.chosen)
