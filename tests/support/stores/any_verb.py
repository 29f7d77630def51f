"""What any verb may be asked for, as hypothesis draws it: few queues, tags and names, so that calls meet."""

from hypothesis import strategies as some

from queue_core.task import NewTask, QueueSpec, TagFilter
from tests.support.stores.task_builders import MICROSECOND

QUEUES = ("one", "two")
TAGS = (None, "a", "b", "ä")
WORKERS = ("", "w1", "w2", "w3")

queues = some.sampled_from(QUEUES)
filters = some.one_of(
    some.just(TagFilter()),
    some.just(TagFilter("untagged")),
    some.just(TagFilter.oldest()),
    some.lists(some.sampled_from(["a", "b", "ä", "none"]), min_size=1, max_size=3).flatmap(
        lambda tags: some.sampled_from([TagFilter.of(*tags), TagFilter.oldest(*tags)])
    ),
)
delays = some.sampled_from([None, 0.0, MICROSECOND, 1.0, 2.5, 5.0])
new_tasks = some.builds(
    NewTask,
    payload=some.sampled_from([b"", b"x", b"y" * 2048, b"z" * 2049]),
    name=some.sampled_from([None, None, None, "n1", "n2", "n3"]),
    tag=some.sampled_from(TAGS),
    delay_seconds=delays,
    queue=some.sampled_from([None, None, None, None, "one", "two", "unknown"]),
    max_leases=some.sampled_from([None, None, None, 1, 2, 3]),
)
next_tasks = some.lists(new_tasks, min_size=1, max_size=3)
plain_tasks = some.builds(NewTask, tag=some.sampled_from(TAGS), delay_seconds=delays)
some_tasks = some.one_of(some.lists(new_tasks, min_size=1, max_size=5), some.tuples(plain_tasks).map(list))
names = some.lists(some.sampled_from(["n1", "n2", "n3", "_1", "_2", "_5", "_9", "n9"]), min_size=1, max_size=4)
specs = some.builds(
    QueueSpec,
    name=queues,
    max_leases=some.sampled_from([None, None, 1, 2]),
    max_lease_seconds=some.sampled_from([604_800.0, 12.0]),
    retry_min_seconds=some.sampled_from([0.0, 1.0]),
    retry_max_seconds=some.just(3.0),
    on_exhausted=some.sampled_from(["dead", "delete"]),
    name_retention_seconds=some.sampled_from([0.0, 4.0, 100.0]),
    lease_calls_per_second=some.sampled_from([None, 10]),
    user_emails=some.sampled_from([(), ("a@b", "ü@b")]),
)
