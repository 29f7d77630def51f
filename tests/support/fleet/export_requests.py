"""Export requests whose values would break out of carelessly written files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator.export.request import ExportRequest, yaml_of
from orchestrator.settings_file import parse
from queue_core.config.yaml_document import read_document

HOSTILE = {
    "LINES": "one\n- two: {three}\r\n\ttabbed # no comment",
    "QUOTES": "\"double\" 'single' `back` \\ %n %i ${HOME} $HOME $(HOME) $$",
    "LIKE_YES": "yes",
    "LIKE_NUMBER": "0o17",
    "LIKE_TIME": "12:30",
    "LIKE_NULL": "null",
    "UNICODE": "naïve ☃ \u0085 \u2028 end",
    "EMPTY": "",
    "DOCUMENT": "---\n...\n&a *a !!python/object:os.system\n",
}
SETTINGS = """\
store: sqlite:///queue.db
server:
  tokens:
    - {role: admin, token_env: TOWLINE_ADMIN}
    - {role: worker, token_env: TOWLINE_WORKER, email: worker@example.com}
    - {role: viewer, token_file: "secrets/viewer's token"}
queues:
  thumbs: {lease: 30s, max_leases: 5}
pools:
  resize:
    queue: thumbs
    tags: [resize, "12:30", "yes"]
    app: tasks:app
    runtime: external
    slo: 30s
    grace: 30.5s
    workers: {min: 1, max: 8}
    schedule: [{cron: "0 8 * * *", for: 2h, workers: {min: 0, max: 20}}]
    recycle: {tasks: 100}
  render:
    queue: thumbs
    untagged: true
    command: [/usr/bin/env, "--do=$HOME %i 'x'", "two\\nlines"]
    runtime: {docker: {image: "render:2", memory: 512MiB, cpus: 0.5, user: "1000:1000", read_only: true, pull: never}}
    slo: 5s
"""


def a_request(
    text: str = SETTINGS, *, images: Mapping[str, str] | None = None, env: Mapping[str, str] = HOSTILE, **more: Any
) -> ExportRequest:
    """Return a request for these settings, with `env` in both pools."""
    data = yaml.safe_load(text)
    for pool in (data.get("pools") or {}).values():
        pool["env"] = dict(env)
    whole = yaml_of(data)
    project = parse(whole, name="towline.yaml", directory=Path("/srv/thumbs"))
    document = read_document(whole, name="towline.yaml")
    given = {"resize": "thumbs:1"} if images is None else images
    return ExportRequest(project, document, images=given, **more)
