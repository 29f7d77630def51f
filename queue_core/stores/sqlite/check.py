"""Check a store's file: SQLite's own check, and the invariants of counters, names, payloads and tasks."""

from dataclasses import fields
from typing import get_args

from queue_core.attempts.attempt import MAX_ATTEMPTS, Attempt
from queue_core.limits import MAX_PRIORITY
from queue_core.stores.sqlite.admin import RECOUNT
from queue_core.stores.sqlite.counters import Sample
from queue_core.stores.sqlite.driver import SqliteConnection
from queue_core.verbs import Check

MAX_PROBLEMS = 50
_ATTEMPT_FIELDS = len(fields(Attempt)) - 1
"""Those of a line: the traceback is behind it, and the path of the class may be left out."""
_SAMPLE_FIELDS = len(get_args(Sample))
_ATTEMPTS = "'[' || replace(substr(attempts, 1, instr(attempts || char(9), char(9)) - 1), char(10), ',') || ']'"

_RECOUNT = (
    "sum(state <= 0) AS ready, sum(state = 1) AS delayed, sum(state = 2) AS leased, sum(state = 3) AS dead,"
    " sum(state = 4) AS held"
)
_DIFFERS = (
    "(c.ready, c.delayed, c.leased, c.dead, c.held) IS NOT (coalesce(t.ready, 0), coalesce(t.delayed, 0),"
    " coalesce(t.leased, 0), coalesce(t.dead, 0), coalesce(t.held, 0))"
)
_LANES = (
    "SELECT c.id FROM counts c JOIN (SELECT id AS queue, json_extract(settings, '$.per_tag.max_in_flight') AS most,"
    " json_extract(settings, '$.per_tag.rate.burst') AS burst, json_extract(settings, '$.per_tag.fair') AS fair"
    " FROM queues) q ON q.queue = c.queue AND c.tag IS NOT NULL LEFT JOIN lanes l ON l.id = c.id"
)

