"""The plan of a queue file: the file is definitive, and a second plan is empty."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.google.queue_files.plan import QueueChange, QueueFilePlan, SettingEdit, plan_of
from queue_core.task import QueueSpec

THUMBS = QueueSpec("thumbs", max_leases=7, on_exhausted="delete")
PAUSED = SettingEdit("paused", before=False, after=True)
RESUMED = SettingEdit("paused", before=True, after=False)


def kinds(plan: QueueFilePlan) -> dict[str, str]:
    return {change.queue: change.kind for change in plan.changes}


def test_a_new_queue_is_made_as_the_file_says() -> None:
    edits = (SettingEdit("max_leases", None, 7), SettingEdit("on_exhausted", None, "delete"))
    assert plan_of(QueueFileEntries((THUMBS,)), []) == QueueFilePlan(
        (QueueChange("thumbs", "create", edits, spec=THUMBS),)
    )


def test_a_known_queue_keeps_what_a_file_cannot_say() -> None:
    kept = {"retry_min_seconds": 9, "name_retention_seconds": 1, "history_keep": 5, "history_seconds": 60}
    found = QueueSpec("thumbs", lease_seconds=5, max_leases=2, **kept)  # type: ignore[arg-type]
    (change,) = plan_of(QueueFileEntries((THUMBS,)), [found]).changes
    assert change.spec == replace(found, max_leases=7, on_exhausted="delete")
    assert change.edits == (SettingEdit("max_leases", 2, 7), SettingEdit("on_exhausted", "dead", "delete"))


def test_an_acl_that_the_file_no_longer_has_is_taken_away() -> None:
    found = replace(THUMBS, user_emails=("a",), writer_emails=("b",))
    (change,) = plan_of(QueueFileEntries((THUMBS,)), [found]).changes
    assert change.edits == (SettingEdit("user_emails", ("a",), ()), SettingEdit("writer_emails", ("b",), ()))


def test_a_queue_that_is_not_listed_is_paused_but_default_is_not() -> None:
    plan = plan_of(QueueFileEntries(), [THUMBS, QueueSpec("default"), QueueSpec("still", paused=True)])
    assert plan == QueueFilePlan((QueueChange("thumbs", "pause", (PAUSED,), pausing="pause"),))


def test_a_listed_queue_that_was_paused_goes_on_unless_the_file_says_otherwise() -> None:
    found = replace(THUMBS, paused=True)
    assert plan_of(QueueFileEntries((THUMBS,)), [found]) == QueueFilePlan(
        (QueueChange("thumbs", "resume", (RESUMED,), pausing="resume"),)
    )
    assert plan_of(QueueFileEntries((THUMBS,), resume_paused_queues=False), [found]) == QueueFilePlan(())


def test_a_queue_may_be_set_anew_and_go_on_in_one_change() -> None:
    (change,) = plan_of(QueueFileEntries((THUMBS,)), [replace(THUMBS, max_leases=1, paused=True)]).changes
    assert (change.kind, change.pausing) == ("update", "resume")
    assert change.edits == (SettingEdit("max_leases", 1, 7), RESUMED)


def test_a_push_queue_is_known_by_name_and_paused() -> None:
    (change,) = plan_of(QueueFileEntries(push_queues=("mail",)), []).changes
    assert (change.kind, change.edits, change.pausing) == ("create", (SettingEdit("mode", None, "push"),), "pause")
    assert change.spec == QueueSpec("mail", on_exhausted="delete", mode="push")


def test_a_queue_that_became_a_push_queue_keeps_its_settings_and_is_paused() -> None:
    (change,) = plan_of(QueueFileEntries(push_queues=("thumbs",)), [THUMBS]).changes
    assert (change.kind, change.edits) == ("update", (SettingEdit("mode", "pull", "push"), PAUSED))
    assert (change.spec, change.pausing) == (replace(THUMBS, mode="push"), "pause")


@pytest.mark.parametrize("resume", [True, False])
def test_a_push_queue_that_became_a_pull_queue_goes_on_whatever_the_file_says_of_paused_ones(resume: bool) -> None:
    found = replace(THUMBS, mode="push", paused=True)
    (change,) = plan_of(QueueFileEntries((THUMBS,), resume_paused_queues=resume), [found]).changes
    assert (change.kind, change.edits) == ("update", (SettingEdit("mode", "push", "pull"), RESUMED))


def test_a_push_queue_that_was_moved_away_is_left_alone() -> None:
    moved = replace(THUMBS, moved_to="redis://there")
    assert plan_of(QueueFileEntries(push_queues=("thumbs",)), [moved]) == QueueFilePlan((), (moved,))


def test_a_queue_that_was_moved_away_is_left_alone_and_told() -> None:
    moved = replace(THUMBS, moved_to="redis://there")
    assert plan_of(QueueFileEntries((THUMBS,)), [moved]) == QueueFilePlan((), (moved,))
    assert plan_of(QueueFileEntries(), [moved]) == QueueFilePlan(())


NAMES = st.sampled_from(["a", "b", "c", "default"])
LISTED = st.builds(
    QueueSpec,
    NAMES,
    max_leases=st.none() | st.integers(1, 3),
    on_exhausted=st.just("delete"),
    user_emails=st.sampled_from([(), ("x",)]),
)
FOUND = st.builds(
    QueueSpec,
    NAMES,
    lease_seconds=st.sampled_from([1.0, 60.0]),
    max_leases=st.none() | st.integers(1, 3),
    on_exhausted=st.sampled_from(["dead", "delete"]),
    user_emails=st.sampled_from([(), ("x",), ("y",)]),
    mode=st.sampled_from(["pull", "push"]),
    paused=st.booleans(),
    moved_to=st.sampled_from(["", "", "redis://there"]),
)
NAME = lambda spec: spec.name  # noqa: E731


@settings(max_examples=300, deadline=None)
@given(
    st.lists(LISTED, unique_by=NAME).map(tuple),
    st.sets(NAMES),
    st.booleans(),
    st.lists(FOUND, unique_by=NAME),
)
def test_a_second_look_after_the_changes_finds_nothing_to_do(
    listed: tuple[QueueSpec, ...], pushing: set[str], resume: bool, found: list[QueueSpec]
) -> None:
    push_queues = tuple(sorted(pushing - {spec.name for spec in listed}))
    entries = QueueFileEntries(listed, push_queues, resume_paused_queues=resume)
    plan = plan_of(entries, found)
    after = {spec.name: spec for spec in found}
    for change in plan.changes:
        if change.spec is not None:
            old = after.get(change.queue)
            after[change.queue] = replace(change.spec, paused=old.paused if old else False)
        if change.pausing is not None:
            after[change.queue] = replace(after[change.queue], paused=change.pausing == "pause")
        assert change.edits
    assert plan_of(entries, list(after.values())) == QueueFilePlan((), plan.moved)
    for spec in listed:
        assert after[spec.name].moved_to or after[spec.name].max_leases == spec.max_leases
    for name in push_queues:
        assert after[name].moved_to or (after[name].mode, after[name].paused) == ("push", True)
    names = {spec.name for spec in listed}
    assert all(spec.is_closed for spec in after.values() if spec.name not in names | {"default"})
