"""`towline search`: what is found, what would be changed, and what was, after a question or with --yes."""

from typing import cast

import pytest

from queue_core.client.connect import open_queues
from queue_core.task import NewTask, QueueSpec
from tests.support.commands import Commands

Json = dict[str, object]


@pytest.fixture
def towline(towline: Commands) -> Commands:
    """A store with three dead tasks, of two errors, and one that is delayed."""
    (towline.folder / "towline.yaml").write_text(
        "store: sqlite:///queue.db\nserver: {listen: 'unix:none.sock'}\nqueues: {thumbs: {}}\n"
    )
    queues = open_queues(f"sqlite:///{towline.folder}/queue.db")
    queues.put_queue(QueueSpec("thumbs", max_leases=1))
    queue = queues.queue("thumbs")
    queue.add([NewTask(b"a cat", name=f"cat-{number}", tag="t") for number in range(3)])
    first, *others = queue.lease(3, worker="w")
    queue.release(first, error="ValueError: no")
    queue.release(others, dead_reason="no")
    queue.add([NewTask(b"later", name="late", delay_seconds=600)])
    queues.close()
    return towline


def names(towline: Commands, *words: str) -> list[object]:
    told = cast("dict[str, list[Json]]", towline("search", "thumbs", *words, "--json").json)
    return [task["name"] for task in told["tasks"]]


def test_tasks_are_found_by_what_they_went_through(towline: Commands) -> None:
    assert names(towline, "--worker", "w") == ["cat-0", "cat-1", "cat-2"]
    assert names(towline, "--state", "delayed") == ["late"]
    assert names(towline, "--contains", "late") == ["late"]
    assert names(towline, "--leases", "1", "--tag", "t") == ["cat-0", "cat-1", "cat-2"]
    assert names(towline, "--added-before", "1h") == []
    assert names(towline, "--added-after", "1h", "--untagged") == ["late"]
    told = towline("search", "thumbs", "--limit", "2")
    assert "cat-1" in told.out
    assert "searched 2 of 4; more: --after" in told.err
    assert towline("search", "thumbs", "--contains", "dog").err == "no task of thumbs matches; 4 tasks searched\n"


def test_what_would_be_changed_is_counted(towline: Commands) -> None:
    told = towline("search", "thumbs", "--worker", "w", "--redrive", "--dry-run")
    assert (told.code, told.out) == (0, "3 tasks of thumbs would be ready again\n")
    assert towline("search", "thumbs", "--worker", "x", "--redrive", "--dry-run", "--json").json == {
        "matched": 0,
        "changed": 0,
    }
    assert names(towline, "--state", "dead") == ["cat-0", "cat-1", "cat-2"]


def test_they_are_changed_with_yes(towline: Commands) -> None:
    told = towline("search", "thumbs", "--worker", "w", "--redrive", "--yes")
    assert (told.code, told.out) == (0, "3 tasks ready again\n")
    assert names(towline, "--state", "ready") == ["cat-0", "cat-1", "cat-2"]
    assert towline("search", "thumbs", "--worker", "w", "--redrive", "--yes").code == 1
    assert towline("search", "thumbs", "--postpone", "20m", "--yes", "--json").json == {"matched": 1, "changed": 1}
    assert towline("search", "thumbs", "--contains", "cat", "--delete", "--yes").out == "3 tasks deleted\n"
    assert names(towline) == ["late"]


def test_without_a_yes_it_asks(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def agree(question: str, **_options: object) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr("click.confirm", agree)
    assert towline("search", "thumbs", "--redrive").out == "3 tasks ready again\n"
    assert asked == ["3 tasks of thumbs match: redrive them?"]
    assert towline("search", "thumbs", "--redrive").code == 1
    assert len(asked) == 1


def test_one_change_at_a_time(towline: Commands) -> None:
    told = towline("search", "thumbs", "--redrive", "--delete")
    assert told.code == 2
    assert "--redrive and --delete: give one of them" in told.err


def test_all_that_match_get_another_tag_and_leased_ones_are_counted(towline: Commands) -> None:
    told = towline("search", "thumbs", "--tag", "t", "--retag", "longer", "--yes")
    assert (told.code, told.out) == (0, "3 tasks given another tag\n")
    told = towline("search", "thumbs", "--retag", "longer", "--yes")
    assert (told.code, told.out) == (0, "1 task given another tag; 3 are leased, or had that tag\n")
    assert names(towline, "--tag", "longer") == ["cat-0", "cat-1", "cat-2", "late"]
    assert towline("search", "thumbs", "--retag", "", "--yes").out == "4 tasks given another tag\n"
    assert names(towline, "--untagged") == ["cat-0", "cat-1", "cat-2", "late"]
    assert towline("search", "thumbs", "--retag", "a", "--delete").code == 2
