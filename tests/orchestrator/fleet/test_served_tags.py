"""The tags that a pool's workers lease, by several reports, and the settings of the pool that they narrow."""

import pytest

from orchestrator.base.values import ServedTags
from orchestrator.fleet.served_tags import MAX_TAGS, merged_tags, narrowed
from tests.support.fleet.fleet_builders import a_pool


@pytest.mark.parametrize(
    ("reports", "merged"),
    [
        pytest.param([], None, id="nobody"),
        pytest.param([None, None], None, id="nobody knows"),
        pytest.param([("a",), None, ("b", "a")], ("a", "b"), id="several"),
        pytest.param([("a",), ()], (), id="one of them leases all"),
        pytest.param([(None,), ("a",)], (None, "a"), id="the untagged and a tag"),
        pytest.param([tuple(map(str, range(MAX_TAGS + 1)))], (), id="more than are counted"),
    ],
)
def test_what_any_worker_leases_is_served(reports: list[ServedTags | None], merged: ServedTags | None) -> None:
    assert merged_tags(reports) == merged


@pytest.mark.parametrize(
    ("settings", "served", "tags", "untagged"),
    [
        pytest.param({}, None, None, False, id="nothing is known"),
        pytest.param({}, (), None, False, id="all tasks"),
        pytest.param({}, ("shrink",), ("shrink",), False, id="a handler of one tag"),
        pytest.param({}, (None,), None, True, id="only tasks without a tag"),
        pytest.param({}, (None, "a"), None, False, id="a mixture that no settings say"),
        pytest.param({"tags": ["a", "b"]}, ("b", "c"), ("b",), False, id="some of the tags"),
        pytest.param({"tags": ["a"]}, ("c",), ("a",), False, id="none of the tags"),
        pytest.param({"untagged": True}, (None, "a"), None, True, id="a pool of the untagged"),
    ],
)
def test_a_pool_works_on_those_of_its_tags_that_its_workers_lease(
    settings: dict[str, object], served: ServedTags | None, tags: tuple[str, ...] | None, untagged: bool
) -> None:
    found = narrowed(a_pool(**settings), served)
    assert (found.tags, found.untagged) == (tags, untagged)
