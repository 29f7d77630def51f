"""Any name of a queue of Celery's is a legal name in the store, and can be read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.kombu.names import store_name, true_name
from queue_core.limits import check_queue_name

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