# Each statement selects rows that break an invariant; the first column goes into the text.
_INVARIANTS = (
    (
        "the counters of tag row {} of its queue differ from a recount",
        (
            "SELECT c.id FROM counts c LEFT JOIN ("  # noqa: S608
            f"  SELECT tag, {_RECOUNT} FROM tasks GROUP BY tag) t ON t.tag = c.id"
            f" WHERE c.tag IS NOT NULL AND {_DIFFERS}"
        ),
    ),
    (
        "the counters of queue {} differ from a recount",
        (
            "SELECT q.name FROM queues q JOIN counts c ON c.queue = q.id AND c.tag IS NULL LEFT JOIN ("  # noqa: S608
            f"  SELECT queue, {_RECOUNT} FROM tasks GROUP BY queue) t ON t.queue = q.id"
            f" WHERE {_DIFFERS}"
        ),
    ),
    (
        "queue {} has no counters",
        "SELECT name FROM queues WHERE id NOT IN (SELECT queue FROM counts WHERE tag IS NULL)",
    ),
    (
        "task {} has a tag that is not of its queue",
        "SELECT t.id FROM tasks t LEFT JOIN counts c ON c.id = t.tag WHERE c.tag IS NULL OR c.queue IS NOT t.queue",
    ),
    ("task {} is of no queue", "SELECT id FROM tasks WHERE queue NOT IN (SELECT id FROM queues)"),
    ("task {} is in no known state", "SELECT id FROM tasks WHERE state > 4"),
    (
        "task {} is ready, but not in the place of its priority",
        "SELECT id FROM tasks WHERE state <= 0 AND state IS NOT -coalesce(priority, 0)",
    ),
    (
        f"the priority of task {{}} is not from 1 to {MAX_PRIORITY}, or its queue is not known to have any",
        (
            "SELECT id FROM tasks WHERE priority IS NOT NULL AND (priority NOT BETWEEN 1 AND"  # noqa: S608
            f" {MAX_PRIORITY} OR queue NOT IN (SELECT id FROM queues WHERE has_priorities))"
        ),
    ),
    ("lane {} is of no tag and no queue", "SELECT id FROM lanes WHERE id NOT IN (SELECT id FROM counts)"),
    (
        "the tag of row {} has more tasks ready and leased than its limit allows",
        f"{_LANES} WHERE c.tag > '' AND c.ready > 0 AND c.ready + c.leased > most",
    ),
    (
        "the tag of row {} holds tasks, but has no limit",
        f"{_LANES} WHERE c.held > 0 AND (c.tag = '' OR (most IS NULL AND burst IS NULL))",
    ),
    (
        "the tag of row {} holds tasks, though it has room, and does not open on its own",
        (
            f"{_LANES} WHERE c.held > 0 AND (most IS NULL OR c.ready + c.leased < most)"
            " AND (burst IS NULL OR (c.ready < burst AND l.opens_at IS NULL))"
        ),
    ),
    (
        "the tag of row {} is in the rotation without ready tasks, or has some without being in it",
        f"{_LANES} WHERE (c.ready > 0 AND coalesce(fair, 0)) IS NOT (l.head IS NOT NULL)",
    ),
    (
        "the tag of row {} has another first task than the rotation says",
        (
            f"{_LANES} JOIN (SELECT tag, min(state) AS first FROM tasks"  # noqa: S608
            " WHERE state <= 0 GROUP BY tag) t ON t.tag = c.id WHERE l.head IS NOT NULL AND l.head IS NOT t.first"
        ),
    ),
    (
        "task {} has an id that was never given out",
        "SELECT id FROM tasks WHERE id > (SELECT added FROM counts WHERE id = 0)",
    ),
    (
        "task {} has no payload",
        "SELECT id FROM tasks WHERE payload IS NULL AND id NOT IN (SELECT id FROM payloads)",
    ),
    (
        "payload {} has no task",
        "SELECT id FROM payloads WHERE id NOT IN (SELECT id FROM tasks WHERE payload IS NULL)",
    ),
    (
        "task {} does not hold its name",
        (
            "SELECT t.id FROM tasks t LEFT JOIN names n ON n.queue = t.queue AND n.name = t.name"
            " WHERE t.name IS NOT NULL AND n.task IS NOT t.id"
        ),
    ),
    (
        "name {} stands for a task that is not there",
        (
            "SELECT n.name FROM names n LEFT JOIN tasks t ON t.id = n.task"
            " WHERE n.task IS NOT NULL AND (t.queue IS NOT n.queue OR t.name IS NOT n.name)"
        ),
    ),
    ("name {} is taken for ever", "SELECT name FROM names WHERE task IS NULL AND until IS NULL"),
    (
        "the bytes of all payloads differ from a recount: {}",
        f"SELECT used_bytes FROM storage WHERE used_bytes IS NOT ({RECOUNT})",  # noqa: S608
    ),
    (
        "task {} is leased but was never granted",
        "SELECT id FROM tasks WHERE state = 2 AND (leased_at = 0 OR leases = 0)",
    ),
    (
        "the headers of task {} are no JSON object",
        (
            "SELECT id FROM tasks WHERE headers IS NOT NULL"
            " AND CASE WHEN json_valid(headers) THEN json_type(headers) IS NOT 'object' ELSE 1 END"
        ),
    ),
    (
        f"the attempts of task {{}} are not 1 to {MAX_ATTEMPTS} lines of JSON with {_ATTEMPT_FIELDS} fields each",
        (
            f"SELECT id FROM (SELECT id, {_ATTEMPTS} AS attempts FROM tasks WHERE attempts IS NOT NULL)"  # noqa: S608
            " WHERE CASE WHEN json_valid(attempts) THEN"
            f" json_array_length(attempts) NOT BETWEEN 1 AND {MAX_ATTEMPTS}"
            " OR EXISTS (SELECT 1 FROM json_each(attempts)"
            f" WHERE CASE type WHEN 'array' THEN json_array_length(value)"
            f" NOT BETWEEN {_ATTEMPT_FIELDS - 1} AND {_ATTEMPT_FIELDS} ELSE 1 END) ELSE 1 END"
        ),
    ),
    (
        "the progress of task {} is no JSON array of a fraction and a text",
        (
            "SELECT id FROM tasks WHERE progress IS NOT NULL"
            " AND CASE WHEN json_valid(progress) THEN json_array_length(progress) IS NOT 2 ELSE 1 END"
        ),
    ),
    ("the checkpoint of task {} is no blob", "SELECT id FROM tasks WHERE typeof(checkpoint) NOT IN ('null', 'blob')"),
    (
        "the finished leases of row {} can't be read",
        (
            "SELECT id FROM samples WHERE CASE WHEN json_valid(finished)"  # noqa: S608
            f" THEN json_array_length(finished) NOT IN ({_SAMPLE_FIELDS - 1}, {_SAMPLE_FIELDS}) ELSE 1 END"
        ),
    ),
)


def check(connection: SqliteConnection) -> Check:
    """Return the problems of the file; reads all of it."""
    problems = [
        str(row[0])
        for row in connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})").fetchall()
        if row[0] != "ok"
    ]
    for text, sql in _INVARIANTS:
        problems += [text.format(row[0]) for row in connection.execute(f"{sql} LIMIT {MAX_PROBLEMS}").fetchall()]
    row = connection.execute("SELECT count(*) FROM tasks").fetchone()
    return Check(tuple(problems), 0 if row is None else int(row[0]))
