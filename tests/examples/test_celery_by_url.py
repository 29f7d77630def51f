"""Celery by URL: the three commands of the page."""

import sys
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.examples import a_copy_of, answers


def test_a_result_comes_back_from_a_worker_whose_broker_is_a_url(tmp_path: Path) -> None:
    with a_copy_of("celery-by-url", tmp_path) as example:
        listen = example.url.removeprefix("http://")
        serve = [sys.executable, "-m", "orchestrator", "serve", "--store", "sqlite:///towline.db", "--listen", listen]
        example.start(*serve)
        eventually(lambda: answers(f"{example.url}/readyz"))
        example.start("celery", "-A", "tasks", "worker", "--pool", "solo")
        asked = "import tasks; print(tasks.add.delay(1, 2).get(timeout=30))"
        assert example.run(sys.executable, "-c", asked) == "3\n"
