"""A number that a client's method takes is in its range, or refused by an error that names it, its value and limit."""

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from queue_core import ANY, InvalidRequestError, LeaseLostError, Retries, open_queues, open_queues_async
from queue_core.client.asynchronous.client import AsyncQueue, AsyncQueues
from queue_core.client.http_calls import HttpQueue, HttpQueues
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.client.schedules import Schedules
from queue_core.errors import InvalidSettingError
from queue_core.limits import shown_value
from queue_core.task import QueueSpec
from queue_core.verbs.criteria import Search
from tests.support.number_arguments import TOKEN, NumberArgument, number_arguments
from tests.support.servers import a_server
from tests.support.stores.stores import opened

NUMBERS = (0, -1, 1e305, math.nan, math.inf, -math.inf, 2**63, True, 10**400, 10**5_000, "1")
ASYNC_INNER = ("call", "call_waiting")
"""Methods of `AsyncQueues` that its queues call."""
REQUIRED: Mapping[str, object] = {
    "text": "x",
    "action": "delete",
    "deletions": [],
    "dry_run": True,
    "facts": {},
    "holder": "h",
    "kind": "notes",
    "leases": [TOKEN],
    "name": "n",
    "names": ["n-1"],
    "queries": [],
    "queue": "q",
    "queues": [("q", ANY)],
    "schedules": [],
    "search": Search(),
    "seconds": 10,
    "spec": QueueSpec("made"),
    "tasks": b"x",
    "wait_seconds": 0,
    "worker": "w",
}
ZERO_IS_RIGHT = {
    *("after", "ahead_seconds", "as_of", "added_after", "added_before", "before", "delay_seconds", "payload_bytes"),
    *("fraction", "history_keep", "history_seconds", "lease_seconds", "limit_bytes", "min_leases", "priority"),
    *("name_retention_seconds", "retry_min_seconds", "seconds", "wait_seconds"),
}
"""Fields for which 0 has a meaning; an eta of 0 is one in the past."""
SHOWN = {
    "burst": "rate: burst",
    "count": "number of tasks to lease",
    "delay_seconds": "delay",
    "every": "schedule 's'",
    "fraction": "progress",
    "history_keep": "history keep",
    "history_seconds": "history for",
    "lease_seconds": "lease",
    "limit_bytes": "total_storage_limit",
    "max_eta_seconds": "max_eta",
    "max_lease_seconds": "max_lease",
    "max_payload_bytes": "max_payload",
    "name_retention_seconds": "name_retention",
    "per_second": "rate",
    "retry_max_seconds": "retry",
    "retry_min_seconds": "retry",
    "wait_seconds": "waiting time",
}
"""What messages call a field, where that is not its name: as `towline.yaml` does, or in words."""
SECONDS = {"lease": "lease time", "exchange": "lease time", "renew": "lease time"}
"""What messages call the `seconds` of a method."""


@dataclass(frozen=True, slots=True)
class Facade:
    """One of the public ways to call a store."""

    objects: Mapping[type, object]
    run: Callable[[object], object]

    def call(self, of: type, number: NumberArgument, value: object) -> object:
        """Call a method with a number; its other arguments are right."""
        method = getattr(self.objects[of], number.method)
        given = {
            name: REQUIRED[name]
            for name, parameter in inspect.signature(method).parameters.items()
            if parameter.default is inspect.Parameter.empty and name != number.argument
        }
        if number.method == "change_matching" and number.argument == "eta":
            given["action"] = "postpone"
        return self.run(method(**given, **{number.argument: number.made(value)}))


def _returned(value: object) -> object:
    return value


