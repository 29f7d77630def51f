"""A task whose tag no worker leases says so on its page, to those who may know it."""

import contextlib
import json

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import NewTask, TagFilter
from queue_core.verbs.roles import Role
from queue_core.verbs.served_tags import KIND
from tests.console.visits import Visitor
from tests.support.servers import QUEUE, a_server

SECRETS = {role: f"{str(role.name).lower()}-secret-0123456789" for role in (Role.ADMIN, Role.VIEWER)}
OTHER = "scoped-viewer-secret-0123456789"
TOKENS = (
    *(AccessToken(role, secret) for role, secret in SECRETS.items()),
    AccessToken(Role.VIEWER, OTHER, queues=(QUEUE,)),
)


@pytest.mark.parametrize(
    ("tag", "token", "sentence"),
    [
        ("resise", SECRETS[Role.VIEWER], "no pool works on that tag: did you mean `resize`?"),
        ("paint", SECRETS[Role.ADMIN], "no pool works on that tag: pool thumbs works on `resize`"),
        ("resize", SECRETS[Role.ADMIN], ""),
        ("drawn", SECRETS[Role.ADMIN], ""),
        ("paint", OTHER, "no pool works on that tag: pool thumbs works on `resize`"),
    ],
    ids=[
        "a near name",
        "what is leased",
        "leased by the pool",
        "leased by a worker beside it",
        "a viewer of this queue alone",
    ],
)
def test_a_task_that_no_worker_leases_says_so(tag: str, token: str, sentence: str) -> None:
    with a_server(options=ServeOptions(tokens=TOKENS)) as server:
        admin = SECRETS[Role.ADMIN]
        with contextlib.closing(HttpQueues(server.url, token=admin)) as queues:
            facts = {"queues": json.dumps([QUEUE]), "tags": json.dumps(["resize"])}
            queues.register(KIND, "thumbs", facts, seconds=60.0)
            queue = queues.queue(QUEUE)
            queue.lease(tags=TagFilter.of("drawn"), worker="beside")
            queue.add(NewTask(b"x", name="one", tag=tag))
        visitor = Visitor(server.port)
        visitor.post("login", {"token": token})
        text = visitor.get(f"queues/{QUEUE}/tasks/one").text
        assert ("no pool works on that tag" in text) == bool(sentence)
        assert sentence in text
