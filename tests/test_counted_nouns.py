"""A count agrees with its noun in every text of the product: one task is no "1 tasks"."""

import ast
import re
from collections.abc import Iterator

from tests.test_house import ROOT, modules

NOUNS = (
    "attempt|call|column|connection|death|error|event|failure|file|handler|host|lane|lease|line|message|node|pool|process|"
    "queue|replica|request|row|sample|schedule|server|service|slot|step|supervisor|tag|task|thread|token|topic|turn|worker"
)
COUNTED = re.compile(rf" (?:[a-z-]+ )?(?:{NOUNS})e?s\b")
OTHER_THAN_ONE = {
    ("orchestrator/cli/commands/demo.py", "workers"),  # those that start together
    ("orchestrator/cli/commands/overrides.py", "workers"),  # more than a maximum
    ("orchestrator/cli/commands/why.py", "tasks"),  # a rate
    ("orchestrator/cli/supervisor_hosts.py", "supervisors"),  # of which one must be named
    ("orchestrator/fleet/certificates.py", "dead workers"),  # of which one must be named
    ("orchestrator/fleet/death_sentences.py", "tasks"),  # after the case of one
    ("orchestrator/http_api/logs.py", "workers"),  # more than a maximum
    ("orchestrator/http_api/operator_calls.py", "workers"),  # more than a maximum
    ("orchestrator/scaling/contention.py", "tasks"),  # a rate
    ("orchestrator/runtimes/kubernetes/registry.py", "nodes"),  # of which none can take it
    ("orchestrator/scaling/context.py", "workers"),  # after the case of one
    ("orchestrator/scaling/rules.py", "waiting tasks"),  # after the case of one
    ("orchestrator/simulation/workloads/lifecycle_log.py", "queues"),  # of which one must be named
    ("orchestrator/simulation/workloads/shapes.py", "tasks"),  # more than a maximum
    ("orchestrator/supervisor/output.py", "workers"),  # of which one must be named
    ("queue_core/cli/tables.py", "columns"),  # the width of a table
    ("queue_core/server/commit/threaded.py", "calls"),  # as many as a bound
    ("queue_core/server/fast_path.py", "calls"),  # as many as a bound
    ("queue_core/server/http/http_connection.py", "connections"),  # as many as a bound
    ("queue_core/google/taskqueue/multipart.py", "calls"),  # a bound
    ("queue_core/stores/postgres/client/pool.py", "connections"),  # a bound
    ("queue_core/transfer/reader.py", "lines"),  # head, end and what is between
    ("queue_core/unit/unit_of_work.py", "queues"),  # more than a maximum
    ("queue_core/worker/app.py", "tags"),  # more than a maximum
    # What stands before these words is a name or a share, not a count of them.
    ("orchestrator/cli/commands/drain.py", "has workers"),
    ("orchestrator/demo/fleet_page.py", "as tasks"),
    ("orchestrator/scaling/guards.py", "of leases"),
    ("queue_core/stores/redis/check.py", "tasks"),
}
"""Plurals behind a number that is never 1, by file."""


def test_every_count_agrees_with_its_noun() -> None:
    assert set(miscounted()) == OTHER_THAN_ONE


def test_a_page_of_the_console_counts_like_the_rest() -> None:
    templates = (ROOT / "queue_core/console/templates").glob("*.html")
    wrong = re.compile(rf"\}}\}}{COUNTED.pattern}")
    found = [(path.name, one[0]) for path in templates for one in wrong.finditer(path.read_text())]
    assert found == [("queue_dead.html", "}} dead tasks")]  # of more than are shown


def miscounted() -> Iterator[tuple[str, str]]:
    """Yield the file of each number that is followed by a plural whatever it is, and the words that follow it."""
    for path, tree in modules().items():
        chosen = {id(part) for node in ast.walk(tree) if isinstance(node, ast.IfExp) for part in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr) and id(node) not in chosen:
                yield from ((str(path), words) for words in _plurals(node))


def _plurals(text: ast.JoinedStr) -> Iterator[str]:
    for number, words in zip(text.values, text.values[1:], strict=False):
        if not (isinstance(number, ast.FormattedValue) and isinstance(words, ast.Constant)):
            continue
        found = COUNTED.match(str(words.value))
        if found is not None and not ast.unparse(number.value).rpartition(".")[2].isupper():
            yield found[0].strip()