@pytest.fixture(scope="module", params=["local", "http", "async"])
def facade(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facade]:
    with opened("memory", tmp_path_factory.mktemp("store")) as store, a_server(store) as server:
        queues = open_queues("memory:") if request.param == "local" else open_queues(server.url)
        queues.put_queue(QueueSpec("q"))
        sync = (queues.queue("q"), queues.schedules, queues)  # last: a storage limit of 0 is set
        if request.param != "async":
            yield Facade({type(one): one for one in sync}, _returned)
        else:
            with asyncio.Runner() as runner:
                ours = runner.run(open_queues_async(server.url))
                yield Facade({AsyncQueue: ours.queue("q"), AsyncQueues: ours}, runner.run)  # type: ignore[arg-type]
                runner.run(ours.close())
        queues.close()


def _is_right(number: NumberArgument, value: Any) -> bool:
    """Return whether a number is one that its argument takes; 0 is the only one of all that is any's."""
    is_zero = value == 0 and not isinstance(value, str)
    return is_zero and (number.field in ZERO_IS_RIGHT or number.field == "eta")


def test_a_number_is_refused_by_name_value_and_limit_or_is_right(facade: Facade) -> None:
    wrong: list[str] = []
    for of in facade.objects:
        for number in number_arguments(of, without=ASYNC_INNER):
            for value in NUMBERS:
                found = _outcome(lambda of=of, number=number, value=value: facade.call(of, number, value))  # type: ignore[misc]
                if found is None and _is_right(number, value):
                    continue
                if found is None or not _names(found, number, value):
                    wrong.append(f"{of.__name__}.{number.name} = {shown_value(value)}: {found or 'accepted'}")
    assert not wrong, "\n".join(wrong)


def _outcome(call: Callable[[], object]) -> InvalidRequestError | None:
    """Return the refusal of a call; None: it was made. Any other error is raised."""
    try:
        call()
    except LeaseLostError:
        return None
    except InvalidRequestError as error:
        return error
    return None


def _names(error: InvalidRequestError, number: NumberArgument, value: object) -> bool:
    """Return whether an error says which argument, which value and which limit."""
    text, field = str(error), number.field
    name = SECONDS.get(number.method, field) if field == "seconds" else SHOWN.get(field, field)
    without_value = text.replace(shown_value(value), "")
    return name in text and shown_value(value) in text and any(one.isdigit() for one in without_value)


def test_the_generated_calls_reach_every_kind_of_number() -> None:
    names = {number.name for of in (HttpQueue, HttpQueues, Schedules) for number in number_arguments(of)}
    assert {"add tasks[].eta", "exchange deletions[].then[].delay_seconds", "renew leases[].progress.fraction"} <= names
    assert {"put_queue spec.per_tag.rate.burst", "observe_many queries[].after", "search search.min_leases"} <= names
    assert {"declare schedules[].every", "lease wait_seconds", "lead seconds", "wait_ready wait_seconds"} <= names


def test_every_facade_takes_the_same_numbers() -> None:
    def numbers(*classes: type) -> set[str]:
        return {number.name for of in classes for number in number_arguments(of, without=ASYNC_INNER)}

    over_http = numbers(HttpQueue, HttpQueues, Schedules)
    assert numbers(LocalQueue, LocalQueues, Schedules) == over_http
    assert numbers(AsyncQueue, AsyncQueues) <= over_http


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e305, 2**63, True, 10**400, "1"], ids=repr)
def test_a_timeout_or_a_limit_of_retries_that_is_none_is_refused_as_a_client_is_made(value: Any) -> None:
    calls: dict[str, Callable[[], object]] = {
        "timeout_seconds": lambda: open_queues("http://127.0.0.1:1", timeout_seconds=value),
        "tries": lambda: open_queues("http://127.0.0.1:1", retries=Retries(tries=value)),
        "timeouts": lambda: open_queues("http://127.0.0.1:1", retries=Retries(timeouts=value)),
    }
    if value != 0:
        calls["first_pause_seconds"] = lambda: open_queues("http://127.0.0.1:1", retries=Retries(6, value))
        calls["longest_pause_seconds"] = lambda: open_queues("http://127.0.0.1:1", retries=Retries(6, 0.1, value))
    for name, call in calls.items():
        with pytest.raises(InvalidSettingError, match=name) as refused:
            call()
        assert shown_value(value) in str(refused.value)
