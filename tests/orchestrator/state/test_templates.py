"""Sentences on a pool's template, and its record."""

import json
from pathlib import Path

import pytest

from orchestrator.state.directory import StateDir
from orchestrator.state.templates import TemplateRecord, template_in

THREAD = "tasks.py:3 started the thread 'x' while it was imported: start it in @app.on_start"
SOCKET = "a socket to 10.0.0.1:5432 is open: connect in @app.on_start"


@pytest.mark.parametrize(
    ("record", "forks", "told"),
    [
        pytest.param(
            TemplateRecord("ready", app="tasks:app", import_seconds=2.4),
            True,
            "workers are forked from a template that imported tasks:app in 2.4 s",
            id="ready",
        ),
        pytest.param(
            TemplateRecord("unsafe", app="tasks:app", hazards=(THREAD, SOCKET)),
            False,
            f"workers are not forked: {THREAD}; {SOCKET}",
            id="unsafe",
        ),
        pytest.param(
            TemplateRecord("unsafe", app="tasks:app", is_forced=True, hazards=(THREAD,)),
            True,
            f"workers are forked, as start is fork, although it is not safe: {THREAD}",
            id="forced",
        ),
        pytest.param(
            TemplateRecord("unsafe", app="tasks:app", hazards=("a", "b", "c", "d", "e")),
            False,
            "workers are not forked: a; b; c; and 2 more",
            id="many hazards",
        ),
        pytest.param(
            TemplateRecord("failed", app="tasks:app", failure="Traceback:\n  line\nNameError: no x\n"),
            False,
            "workers are not forked: tasks:app fails to import: NameError: no x",
            id="failed with a traceback",
        ),
        pytest.param(
            TemplateRecord("failed", app="tasks:app", failure="can't import tasks: tasks.py:3: NameError: no x"),
            False,
            "workers are not forked: can't import tasks: tasks.py:3: NameError: no x",
            id="failed with a sentence",
        ),
        pytest.param(
            TemplateRecord("importing", app="tasks:app"),
            False,
            "workers are not forked yet: a template imports tasks:app",
            id="importing",
        ),
        pytest.param(
            TemplateRecord("outdated", app="tasks:app", failure="/srv/tasks.py has changed"),
            False,
            "workers are not forked until a new template has imported tasks:app: /srv/tasks.py has changed",
            id="outdated",
        ),
        pytest.param(
            TemplateRecord("ended", app="tasks:app", failure="it was ended by SIGTERM"),
            False,
            "workers are not forked: their template has ended (it was ended by SIGTERM); a later start makes a new one",
            id="ended",
        ),
    ],
)
def test_how_workers_start_in_a_sentence(record: TemplateRecord, forks: bool, told: str) -> None:
    assert (record.forks_workers, record.sentence) == (forks, told)
    assert template_in(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize("data", [None, [], {}, {"state": 7}])
def test_what_is_no_template_is_passed_over(data: object) -> None:
    assert template_in(data) is None


def test_templates_are_those_of_the_supervisor_that_is_alive(tmp_path: Path) -> None:
    files = StateDir(tmp_path)
    record = TemplateRecord("ready", app="tasks:app", since=17.0, forks=3, import_seconds=0.5, memory_bytes=1 << 20)
    with files.locked():
        assert files.read_templates() == {}
        files.write_templates({"resize": record})
        assert files.read_templates() == {"resize": record}
    assert files.read_templates() == {}
