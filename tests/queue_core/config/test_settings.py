"""The queue's half of the settings file: models, relations, overrides."""

from pathlib import Path

import pytest

from queue_core.config.settings import (
    Override,
    QueueFile,
    ServerSettings,
    absolute_store,
    environment_overrides,
    overlay,
    parse_queue_file,
)
from queue_core.task import QueueSpec


def mistakes_of(data: object) -> dict[str, str]:
    _, problems = parse_queue_file(data)
    return {".".join(map(str, problem.path)): problem.message for problem in problems}


def parsed(data: object) -> QueueFile:
    settings, problems = parse_queue_file(data)
    assert not problems
    assert settings is not None
    return settings


def test_a_queue_in_the_file_becomes_its_spec() -> None:
    settings = parsed(
        {
            "queues": {
                "thumbs": {
                    "lease": "30s",
                    "max_lease": "10m",
                    "max_leases": 5,
                    "retry": {"min": "2s", "max": "1m"},
                    "on_exhausted": "delete",
                    "name_retention": "1d",
                    "lease_calls_per_second": 10,
                    "acl": {"users": ["a@example.org", "b@example.org"], "writers": ["w@example.org"]},
                    "history": {"keep": 500, "for": "2h"},
                }
            }
        }
    )
    assert settings.specs() == [
        QueueSpec(
            "thumbs",
            30.0,
            600.0,
            5,
            2.0,
            60.0,
            "delete",
            86_400.0,
            10,
            ("a@example.org", "b@example.org"),
            ("w@example.org",),
            history_keep=500,
            history_seconds=7200.0,
        )
    ]


@pytest.mark.parametrize(
    ("history", "keep", "seconds"),
    [(0, 0, 86_400.0), ({}, 10_000, 86_400.0), ({"keep": 5}, 5, 86_400.0), ({"for": "0s"}, 10_000, 0.0)],
)
def test_a_queues_history_is_two_settings_or_0(history: object, keep: int, seconds: float) -> None:
    spec = parsed({"queues": {"q": {"history": history}}}).specs()[0]
    assert (spec.history_keep, spec.history_seconds) == (keep, seconds)


def test_a_queue_without_settings_has_the_defaults_of_the_queue_itself() -> None:
    assert parsed({"queues": {"thumbs": None}}).specs() == [QueueSpec("thumbs")]


def test_nothing_at_all_is_a_file_of_defaults() -> None:
    assert parsed(None) == QueueFile()


QUEUE_YAML = {
    "queue": [{"name": "a", "mode": "pull"}],
    "total_storage_limit": "1MiB",
    "resume_paused_queues": False,
    "application": "app",
}


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        pytest.param({"stor": "memory:"}, "stor", "did you mean 'store'", id="an unknown key"),
        pytest.param({"store": "postgresq://db"}, "store", "did you mean 'postgresql'", id="a store misspelt"),
        pytest.param({"store": "redis:host"}, "store", "two slashes", id="a host without slashes"),
        pytest.param({"store": "memory:x"}, "store", "nothing after it", id="a memory with a name"),
        pytest.param({"store": {"ulr": "memory:", "url": "memory:"}}, "store.ulr", "did you mean 'url'", id="no url"),
        pytest.param({"store": {"url": 5}}, "store.url", "write a store's URL", id="a number is no URL"),
        pytest.param(
            {"store": {"url": "redis://h", "password_env": "A", "password_file": "b"}},
            "store.password_env",
            "either",
            id="two passwords",
        ),
        pytest.param(
            {"store": {"url": "redis://:x@h", "password_env": "A"}}, "store.password_env", "one place", id="another one"
        ),
        pytest.param(
            {"store": {"url": "sqlite:///a.db", "password_file": "b"}}, "store.password_file", "no password", id="none"
        ),
        pytest.param({"store": "towline.db"}, "store", "sqlite:///towline.db", id="a path is no URL"),
        pytest.param({"durability": "maybe"}, "durability", "'strict' or 'relaxed'", id="a word that is none of two"),
        pytest.param({"queues": {"a_b": {}}}, "queues.a_b", "letters, digits or '-'", id="a queue's name"),
        pytest.param({"queues": {"q" * 101: {}}}, f"queues.{'q' * 101}", "101 characters", id="a long name"),
        pytest.param({"queues": {"q": {"lease": "8d"}}}, "queues.q.lease", "at most 7d: 8d", id="an eight-day lease"),
        pytest.param({"queues": {"q": {"lease": -1}}}, "queues.q.lease", "0 or more", id="a negative lease"),
        pytest.param({"queues": {"q": {"lease": "30"}}}, "queues.q.lease", "write a duration", id="no unit"),
        pytest.param(
            {"queues": {"q": {"lease": "2m", "max_lease": "1m"}}},
            "queues.q.lease",
            "at most max_lease, which is 1m: 2m",
            id="a lease above its own bound",
        ),
        pytest.param(
            {"queues": {"q": {"max_lease": "10s"}}},
            "queues.q.max_lease",
            "at least lease, which is 1m by default",
            id="a bound below the default lease",
        ),
        pytest.param(
            {"queues": {"q": {"retry": {"min": "10m"}}}},
            "queues.q.retry.min",
            "at most max, which is 5m by default: 10m",
            id="a first retry after the last",
        ),
        pytest.param(
            {"queues": {"q": {"max_leases": 0}}}, "queues.q.max_leases", "at least 1: 0", id="no lease at all"
        ),
        pytest.param(
            {"queues": {"q": {"max_leases": True}}}, "queues.q.max_leases", "whole number", id="no truth value"
        ),
        pytest.param(
            {"queues": {"q": {"lease_calls_per_second": 0}}},
            "queues.q.lease_calls_per_second",
            "at least 1: 0",
            id="no lease call at all",
        ),
        pytest.param(
            {"queues": {"q": {"acl": {"user": []}}}}, "queues.q.acl.user", "did you mean 'users'", id="one user"
        ),
        pytest.param(
            {"queues": {"q": {"acl": {"users": ["a b"]}}}}, "queues.q.acl.users.0", "email address", id="no address"
        ),
        pytest.param({"queues": {"q": {"history": 5}}}, "queues.q.history", "5: write {keep: ", id="a number alone"),
        pytest.param({"queues": {"q": {"history": False}}}, "queues.q.history", "or 0 for no", id="off is no number"),
        pytest.param({"queues": {"q": {"history": None}}}, "queues.q.history", "or 0 for no", id="history of nothing"),
        pytest.param(
            {"queues": {"q": {"history": {"keep": -1}}}}, "queues.q.history.keep", "at least 0: -1", id="less than none"
        ),
        pytest.param(
            {"queues": {"q": {"history": {"keep": 1_000_001}}}},
            "queues.q.history.keep",
            "at most 1000000: 1000001",
            id="too long a history",
        ),
        pytest.param(
            {"queues": {"q": {"history": {"for": "367d"}}}}, "queues.q.history.for", "at most 366d: 367d", id="a year"
        ),
        pytest.param(
            {"queues": {"q": {"history": {"kep": 5}}}},
            "queues.q.history.kep",
            "did you mean 'keep'",
            id="keep misspelt",
        ),
        pytest.param({"server": {"listen": "7878"}}, "server.listen", "host:port", id="a port alone"),
        pytest.param({"server": {"listen": "h:99999"}}, "server.listen", "[0, 65535]", id="a port out of range"),
        pytest.param(
            {"server": {"listen": "0.0.0.0:80"}}, "server.listen", "without a token", id="open to the network"
        ),
        pytest.param(
            {"server": {"tokens": [{"role": "admin"}]}},
            "server.tokens.0",
            "either token_file or token_env",
            id="no token",
        ),
        pytest.param(
            {"server": {"tokens": [{"role": "root", "token_env": "X"}]}},
            "server.tokens.0.role",
            "admin",
            id="no such role",
        ),
        pytest.param([1], "", "must be a mapping", id="a list"),
        pytest.param(QUEUE_YAML, "queue", "`towline queues apply FILE`", id="a queue.yaml, to be applied"),
        pytest.param(QUEUE_YAML, "queue", "`towline init --from FILE`", id="a queue.yaml, to go on from"),
        pytest.param({"queue": None}, "queue", "queue.yaml", id="a queue.yaml without queues"),
        pytest.param({"queue": {"a": {}}}, "queue", "did you mean 'queues'", id="queues, misspelt"),
        pytest.param("<queue-entries> <queue/> </queue-entries>", "", "`towline queues apply FILE`", id="a queue.xml"),
    ],
)
def test_a_mistake_says_what_the_value_the_limit_and_the_fix(data: object, path: str, message: str) -> None:
    found = mistakes_of(data)
    assert list(found) == [path]
    assert message in found[path]


