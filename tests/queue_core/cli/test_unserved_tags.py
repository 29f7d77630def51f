"""A task that is added with a tag, or without one, on which no pool of the settings file works."""

from contextlib import closing

import pytest

from queue_core.client.connect import open_queues
from queue_core.task import TagFilter
from queue_core.verbs.served_tags import KIND, facts_of
from tests.support.commands import Commands

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {max_leases: 2}
  mails: {}
pools:
  resize: {queue: thumbs, tags: [resize], app: "tasks:app", slo: 5s}
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    return towline


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            ["thumbs", "cat.jpg", "--tag", "rezise"],
            "warning: 1 task has the tag `rezise`, and no pool works on that tag: did you mean `resize`? "
            "It waits until one does",
            id="a typing mistake",
        ),
        pytest.param(
            ["thumbs", "a", "b", "--tag", "mail"],
            "warning: 2 tasks have the tag `mail`, and no pool works on that tag: pool resize works on `resize`; "
            "they wait until one does",
            id="a tag of nothing",
        ),
        pytest.param(
            ["thumbs", "cat.jpg"],
            "warning: 1 task has no tag, and no pool works on tasks without one: pool resize works on `resize`; "
            "it waits until one does, and --tag resize would give it a tag",
            id="no tag",
        ),
    ],
)
def test_a_task_that_no_pool_works_on_is_added_with_a_warning(
    towline: Commands, arguments: list[str], said: str
) -> None:
    told = towline("add", *arguments)
    assert told.code == 0
    assert told.out.splitlines() == [f"_{number}" for number in range(1, len(told.out.splitlines()) + 1)]
    assert told.err == said + "\n"
    assert towline("add", *arguments, "--json").err == said + "\n"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["thumbs", "cat.jpg", "--tag", "resize"], id="a pool works on it"),
        pytest.param(["mails", "hello"], id="a queue of no pool: other programs lease"),
        pytest.param(["thumbs", "cat.jpg", "--store", "sqlite:///queue.db"], id="a store that is named may be another"),
    ],
)
def test_nothing_is_said_of_tasks_that_somebody_may_work_on(towline: Commands, arguments: list[str]) -> None:
    towline("add", "thumbs", "first", "--tag", "resize")  # makes the queues
    told = towline("add", *arguments)
    assert (told.code, told.err) == (0, "")


def test_a_task_that_was_there_already_is_no_new_one(towline: Commands) -> None:
    assert "warning" in towline("add", "thumbs", "x", "--name", "cat").err
    told = towline("add", "thumbs", "x", "--name", "cat")
    assert (told.code, "warning" in told.err) == (1, False)


def registered(towline: Commands, tags: TagFilter) -> str:
    """Register a pool as its supervisor does; return the URL of its store."""
    url = f"sqlite:///{towline.folder / 'queue.db'}"
    with closing(open_queues(url)) as queues:
        queues.register(KIND, "resize", facts_of(["thumbs"], tags) or {}, seconds=60.0)
    return url


@pytest.mark.parametrize("names_store", [False, True], ids=["of the settings file", "of a store that is named"])
def test_the_tags_that_workers_of_a_pool_lease_are_known_whatever_its_settings(
    towline: Commands, names_store: bool
) -> None:
    (towline.folder / "towline.yaml").write_text(SETTINGS.replace("tags: [resize], ", ""))
    assert towline("add", "thumbs", "x", "--tag", "acme").err == ""
    url = registered(towline, TagFilter.of("shrink"))
    where = ["--store", url] if names_store else []
    warning = "1 task has the tag `acme`, and no pool works on that tag: pool resize works on `shrink`"
    told = towline("add", "thumbs", "x", "--name", "cat", "--tag", "acme", *where)
    assert told.err == f"warning: {warning}; it waits until one does\n"
    assert towline("add", "thumbs", "x", "--tag", "shrink", *where).err == ""
    assert f"  ! {warning}\n" in towline("why", "cat", *where).out
