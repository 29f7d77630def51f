"""No error of a store or server, and no handle, shows the secret of its URL, of whatever form that is."""

import contextlib

import pytest

from queue_core import open_queues
from queue_core.errors import QueueError

URLS = [
    "postgresql://ann:hunter2@127.0.0.1:1/x",
    "postgresql://127.0.0.1:1/x?user=a&password=hunter2",
    "postgresql://ann:hunter2@127.0.0.1:port/x",
    "postgresql://ann:hunter2@[::1/x",
    "postgresql://ann:hunter2@127.0.0.1:1/x?unknown=1",
    "postgresql://ann%3Ahunter2@127.0.0.1:1/x",
    "postgresql:///x?host=/nowhere&password=hunter2",
    "redis://:hunter2@127.0.0.1:1/0",
    "rediss://:hunter2@127.0.0.1:1/0",
    "redis://:hunter2@127.0.0.1:port/0",
    "redis+unix://:hunter2@/nowhere.sock",
    "redis://127.0.0.1:1/0?password=hunter2",
    "redis+sentinel://:hunter2@127.0.0.1:1/m?sentinel_password=hunter2",
    "redis+cluster://:hunter2@127.0.0.1:1",
    "redis://:hunter2",
    "redis://ann:hunter2/0",
    "redis://:hunter2@127.0.0.1:1/none",
    "http://hunter2@127.0.0.1:1",
    "http://:hunter2@127.0.0.1:1",
    "http://127.0.0.1:1/?token=hunter2",
    "http://:hunter2@127.0.0.1:port",
    "http://:hunter2@[::1",
    "https://:hunter2@127.0.0.1:1,https://:hunter2@127.0.0.1:2",
    "ftp://ann:hunter2@x",
    "sqlite://ann:hunter2@x",
    "sqlite:///x?password=hunter2",
    "memory:?password=hunter2",
    "host=127.0.0.1 password='hunter2'",
    "towline://:hunter2@127.0.0.1:1",
    "unix://:hunter2@/x",
    "://:hunter2@x",
]


def told_of(url: str, token: str | None) -> list[str]:
    told: list[str] = []
    try:
        with contextlib.closing(open_queues(url, token=token)) as queues:
            told += [repr(queues), str(queues), repr(queues.queue("q"))]
            queues.queues()
    except QueueError as raised:
        error: BaseException | None = raised
        while isinstance(error, QueueError):
            told += [str(error), repr(error), repr(error.args), repr(vars(error))]
            error = error.__cause__
    return told


@pytest.mark.parametrize("token", [None, "hunter2"])
@pytest.mark.parametrize("url", URLS)
def test_nothing_told_of_a_store_or_server_has_its_secret(url: str, token: str | None) -> None:
    told = told_of(url, token)
    assert told
    assert [one for one in told if "hunter2" in one] == []
