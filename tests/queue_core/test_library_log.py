"""A program that uses the library prints its own lines only; events come by `logging` or structlog when asked for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from queue_core.log import get_logger

log = get_logger()
{setup}
log.debug("lease.renewed", queue="q")
log.warning("store.unavailable", url="redis://cache", error="it is\\n away")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("turn.failed")
get_logger().bind(worker="w").error("worker.refused")
print('{{"waiting": 0}}')
"""


def outputs(setup: str) -> tuple[list[str], str]:
    """The lines on the standard output of a program that sets up its log so, and its standard error."""
    program = [sys.executable, "-c", PROGRAM.format(setup=setup)]
    run = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.splitlines(), run.stderr


def test_a_library_is_silent_until_the_program_asks() -> None:
    assert outputs("") == (['{"waiting": 0}'], "")


def test_a_program_with_a_log_of_its_own_gets_lines_with_their_level() -> None:
    out, err = outputs("import logging; logging.basicConfig(level='INFO', format='%(levelname)s %(name)s %(message)s')")
    assert out == ['{"waiting": 0}']
    lines = err.splitlines()
    assert lines[0] == "WARNING towline store.unavailable url='redis://cache' error='it is\\n away'"
    assert lines[1] == "ERROR towline turn.failed"
    assert lines[-1] == "ERROR towline worker.refused worker='w'"
    assert "ZeroDivisionError: division by zero" in lines
    assert "lease.renewed" not in err


def test_the_level_of_the_logger_is_obeyed() -> None:
    setup = "import logging; logging.basicConfig(); logging.getLogger('towline').setLevel('ERROR')"
    assert "store.unavailable" not in outputs(setup)[1]


def test_a_program_that_configured_structlog_gets_events_with_their_fields() -> None:
    setup = "import structlog; structlog.configure(processors=[structlog.processors.JSONRenderer()])"
    out, err = outputs(setup)
    assert json.loads(out[1]) == {"event": "store.unavailable", "url": "redis://cache", "error": "it is\n away"}
    assert err == ""


@pytest.mark.parametrize("module", ["queue_core.process.logs", "queue_core.log", "queue_core.client.connect"])
def test_no_module_pays_for_the_colours_of_tracebacks(module: str) -> None:
    program = f"import sys; import {module}; print('rich' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]
