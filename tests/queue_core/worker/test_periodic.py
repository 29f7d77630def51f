"""`@app.periodic`: the schedules that a program declares for its own functions."""

import pytest

from queue_core.errors import AppError
from queue_core.worker.app import App
from queue_core.worker.context import Backoff, Task


def test_a_function_gets_a_schedule_of_its_name_queue_and_tag() -> None:
    app = App()

    @app.periodic(cron="0 3 * * *", timezone="Europe/Vienna", catch_up="last", overlap="skip")
    @app.function(queue="reports", retry=Backoff(attempts=4))
    def nightly(day: str = "today") -> None: ...

    (found,) = app.schedules(origin="tasks:app")
    assert (found.name, found.queue, found.tag, found.cron) == ("nightly", "reports", "nightly", "0 3 * * *")
    assert (found.timezone, found.catch_up, found.origin) == ("Europe/Vienna", "last", "tasks:app")
    assert (found.payload, found.max_leases, found.overlap) == (b"{}", 4, "skip")
    assert nightly.tag == "nightly"


def test_a_functions_arguments_are_its_payload() -> None:
    app = App()

    @app.periodic(every="10s", payload={"path": "a.jpg"}, name="thumbs-of-a")
    @app.function(queue="thumbs")
    def resize(path: str, width: int = 200) -> None: ...

    (found,) = app.schedules()
    assert (found.name, found.every, found.payload) == ("thumbs-of-a", 10.0, b'{"path":"a.jpg"}')


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        pytest.param(None, b"", id="none"),
        pytest.param(b"\x00", b"\x00", id="bytes"),
        pytest.param("text", b"text", id="text"),
        pytest.param({"a": [1]}, b'{"a":[1]}', id="JSON"),
    ],
)
def test_a_raw_task_gets_its_payload_as_it_is_or_as_json(payload: object, expected: bytes) -> None:
    app = App()

    @app.periodic(every=60, payload=payload)
    @app.task(queue="work", tag="t")
    def handle(task: Task) -> None: ...

    (found,) = app.schedules()
    assert (found.name, found.queue, found.tag, found.payload) == ("handle", "work", "t", expected)


def test_one_function_may_have_several_schedules() -> None:
    app = App()

    @app.periodic(every="1h", name="hourly")
    @app.periodic(every="1d", name="daily")
    @app.function(queue="work")
    def report() -> None: ...

    assert [one.name for one in app.schedules()] == ["daily", "hourly"]


def test_arguments_that_do_not_fit_are_told_with_the_fix() -> None:
    app = App()

    @app.periodic(every="1h")
    @app.function(queue="work")
    def report(day: str) -> None: ...

    with pytest.raises(AppError, match=r"schedule 'report': .*day.*payload="):
        app.schedules()


def test_a_function_that_is_no_task_yet_is_refused() -> None:
    app = App()

    def report() -> None: ...

    with pytest.raises(AppError, match=r"write @app\.periodic above"):
        app.periodic(every="1h")(report)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"cron": "0 25 * * *"}, id="cron"),
        pytest.param({"every": "soon"}, id="every"),
        pytest.param({"every": 0.2}, id="too often"),
        pytest.param({"every": 1, "cron": "* * * * *"}, id="both"),
        pytest.param({}, id="neither"),
        pytest.param({"every": 1, "timezone": "Mars"}, id="zone"),
        pytest.param({"every": 1, "catch_up": "some"}, id="catch_up"),
        pytest.param({"every": 1, "overlap": "some"}, id="overlap"),
        pytest.param({"every": 1, "name": "a b"}, id="name"),
    ],
)
def test_settings_that_can_not_be_are_refused_where_they_are_written(wrong: dict[str, object]) -> None:
    app = App()

    @app.function(queue="work")
    def report() -> None: ...

    with pytest.raises(AppError):
        app.periodic(**wrong)(report)  # type: ignore[arg-type]


def test_two_schedules_of_one_name_are_refused() -> None:
    app = App()

    @app.periodic(every="1h")
    @app.function(queue="work")
    def report() -> None: ...

    with pytest.raises(AppError, match="two schedules are called 'report'"):
        app.periodic(every="1d")(report)
