"""The pages of errors and exit codes: each public error class, its HTTP status, and what to do."""

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import orchestrator
import queue_core
from orchestrator.base import errors as fleet_errors
from queue_core import errors as queue_errors
from queue_core.cli.exits import MEANINGS
from queue_core.cli.failure import failure_of
from queue_core.client.http.problem_types import problem_type
from queue_core.config.yaml_document import DocumentError
from queue_core.errors import QueueError
from queue_core.server.base.problems import TITLES, status_of
from queue_core.testing import NotEmptyError
from queue_core.worker.main import run_worker
from tests.support.reference.markdown import capital, code, page, plain, sentence, table

INTRODUCTION: Final = """\
The class of an error says what its caller can do. `except` the class whose advice is what your program does; a class
stands for those that are indented below it. Each message names the value, the limit and the fix.

```python
from queue_core import LeaseLostError, OutcomeUnknownError, QueueError, StoreUnavailableError
```"""

PROBLEMS: Final = """\
## Over HTTP

A refusal is a problem document (RFC 9457), `application/problem+json`: `type` is the error's name, `detail` its
message. Clients of this package raise the same class again. A 503 says `Retry-After`; a repeat with the same
idempotency key takes effect once.

```json
{"type": "urn:towline:problem:lease-lost", "title": "The lease is no longer current", "status": 409,
 "detail": "1 of 1 tokens is not current", "tokens": ["7:1767225600000000"]}
```"""

EXITS_INTRODUCTION: Final = """\
Every command ends with one of these; the numbers are those of sysexits.h where it has one. A script can tell *not
now* from *never*: 69 and 75 are worth another try, 65 to 67, 77 and 78 are not. With `--json` a failure is one object
on stderr: `error`, `where`, `next`, `code`."""

WORKER_EXITS: Final = """\
## Workers

`towline work`, and each worker of a pool with an `app`, ends with one of these. `towline why-died WORKER` tells the
rest."""
OTHERS: Final = (DocumentError, NotEmptyError)
"""Public errors below neither base: of `orchestrator.read_settings`, and of `queue_core.testing`."""


def advice_of(module: ModuleType) -> dict[str, str]:
    """Return what to do about each error of a module: its docstring draws the tree."""
    tree = inspect.getdoc(module) or ""
    found: dict[str, str] = {}
    for line in tree.splitlines():
        names = re.findall(r"\b[A-Z]\w+Error\b", line)
        words = re.split(r"\b[A-Z]\w+Error\b", line)[-1].strip() if names else ""
        for name in names:
            found[name] = words
    return found


def classes(base: type[Exception]) -> Iterator[tuple[type[Exception], int]]:
    """Yield a class and those below it that the packages define, each with its depth."""

    def below(one: type[Exception], depth: int) -> Iterator[tuple[type[Exception], int]]:
        yield one, depth
        for inner in one.__subclasses__():
            if inner.__module__ in (base.__module__, "queue_core.testing.run"):
                yield from below(inner, depth + 1)

    yield from below(base, 0)


def errors_page() -> str:
    """Return the page of errors."""
    return page(
        "Errors",
        "the classes of errors",
        INTRODUCTION,
        "## Of the queue",
        "All are importable from `queue_core`.",
        _table(QueueError, advice_of(queue_errors), public=queue_core.__all__, is_http=True),
        "## Of the fleet",
        "Those without a mark are importable from `orchestrator`; the others stay in a supervisor and its log.",
        _table(fleet_errors.OrchestratorError, advice_of(fleet_errors), public=orchestrator.__all__, is_http=False),
        table(
            ("error", "when"),
            [
                (code(one.__name__), plain(one.__doc__ or "").partition("\n")[0])
                for one in (DocumentError, NotEmptyError)
            ],
        ),
        PROBLEMS,
        table(("status", "title"), [(str(status), title) for status, title in TITLES.items()]),
    )


def _table(base: type[Exception], advice: dict[str, str], *, public: list[str], is_http: bool) -> str:
    rows = []
    known: dict[type[Exception], str] = {}
    for one, depth in classes(base):
        known[one] = advice.get(one.__name__) or next((known[above] for above in one.__mro__[1:] if above in known), "")
        name = f"{'&nbsp;' * 3 * depth}{code(one.__name__)}{'' if one.__name__ in public else ' (internal)'}"
        what = " ".join(plain(one.__doc__ or "").split("\n\nArgs:")[0].split())
        fix = sentence(capital(known[one]))
        status = f"{status_of(one)} {code(problem_type(one).rpartition(':')[2])}" if issubclass(one, QueueError) else ""
        rows.append((name, what, fix, status) if is_http else (name, what, fix))
    return table(("error", "when", "what to do", *(["HTTP"] if is_http else [])), rows)


def exit_codes_page() -> str:
    """Return the page of exit codes."""
    codes: dict[int, list[str]] = {number: [] for number, _ in MEANINGS}
    for one, _ in classes(QueueError):
        failure = failure_of(_instance(one))
        if failure is not None:
            codes[failure.code].append(code(one.__name__))
    rows = [(str(number), sentence(capital(meaning)), ", ".join(codes[number])) for number, meaning in MEANINGS]
    return page(
        "Exit codes",
        "`queue_core/cli/exits.py` and `queue_core/worker/main.py`",
        EXITS_INTRODUCTION,
        table(("code", "meaning", "errors"), rows),
        WORKER_EXITS,
        table(("code", "meaning"), worker_exits()),
    )


def worker_exits() -> list[tuple[str, str]]:
    """Return a worker's exit codes with their meanings, from the docstring of the function that ends with them."""
    text = " ".join((inspect.getdoc(run_worker) or "").split())
    listed = re.search(r"Exit codes: (.*?)\. ", text)
    assert listed
    found = [one.strip().partition(" ") for one in listed[1].split(";")]
    return [(number, sentence(capital(meaning))) for number, _, meaning in found]


def _instance(one: type[Exception]) -> Exception:
    made = one.__new__(one)
    made.args = ("",)
    return made
