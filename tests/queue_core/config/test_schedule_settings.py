"""Schedules in the settings file: valid ones, and each mistake with its place, value and fix."""

import pytest

from queue_core.config.settings import parse_queue_file
from queue_core.schedules.schedule import Schedule


def mistakes_of(schedule: object, *, name: str = "nightly") -> dict[str, str]:
    """The mistakes of a schedule, by their place below it."""
    _, problems = parse_queue_file({"queues": {"reports": {}}, "schedules": {name: schedule}})
    assert all(problem.path[0] == "schedules" for problem in problems)
    return {".".join(map(str, problem.path[2:])): problem.message for problem in problems}


def test_a_schedule_in_the_file_becomes_a_schedule() -> None:
    settings, problems = parse_queue_file(
        {
            "queues": {"reports": None},
            "schedules": {
                "nightly": {
                    "queue": "reports",
                    "cron": "0 3 * * *",
                    "timezone": "Europe/Vienna",
                    "payload": {"kind": "all"},
                    "tag": "night",
                    "headers": {"source": "cron"},
                    "catch_up": "last",
                },
                "often": {"queue": "reports", "every": "1m30s", "payload": "text", "overlap": "skip"},
            },
        }
    )
    assert problems == []
    assert settings is not None
    nightly, often = (one.schedule(name, origin="t.yaml") for name, one in settings.schedules.items())
    assert nightly == Schedule(
        "nightly",
        "reports",
        "0 3 * * *",
        None,
        "Europe/Vienna",
        b'{"kind":"all"}',
        "night",
        {"source": "cron"},
        "last",
        "t.yaml",
    )
    assert often == Schedule("often", "reports", every=90.0, payload=b"text", origin="t.yaml", overlap="skip")


@pytest.mark.parametrize(
    ("settings", "place", "told"),
    [
        pytest.param({"queue": "report"}, "queue", "did you mean 'reports'", id="queue"),
        pytest.param({"queue": "x"}, "queue", "write it there: `queues: {x: {}}`", id="unknown queue"),
        pytest.param({"cron": "0 25 * * *"}, "cron", "0 25 * * *: bad hour; write minute, hour", id="cron"),
        pytest.param({"cron": None}, "", 'give cron, such as cron: "0 3 * * *"', id="neither"),
        pytest.param({"every": "1s"}, "every", "give either cron or every", id="both"),
        pytest.param({"cron": None, "every": "100ms"}, "every", "0.1 s: must be whole seconds, from 1s", id="every"),
        pytest.param({"cron": None, "every": "1s", "timezone": "UTC"}, "timezone", "leave it out", id="zone of every"),
        pytest.param({"timezone": "Europe/Viena"}, "timezone", "did you mean 'Europe/Vienna'", id="zone"),
        pytest.param({"catch_up": "none"}, "catch_up", "must be 'skip', 'last' or 'all': none", id="catch_up"),
        pytest.param({"overlap": "none"}, "overlap", "must be 'queue' or 'skip': none", id="overlap"),
        pytest.param({"catchup": "all"}, "catchup", "unknown setting, did you mean 'catch_up'", id="unknown"),
        pytest.param({"payload": "x" * 16_385}, "payload", "16,385 bytes: the payload of a schedule", id="payload"),
        pytest.param({"headers": {"a b": "x"}}, "headers", "a header's name must be", id="headers"),
        pytest.param({"tag": ""}, "tag", "tag must be 1 to 500 bytes", id="tag"),
    ],
)
def test_a_mistake_is_named_with_its_place(settings: dict[str, object], place: str, told: str) -> None:
    whole = {"queue": "reports", "cron": "0 3 * * *", **settings}
    found = mistakes_of({key: value for key, value in whole.items() if value is not None})
    assert list(found) == [place]
    assert told in found[place]


def test_a_name_must_begin_the_names_of_tasks() -> None:
    assert "a schedule's name is" in mistakes_of({"queue": "reports", "every": 1}, name="a.b")[""]


@pytest.mark.parametrize("wrong", ["daily", ["a"], 3])
def test_a_schedule_that_is_no_mapping_is_named(wrong: object) -> None:
    assert list(mistakes_of(wrong)) == [""]
