"""Tags on which no pool of a settings file works, and the sentence about them."""

import pytest

from queue_core.config.pool_tags import (
    PoolTags,
    describe_served,
    describe_unserved,
    is_served,
    pool_tags_in,
    shown_tag,
)
from queue_core.task import ANY, UNTAGGED, TagFilter

RESIZE = PoolTags("resize", "thumbs", TagFilter.of("resize", "crop"))
PLAIN = PoolTags("plain", "thumbs", UNTAGGED)
EVERY = PoolTags("all", "thumbs", ANY)


def test_the_pools_of_a_settings_file_are_read_and_what_is_no_pool_is_left_out() -> None:
    document = {
        "pools": {
            "resize": {"queue": "thumbs", "tags": ["resize", "crop"], "slo": "5s"},
            "plain": {"queue": "thumbs", "untagged": True},
            "all": {"queue": "thumbs"},
            "wrong": {"tags": ["x"]},
            "worse": 7,
        }
    }
    assert pool_tags_in(document) == [RESIZE, PLAIN, EVERY]
    assert pool_tags_in({"pools": ["no mapping"]}) == pool_tags_in({}) == []


@pytest.mark.parametrize(
    ("tag", "pools", "served"),
    [
        pytest.param("resize", [RESIZE], True, id="one of its tags"),
        pytest.param("rezise", [RESIZE, PLAIN], False, id="a tag of no pool"),
        pytest.param(None, [RESIZE], False, id="no tag"),
        pytest.param(None, [RESIZE, PLAIN], True, id="no tag, and a pool for those"),
        pytest.param("rezise", [RESIZE, EVERY], True, id="a pool takes any"),
        pytest.param("rezise", [], True, id="no pool at all: other programs lease"),
    ],
)
def test_a_tag_is_served_by_a_pool_that_takes_it(tag: str | None, pools: list[PoolTags], served: bool) -> None:
    assert is_served(tag, pools) is served


@pytest.mark.parametrize(
    ("tag", "tasks", "pools", "sentence"),
    [
        pytest.param(
            "rezise",
            1,
            [RESIZE],
            "1 task has the tag `rezise`, and no pool works on that tag: did you mean `resize`?",
            id="a typing mistake",
        ),
        pytest.param(
            "mail",
            1_200,
            [RESIZE],
            "1,200 tasks have the tag `mail`, and no pool works on that tag: pool resize works on `resize` and `crop`",
            id="nothing like it",
        ),
        pytest.param(
            None,
            2,
            [RESIZE],
            "2 tasks have no tag, and no pool works on tasks without one: pool resize works on `resize` and `crop`",
            id="no tag",
        ),
        pytest.param(
            "mail",
            1,
            [RESIZE, PLAIN],
            "1 task has the tag `mail`, and no pool works on that tag: the pools of queue thumbs work on `resize`, "
            "`crop` and tasks without a tag",
            id="several pools",
        ),
        pytest.param(
            "x",
            1,
            [PoolTags("p", "q", TagFilter.of(*"abcdefg"))],
            "1 task has the tag `x`, and no pool works on that tag: pool p works on `a`, `b`, `c`, `d`, `e` and 2 more",
            id="many tags",
        ),
    ],
)
def test_the_sentence_names_the_tag_and_what_may_be_meant(
    tag: str | None, tasks: int, pools: list[PoolTags], sentence: str
) -> None:
    assert describe_unserved(tag, tasks, pools) == sentence


def test_a_strangers_tag_is_shown_short_and_harmless() -> None:
    shown = shown_tag("\x1b[31mred\n" + "x" * 500)
    assert "\x1b" not in shown
    assert "\n" not in shown
    assert len(shown) == 62


def test_the_end_says_whether_a_pool_works_on_it_or_none_waits() -> None:
    assert describe_served("mail", by_pool=True) == "a pool works on tasks with the tag `mail` now"
    assert describe_served(None, by_pool=False) == "no task without a tag waits for a pool any more"
