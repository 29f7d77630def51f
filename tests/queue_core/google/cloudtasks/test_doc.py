"""The page about Cloud Tasks has every code. Its blocks run with all others (`tests/docs`)."""

import re
from pathlib import Path

from queue_core.google.cloudtasks.failures import RpcStatus

PAGE = (Path(__file__).parents[4] / "docs/reference/cloudtasks.md").read_text()


def test_every_code_has_its_row() -> None:
    rows = re.findall(r"([A-Z_]+) \((\d+)\)", PAGE)
    assert {(code.name, str(code.http_status)) for code in RpcStatus if code is not RpcStatus.INTERNAL} == set(rows)
