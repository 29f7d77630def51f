"""Any name of a queue of Celery's is a legal name in the store, and can be read back."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.client.connect import open_queues
from queue_core.config.celery_names import label_of, shown_queue, store_name, store_names, true_name
from queue_core.limits import check_queue_name
from queue_core.task import QueueSpec
from queue_core.verbs.validation import check_queue_spec

NAMES = st.text(min_size=1, max_size=120)


@pytest.mark.parametrize(
    ("queue", "namespace", "name"),
    [
        ("celery", "", "celery"),
        ("high-priority", "", "high-priority"),
        ("my_queue", "", "my--5fqueue"),
        ("a.b", "shop", "shop--xa--2eb"),
        ("-a--b-", "", "--2da--2d--2db--2d"),
        ("q\u00e9", "", "q--c3--a9"),
    ],
)
def test_names_are_escaped(queue: str, namespace: str, name: str) -> None:
    assert store_name(queue, namespace=namespace) == name


@given(NAMES, st.text(max_size=20))
def test_every_name_is_legal_and_can_be_read_back_unless_it_was_cut(queue: str, namespace: str) -> None:
    name = store_name(queue, namespace=namespace)
    check_queue_name(name)
    assert true_name(name) in (None, (namespace, queue))


@given(NAMES, NAMES, st.text(max_size=5), st.text(max_size=5))
def test_two_queues_never_share_a_name(one: str, other: str, first: str, second: str) -> None:
    is_same = store_name(one, namespace=first) == store_name(other, namespace=second)
    assert is_same == ((one, first) == (other, second))


def test_a_long_name_is_cut_and_told_apart_by_a_digest() -> None:
    names = {store_name("x" * 300 + end) for end in "ab"}
    assert len(names) == 2
    assert {len(name) for name in names} == {100}
    assert {true_name(name) for name in names} == {None}


@pytest.mark.parametrize(
    ("name", "label", "shown"),
    [
        ("celery", "", "celery"),
        ("my--5fqueue", "", "my_queue"),
        ("shop--xa--2eb", "", "shop/a.b"),
        ("q--c3--a9", "", "q\u00e9"),
        ("a--1b--5b31m", "", r"a\x1b[31m"),
        ("of--ours", "", "of--ours"),  # not an escape
        ("x--41", "", "x--41"),  # an escape that nobody writes
        ("x--ff", "", "x--ff"),  # not UTF-8
        ("a--z0123", "a\x1b" * 3, r"a\x1ba\x1ba\x1b"),
    ],
)
def test_a_queue_is_shown_by_its_true_name_and_nothing_in_it_is_obeyed(name: str, label: str, shown: str) -> None:
    assert shown_queue(name, label=label) == shown


@given(NAMES, st.text(max_size=20))
def test_what_is_shown_names_the_queue_and_is_understood(queue: str, namespace: str) -> None:
    name, label = store_name(queue, namespace=namespace), label_of(queue, namespace=namespace)
    check_queue_spec(QueueSpec(name, label=label))
    assert bool(label) == (true_name(name) is None)
    whole = f"{namespace}/{queue}" if namespace else queue
    shown = shown_queue(name, label=label)
    if whole.isprintable():
        assert shown == whole
        assert name in store_names(shown) or (namespace and "/" in namespace)


def test_names_that_differ_only_in_case_are_two_queues(tmp_path: Path) -> None:
    names = [store_name(name) for name in ("Mail_A", "mail_a", "MAIL_A")]
    with closing(open_queues(f"sqlite:///{tmp_path}/q.db")) as queues:
        for name in names:
            queues.put_queue(QueueSpec(name))
            queues.queue(name).add(name.encode())
        assert [queues.queue(name).lease(1)[0].payload.decode() for name in names] == names
