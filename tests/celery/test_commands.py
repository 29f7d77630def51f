"""Celery's own commands on Towline: the small form of `python3 -m tests.celery.commands`."""

import json
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.celery.commands import NODE, PROGRAM, SECONDS, STEPS, CommandSite, a_command_site, beat_ticks, failed_steps

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandSite]:
    with a_command_site(tmp_path_factory.mktemp("site")) as made:
        made.start_worker()
        yield made


def test_celery_s_commands_answer_as_on_any_broker(site: CommandSite) -> None:
    """In one process, as each start of Celery's takes a second."""
    script = "import sys, json\nfrom click.testing import CliRunner\nfrom celery.bin.celery import celery\n"
    script += "for line in json.loads(sys.argv[1]):\n"
    script += f"    done = CliRunner().invoke(celery, ['-A', '{PROGRAM}', *line])\n"
    script += "    print(json.dumps(done.output + repr(done.exception or '')))\n"
    lines = [_quick(step.arguments.split()) for step in STEPS]
    answers = [
        json.loads(line) for line in site.printed([sys.executable, "-c", script, json.dumps(lines)]).splitlines()
    ]
    assert len(answers) == len(STEPS), answers
    by_line = dict(zip([step.arguments for step in STEPS], answers, strict=True))
    assert failed_steps(lambda arguments: by_line[" ".join(arguments)]) == []


def _quick(arguments: Sequence[str]) -> list[str]:
    """Name the one node: then its reply is the last that is waited for."""
    waits = arguments[0] in ("status", "inspect", "control")
    return [arguments[0], *(["--destination", NODE, "--timeout", str(SECONDS)] if waits else []), *arguments[1:]]


def test_beat_adds_tasks(site: CommandSite) -> None:
    beat_ticks(site)
