"""Queues of Celery's and queues with larger tasks at the command line: shown and named as people know them."""

from contextlib import closing
from typing import cast

import pytest

from queue_core.celery.transport.options import options_of
from queue_core.client.connect import open_queues
from queue_core.config.celery_names import label_of, store_name
from queue_core.task import NewTask
from tests.support.commands import Commands

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  plain:
  big: {max_payload: 8MiB, max_eta: 365d}
"""
LONG = "long_" * 60
NAMES = ["my_queue", "a.b", "Mail_A", "mail_a", "celery@host", "gr\u00fcn", "esc\x1b[31m", LONG]


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    return towline


@pytest.fixture
def celery(towline: Commands) -> Commands:
    """A store with queues as Celery's programs declare them."""
    with closing(open_queues(f"sqlite:///{towline.folder}/queue.db")) as queues:
        for name, namespace in [(name, "") for name in NAMES] + [("my_queue", "shop")]:
            known = store_name(name, namespace=namespace)
            queues.put_queue(options_of({}).spec(known, label=label_of(name, namespace=namespace)))
            queues.queue(known).add(NewTask(f"of {namespace}/{name}".encode(), tag="t"))
    return towline


def listed(towline: Commands) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", towline("queues", "--json").json)


def test_the_true_names_are_shown_with_their_limits(celery: Commands) -> None:
    told = celery("queues").out
    for shown in ("my_queue", "shop/my_queue", "celery@host", "gr\u00fcn", r"esc\x1b[31m", LONG, "32MiB", "3650 days"):
        assert shown in told
    assert "\x1b" not in told
    labels = {one["name"]: one["label"] for one in listed(celery)}
    assert labels["my--5fqueue"] == "my_queue"
    assert labels["plain"] == "plain"


@pytest.mark.parametrize("name", [*NAMES, "shop/my_queue", "my--5fqueue"])
def test_every_command_takes_the_true_name(celery: Commands, name: str) -> None:
    wanted = "/my_queue" if name == "my--5fqueue" else name if "/" in name else f"/{name}"
    peeked = cast("dict[str, list[dict[str, object]]]", celery("peek", name, "--json").json)
    assert [task["payload"] for task in peeked["tasks"]] == [f"of {wanted}"]
    assert celery("add", name, "more").code == 0
    assert celery("stats", name).out.startswith("ready      2")
    assert "a queue, 2 ready" in celery("why", name).out.replace("\n  ", " ")
    assert celery("purge", name, "--yes").code == 0


def test_a_name_that_no_queue_has_is_told_with_one_that_is_like_it(celery: Commands) -> None:
    told = celery("peek", "my_quee")
    assert (told.code, "did you mean 'my_queue'?" in told.err) == (66, True)
    assert "must be 1 to 100 letters" in celery("peek", "no such thing").err


def test_plain_queues_are_listed_as_before(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text(SETTINGS.replace("max_payload: 8MiB, max_eta: 365d", ""))
    towline("add", "plain", "x")
    assert "MAX PAYLOAD" not in towline("queues").out


def test_settings_beyond_the_bounds_are_told_by_place(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text("queues: {q: {max_payload: 65MiB, max_eta: 29d}}")
    told = towline("check").err
    assert "queues.q.max_payload: must be at most 64MiB: 65MiB" in told
    assert "queues.q.max_eta: must be at least 30d: 29d" in told


def test_lines_up_to_the_queues_own_limit_are_added(towline: Commands) -> None:
    long = b"x" * (3 << 20)
    (towline.folder / "lines").write_bytes(b"a\nb\n" + long + b"\nc\n")
    assert towline("add", "big", "--lines", "--from", "lines").err == "4 tasks added to big\n"
    told = towline("add", "plain", "--lines", "--from", "lines").err
    assert "line 3 is longer than 1,048,576 bytes (1 MiB), max_payload of its queue" in told
    assert "2 tasks, lines 1 to 2, are added" in told
    (towline.folder / "one").write_bytes(long)
    assert towline("add", "big", "--from", "one", "--delay", "300d").code == 0
    refused = towline("add", "plain", "--from", "one").err
    assert "in queue plain: raise its max_payload, or keep the data elsewhere" in refused
    assert "raise max_eta of queue plain" in towline("add", "plain", "x", "--delay", "31d").err