def test_all_mistakes_are_told_at_once() -> None:
    found = mistakes_of({"stor": 1, "durability": "x", "queues": {"q": {"lease": "x", "retry": {"min": "9m"}}}})
    assert set(found) == {"stor", "durability", "queues.q.lease", "queues.q.retry.min"}


def test_keys_of_the_other_half_are_let_be() -> None:
    assert parse_queue_file({"pools": 1}, other_keys=("pools",))[1] == []


def test_the_last_override_wins_and_makes_what_is_not_there() -> None:
    data = overlay(
        {"store": "a"},
        [
            Override(("store",), "b", "TOWLINE_STORE"),
            Override(("store",), "c", "--store"),
            Override(("server", "listen"), "d", "--listen"),
        ],
    )
    assert data == {"store": "c", "server": {"listen": "d"}}


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert environment_overrides({"TOWLINE_STORE": "", "TOWLINE_LISTEN": "x:1"}) == [
        Override(("server", "listen"), "x:1", "TOWLINE_LISTEN")
    ]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
        ({"url": "redis://:secret@host/0"}, "redis://:***@host/0"),
        ({"url": "redis://host", "password_env": "REDIS"}, {"url": "redis://host", "password_env": "REDIS"}),
    ],
)
def test_a_shared_store_is_shown_without_its_password(data: object, shown: object) -> None:
    settings = parsed({"store": data})
    assert settings.model_dump(mode="json")["store"] == shown
    assert "secret" not in repr(settings)


def test_a_store_that_is_refused_is_told_without_its_password() -> None:
    assert "secret" not in str(mistakes_of({"store": "rdis://user:secret@host"}))


def test_a_relative_store_lies_beside_its_file() -> None:
    assert absolute_store("sqlite:///a.db", Path("/srv")) == "sqlite:////srv/a.db"
    assert absolute_store("sqlite:////a.db", Path("/srv")) == "sqlite:////a.db"
    assert absolute_store("memory:", Path("/srv")) == "memory:"


@pytest.mark.parametrize(
    ("listen", "url", "is_private"),
    [
        ("127.0.0.1:1", "http://127.0.0.1:1", True),
        ("[::1]:1", "http://[::1]:1", True),
        ("0.0.0.0:1", "http://127.0.0.1:1", False),
        ("unix:q.sock", "unix:///srv/q.sock", True),
        ("unix:/run/q.sock", "unix:///run/q.sock", True),
        ("db.example:1", "http://db.example:1", False),
    ],
)
def test_where_a_server_is_found_from_this_machine(listen: str, url: str, is_private: bool) -> None:
    server = ServerSettings(listen=listen)
    assert server.url(Path("/srv")) == url
    assert server.is_private is is_private
